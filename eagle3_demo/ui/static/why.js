// "Why this fast?": the measured speedup taken apart. Figures come from Python; here they are only drawn.

class WhyPanel {
  constructor() {
    this.box = make("section", "why");
    this.box.hidden = true;
  }

  show(why) {
    this.box.hidden = !why;
    if (!why || this.drawn === why.speedup + why.tau + why.step) return;
    this.drawn = why.speedup + why.tau + why.step;
    const round = why.draft + why.verify + why.commit;
    const heading = make("h3", "", "Why this fast?");
    const story = make("p", "why-story");
    story.append(
      "A round of EAGLE-3 brought ",
      strong(`${why.tau.toFixed(2)} tokens`),
      " and took as long as ",
      strong(`${(round / why.step).toFixed(2)} plain steps`),
      `. Divided, that is `,
      strong(`${why.speedup.toFixed(2)}×`),
      why.speedup >= 1 ? "." : ": the guesses cost more than they brought."
    );
    const formula = make("p", "formula");
    formula.append(
      `speedup = acceptance length × plain step ÷ (draft + verify + commit) = ${why.tau.toFixed(2)} × ${ms(why.step)} ÷ `,
      `(${ms(why.draft)} + ${ms(why.verify)} + ${ms(why.commit)}) = ${why.speedup.toFixed(2)}`
    );
    const parts = make("div", "why-parts");
    parts.append(this.time(why), this.budget(why), this.depths(why), this.trees(why));
    this.box.replaceChildren(heading, story, formula, parts);
  }

  // One round beside one plain step, on one scale.
  time(why) {
    const round = why.draft + why.verify + why.commit;
    const scale = Math.max(round, why.step);
    const part = block("Time of one round", "Milliseconds of engine time, mean over the run.");
    const stacked = make("div", "stack");
    for (const [name, value] of [["draft", why.draft], ["verify", why.verify], ["commit", why.commit]]) {
      const piece = make("span", `piece ${name}`, value / scale > 0.12 ? name : "");
      piece.style.width = `${(100 * value) / scale}%`;
      piece.title = `${name} ${ms(value)}`;
      stacked.append(piece);
    }
    const plain = make("div", "stack");
    const piece = make("span", "piece plain", "plain step");
    piece.style.width = `${(100 * why.step) / scale}%`;
    plain.append(piece);
    part.append(
      stacked,
      make("p", "facts", `draft ${ms(why.draft)} · verify ${ms(why.verify)} · commit ${ms(why.commit)} = ${ms(round)}`),
      plain,
      make("p", "facts", `plain step ${ms(why.step)}`)
    );
    return part;
  }

  budget(why) {
    const part = block("Where the rest went", "From the ideal down to what was measured.");
    const list = make("ol", "bars");
    why.budget.forEach((row, index) => {
      const name = index === 0 ? `ideal: ${row.name}` : row.name;
      list.append(barRow(name, row.speedup / why.budget[0].speedup, `${row.speedup.toFixed(2)}×`));
    });
    part.append(list);
    return part;
  }

  depths(why) {
    const part = block("How deep guesses hold", "Of the steps that got so far, how many accepted a guess at this depth.");
    const list = make("ol", "bars");
    for (const { depth, reached, accepted } of why.depths) {
      list.append(barRow(`depth ${depth}`, accepted / reached, `${accepted} of ${reached}`));
    }
    part.append(list);
    return part;
  }

  trees(why) {
    const part = block(
      "What if the tree were smaller?",
      "Recomputed from the recorded trees; times of smaller trees are estimated between a plain step and this run. Larger trees need a new race."
    );
    const best = Math.max(...why.trees.map((row) => row.speedup));
    const list = make("ol", "bars");
    for (const row of why.trees) {
      const name = `${row.nodes} nodes${row.measured ? " (measured)" : ""}, length ${row.tau.toFixed(2)}`;
      list.append(barRow(name, row.speedup / best, `${row.speedup.toFixed(2)}×`));
    }
    part.append(list);
    return part;
  }
}

function strong(text) {
  return make("strong", "", text);
}

function ms(value) {
  return `${value.toFixed(value < 10 ? 1 : 0)} ms`;
}

function block(title, caption) {
  const part = make("div", "why-part");
  part.append(make("h4", "", title), make("p", "facts", caption));
  return part;
}

function barRow(name, share, value) {
  const row = make("li", "bar-row");
  const track = make("span", "bar");
  const fill = make("span", "bar-fill");
  fill.style.width = `${100 * Math.max(0, Math.min(1, share))}%`;
  track.append(fill);
  row.append(make("span", "bar-name", name), track, make("span", "bar-value", value));
  return row;
}
