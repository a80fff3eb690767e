// The race: two answers growing side by side, each at its own clock, their speeds, and whether they are the same.
// Recorded and finished races are replayed here from the steps' own clocks; nothing is asked of the server.

const root = element.querySelector(".board");
const origin = make("p", "origin");
const originMark = make("span", "origin-mark");
const originText = make("span");
origin.append(originMark, originText);

const speedup = makeFigure("speedup", "right side's tokens per second over the left side's");
const acceptance = makeFigure("acceptance length", "tokens per forward pass of the target; plain decoding has 1");
const saved = makeFigure("passes saved", "tokens that cost no forward pass of their own");
const wasted = makeFigure("guesses wasted", "drafted tokens that were checked and thrown away");
const badge = make("details", "badge");
const badgeHead = make("summary", "badge-head");
const badgeMark = make("span", "badge-mark");
const badgeText = make("span", "badge-text");
const badgeDetail = make("p", "badge-detail");
badgeMark.setAttribute("aria-hidden", "true");
badgeHead.append(badgeMark, badgeText);
badge.append(badgeHead, badgeDetail);
const figures = make("div", "result");
figures.append(speedup.box, acceptance.box, saved.box, wasted.box);
const headline = make("div", "headline");
headline.append(origin, badge);

const panes = make("div", "panes");
const sides = {};
for (const side of ["left", "right"]) {
  const pane = make("section", `pane ${side}`);
  const heading = make("div", "panel-heading");
  const name = make("h3");
  const about = make("span", "pane-about");
  heading.append(name, about);
  const rate = make("p", "rate");
  const rateValue = make("span", "rate-value", "–");
  const recent = make("span", "rate-recent");
  rate.append(rateValue, make("span", "rate-unit", " tokens/s"), recent);
  const track = make("div", "bar");
  const bar = make("div", "bar-fill");
  const tick = make("div", "bar-tick");
  track.append(bar, tick);
  const facts = make("p", "facts", "Waiting for a prompt.");
  const text = make("div", "token-text");
  text.tabIndex = 0;
  text.setAttribute("role", "region");
  pane.append(heading, rate, track, facts, text);
  panes.append(pane);
  sides[side] = { pane, name, about, rateValue, recent, bar, tick, facts, text, words: new TokenText(text) };
  text.addEventListener("click", (event) => {
    const token = event.target.closest("[data-step]");
    if (token) trigger("open_step", { side, index: Number(token.dataset.step) });
  });
}

const fairness = make(
  "p",
  "fine-print",
  "A fair race: the two runs take turns on the same machine and never compute at the same time. The next step always " +
    "goes to the side whose own clock is behind, and clocks count engine time only, not drawing. Speeds leave out reading the prompt."
);
const footer = make("div", "panel-heading");
const actions = make("span", "actions");
actions.append(makeTreesButton(), makeLinkButton(() => ({ tab: "race", example: (props.value || {}).example })));
footer.append(makeLegend(), actions);
const why = new WhyPanel();
const status = new StatusLine();
const player = new Player(() => drawSoon());
root.append(headline, figures, panes, player.box, footer, why.box, fairness, status.box);

const MARKS = { running: "…", identical: "✓", different: "≠", stopped: "■" };
const state = { view: null, run: null, sides: {}, scale: 1, wantsPlay: false };
const drawSoon = onceAFrame(root, () => draw());

// ---- drawing

function draw() {
  const view = state.view;
  root.classList.toggle("idle", !view);
  if (!view) return;
  const time = player.time;
  const frames = { left: frameAt(state.sides.left, time), right: frameAt(state.sides.right, time) };
  for (const side of ["left", "right"]) drawSide(side, frames[side]);
  const { left, right } = frames;
  speedup.show(left.mean && right.mean ? `${(right.mean / left.mean).toFixed(2)}×` : "–");
  acceptance.show(right.acceptance === null ? "–" : right.acceptance.toFixed(2));
  saved.show(right.forwards ? String(Math.max(0, right.tokens - 1 - right.forwards)) : "–");
  wasted.show(right.drafted ? `${Math.round((100 * (right.drafted - right.accepted)) / right.drafted)} %` : "–");
  drawBadge(view, Math.min(left.tokens, right.tokens));
}

function drawSide(name, frame) {
  const side = state.sides[name];
  const shown = sides[name];
  setText(shown.rateValue, frame.mean === null ? "–" : frame.mean.toFixed(1));
  setText(shown.recent, frame.recent === null ? "" : `last second ${frame.recent.toFixed(1)}`);
  shown.bar.style.width = `${Math.min(100, (100 * (frame.mean || 0)) / state.scale)}%`;
  shown.tick.style.left = `${Math.min(100, (100 * (frame.recent || 0)) / state.scale)}%`;
  shown.tick.hidden = frame.recent === null;
  const done = side.finished && frame.steps === side.clock.length;
  const word = done ? `Done (${side.ending})` : frame.steps ? "Running" : "Reading the prompt";
  setText(
    shown.facts,
    frame.steps ? `${word}: ${frame.tokens} tokens from ${frame.forwards} forward passes in ${(frame.clock / 1000).toFixed(1)} s` : `${word} …`
  );
  shown.pane.classList.toggle("done", done);
  shown.words.show(side.run, side.tokens, frame.tokens);
}

function drawBadge(view, shared) {
  const { state: verdict, index } = view.verdict;
  const atEnd = player.time >= player.length;
  const partial = !atEnd && (index === null || shared <= index);
  badge.dataset.state = partial ? "running" : verdict;
  setText(badgeMark, MARKS[partial ? "running" : verdict]);
  setText(badgeText, partial ? `The same so far: ${shared} tokens` : view.verdict.text);
  setText(badgeDetail, view.verdict.detail);
  badge.classList.toggle("plain", !view.verdict.detail);
}

// ---- receiving

function receive() {
  const view = props.value;
  if (!view || view.run === undefined) {
    state.view = null;
    drawSoon();
    return;
  }
  const fresh = view.run !== state.run;
  state.run = view.run;
  state.view = view;
  for (const side of ["left", "right"]) {
    const data = indexSide(view.sides[side]);
    state.sides[side] = data;
    setText(sides[side].name, data.name);
    setText(sides[side].about, data.drafts ? data.label.replace(`${data.name} · `, "guesses: ") : "one token per forward pass");
    sides[side].text.setAttribute("aria-label", `Answer by ${data.label}, token by token`);
    sides[side].pane.classList.toggle("drafts", data.drafts);
  }
  state.scale = 1.05 * Math.max(0.001, ...Object.values(state.sides).map(fastestMean));
  originMark.className = `origin-mark ${view.origin ? "recorded" : "live"}`;
  setText(originMark, view.origin ? "recorded run" : view.finished ? "this machine" : "live");
  setText(originText, view.origin ? view.origin.replace(/^Recorded /, "") : "decoded just now on the machine that serves this page");
  player.load(Object.values(state.sides).flatMap((side) => side.clock));
  player.box.hidden = !view.finished;
  why.show(view.why);
  actions.querySelector(".link-button").hidden = !view.example;
  if (fresh) player.toEnd();
  if (fresh && view.autoplay && view.finished && !matchMedia("(prefers-reduced-motion: reduce)").matches) {
    player.move(0);
    state.wantsPlay = true;
  } else if (!view.finished) {
    player.time = Infinity;
  }
  const rates = ["left", "right"].map((side) => `${state.sides[side].name} ${(frameAt(state.sides[side], Infinity).mean || 0).toFixed(1)}`);
  if (!view.origin) status.say(`${view.verdict.text}. Tokens per second: ${rates.join(", ")}.`, view.finished);
  drawSoon();
}

new IntersectionObserver((entries) => {
  if (!entries.some((entry) => entry.isIntersecting)) return;
  if (state.wantsPlay) {
    state.wantsPlay = false;
    player.start();
  }
  drawSoon();
}).observe(root);

watch("value", () => {
  receive();
  if (state.wantsPlay && root.offsetParent !== null) {
    state.wantsPlay = false;
    player.start();
  }
});
receive();
