// The Compare board: two answers growing side by side, their speeds, and whether they are the same.

const root = element.querySelector(".board");
const NAMES = { autoregressive: "Autoregressive", eagle3: "EAGLE-3" };
const ABOUT = { autoregressive: "one token per forward pass", eagle3: "drafts, then checks several in one pass" };

const result = make("div", "result");
const speedup = makeFigure("speedup", "EAGLE-3's tokens per second over plain decoding's");
const acceptance = makeFigure("acceptance length", "tokens gained per forward pass of the target; plain decoding is 1");
const badge = make("p", "badge");
const badgeMark = make("span", "badge-mark");
const badgeText = make("span", "badge-text");
badgeMark.setAttribute("aria-hidden", "true");
badge.append(badgeMark, badgeText);
result.append(speedup.box, acceptance.box, badge);

const panes = make("div", "panes");
const sides = {};
for (const side of Object.keys(NAMES)) {
  const pane = make("section", `pane ${side}`);
  const heading = make("div", "panel-heading");
  heading.append(make("h3", "", NAMES[side]), make("span", "pane-about", ABOUT[side]));
  const rate = make("p", "rate");
  const rateValue = make("span", "rate-value", "–");
  rate.append(rateValue, make("span", "rate-unit", " tokens/s"));
  const track = make("div", "bar");
  const bar = make("div", "bar-fill");
  track.append(bar);
  const facts = make("p", "facts", "Waiting for a prompt.");
  const text = make("div", "token-text");
  text.tabIndex = 0;
  text.setAttribute("aria-label", `Answer by ${NAMES[side]}, token by token`);
  pane.append(heading, rate, track, facts, text);
  panes.append(pane);
  sides[side] = { rateValue, bar, facts, words: new TokenText(text) };
}
const fairness = make(
  "p",
  "fine-print",
  "Measured fairly: the two runs take turns on the same machine and never compute at the same time. The next step always " +
    "goes to the side whose own clock is behind, and clocks count engine time only, not drawing. Speeds leave out reading the prompt."
);
const footer = make("div", "panel-heading");
footer.append(makeLegend(), makeTreesButton());
root.append(result, panes, footer, fairness);

const MARKS = { running: "…", identical: "✓", different: "≠", stopped: "■" };

function draw() {
  const view = props.value || {};
  root.classList.toggle("idle", view.run === undefined);
  if (view.run === undefined) return;
  speedup.show(view.speedup === null ? "–" : `${view.speedup.toFixed(2)}×`);
  acceptance.show(view.sides.eagle3.numbers.acceptance_length);
  badge.dataset.state = view.verdict.state;
  setText(badgeMark, MARKS[view.verdict.state]);
  setText(badgeText, view.verdict.text);
  const rates = Object.values(view.sides).map((side) => Number.parseFloat(side.numbers.tokens_per_second) || 0);
  const fastest = Math.max(...rates, 0.001);
  for (const [name, side] of Object.entries(view.sides)) {
    const shown = sides[name];
    const rate = Number.parseFloat(side.numbers.tokens_per_second) || 0;
    setText(shown.rateValue, side.numbers.tokens_per_second);
    shown.bar.style.width = `${(100 * rate) / fastest}%`;
    const { tokens, target_forwards: forwards, seconds } = side.numbers;
    const state = side.finished ? "Done" : "Running";
    setText(shown.facts, `${state}: ${tokens} tokens from ${forwards} forward passes in ${seconds} s of engine time.`);
    shown.words.show(view.run, side.tokens);
  }
}

watch("value", draw);
draw();
