// A tour of five stops on one recorded step: every token and figure in it is that run's own.

const root = element.querySelector(".learn");
const place = make("p", "facts tour-place");
const title = make("h3");
const text = make("p", "tour-text");
const picture = make("div", "tour-picture");
const back = makeButton("plain-button", "‹ Back", () => go(-1));
const on = makeButton("plain-button tour-next", "Next ›", () => go(1));
const openTree = makeButton("plain-button", "Open this tree →", () => trigger("open_step", { index: props.value.step.index }));
const buttons = make("div", "actions");
buttons.append(back, on, openTree);
const card = make("section", "tour");
card.setAttribute("aria-label", "Tour in five stops");
title.tabIndex = -1;
card.append(place, title, text, picture, buttons);
root.append(card);

let stop = 0;

const seconds = (milliseconds) => `${milliseconds.toFixed(0)} ms`;

const STOPS = [
  {
    title: "A language model writes one token at a time",
    text: ({ plain }) =>
      `A token is a piece of a word. To choose the next one, the target model reads all its weights once: a forward pass, ${seconds(plain.step)} here. ` +
      `Decoding plainly, the ${plain.tokens} tokens of this answer took ${plain.forwards} passes. Reading the weights is the cost; checking a few more tokens in the same pass costs little.`,
    draw: ({ plain }) => {
      const row = make("div", "token-boxes");
      for (const [part] of plain.sample) row.append(make("span", "token-box", part.replaceAll("\n", "⏎").replaceAll(" ", "␣")));
      row.append(make("span", "token-box later", "…"));
      return row;
    },
  },
  {
    title: "So a small head guesses ahead",
    text: ({ step }) =>
      `After “${step.texts[0]}” the draft head guesses what the target would say next, and what after that. It is one decoder layer, and it does not look at ` +
      `the text alone: it reads the target's own hidden states from three depths, which already hold much of what the target is about to say. Several guesses at each place make a draft tree.`,
    draw: ({ step }) => tree(step, guesses(step), () => "unreached"),
  },
  {
    title: "The target checks all guesses in one pass",
    text: () =>
      "The tree is laid out as one row of tokens. A mask lets each guess see only its own ancestors (filled squares), as if it were the only continuation there is. So one pass gives the target's own choice after every node.",
    draw: ({ step }) => mask(step),
  },
  {
    title: "It keeps what it would have said itself",
    text: ({ step }) => {
      const accepted = step.path.length;
      const own = step.texts[step.texts.length - 1];
      return (
        `From the root on, the target's own choice is followed while it is in the tree: ${accepted} guess${accepted === 1 ? "" : "es"} stand. Where it is not, the walk ends, ` +
        `and the target's choice there, “${own}”, is taken instead. So this one pass emitted ${accepted + 1} token${accepted ? "s" : ""}, each exactly the one plain decoding emits.`
      );
    },
    draw: ({ step }) => tree(step, step.texts.map((_, node) => node), (node) => step.statuses[node]),
  },
  {
    title: "The same answer, in fewer passes",
    text: ({ plain, fast, identical }) =>
      `Over the whole answer each pass emitted ${fast.tau.toFixed(2)} tokens: the acceptance length. ${fast.forwards} passes in place of ${plain.forwards}. ` +
      `A pass over a tree takes longer than a plain one, and drafting takes time, so the speedup is smaller: ${fast.speedup.toFixed(2)}× on that machine. ` +
      (identical ? "Both sides wrote the same tokens, compared one by one." : "Here the two sides did not write the same tokens; the race says where."),
    draw: ({ plain, fast }) => {
      const list = make("ol", "bars");
      const most = Math.max(plain.rate, fast.rate);
      list.append(
        barRow("Plain decoding", plain.rate / most, `${plain.rate.toFixed(1)} tok/s`),
        barRow("EAGLE-3", fast.rate / most, `${fast.rate.toFixed(1)} tok/s`)
      );
      return list;
    },
  },
];

function guesses(step) {
  return step.texts.map((_, node) => node).filter((node) => step.statuses[node] !== "target");
}

function tree(step, nodes, statusOf) {
  const size = root.clientWidth < 600 ? NARROW : WIDE;
  const statuses = step.texts.map((_, node) => (node === 0 ? "root" : statusOf(node)));
  const canvas = make("div", "tree-canvas");
  canvas.append(sizedEdges(canvas, step, size, nodes, statuses), ...nodes.map((node) => nodeBox(step, node, size, statuses[node])));
  return canvas;
}

function mask(step) {
  const nodes = guesses(step);
  const table = make("table", "mask");
  table.append(make("caption", "facts", "Row: a node. Filled: what it sees. Everything before the root is seen by all."));
  for (const node of nodes) {
    const row = make("tr");
    const name = make("th", "", step.texts[node]);
    name.scope = "row";
    row.append(name);
    const seen = new Set();
    for (let above = node; above >= 0; above = step.parents[above]) seen.add(above);
    for (const other of nodes) {
      const cell = make("td", seen.has(other) ? "seen" : "", seen.has(other) ? "■" : "·");
      cell.title = `“${step.texts[node]}” ${seen.has(other) ? "sees" : "does not see"} “${step.texts[other]}”`;
      row.append(cell);
    }
    table.append(row);
  }
  return table;
}

function go(direction) {
  stop = Math.max(0, Math.min(STOPS.length - 1, stop + direction));
  draw();
  title.focus();
}

function draw() {
  const view = props.value;
  root.hidden = !view || !view.step;
  if (root.hidden) return;
  const { title: name, text: words, draw: shown } = STOPS[stop];
  setText(place, `Stop ${stop + 1} of ${STOPS.length} · ${view.prompt} · ${view.origin}`);
  setText(title, name);
  setText(text, words(view));
  picture.replaceChildren(shown(view));
  back.disabled = stop === 0;
  on.disabled = stop === STOPS.length - 1;
  openTree.hidden = stop === 0;
}

watch("value", draw);
draw();
