// The draft trees of a run, one step at a time. Places come from Python; here they are only drawn.

const root = element.querySelector(".trees");
const COLUMN = 156;
const ROW = 40;
const NODE_WIDTH = 126;
const NODE_HEIGHT = 30;
const GLYPHS = { root: "●", accepted: "✓", rejected: "✕", unreached: "", target: "★" };
const WORDS = {
  root: "the last token before this step",
  accepted: "accepted: the target agrees",
  rejected: "rejected: the target chose otherwise",
  unreached: "not reached: an earlier guess was rejected",
  target: "the target's own token",
};

const state = {
  run: null,
  steps: new Map(),
  index: 0,
  following: true,
  selected: 0,
  view: null,
  asked: null,
  scheduled: false,
};

// ---- skeleton

const empty = make("p", "empty", "Ask something under Chat or Compare: the draft trees of the last run appear here.");
const body = make("div", "trees-body");
const title = make("h3");
const subtitle = make("p", "facts");
const previous = make("button", "step-button", "‹");
const next = make("button", "step-button", "›");
const strip = makeSvg("svg", { class: "step-strip", preserveAspectRatio: "none", role: "presentation" });
const slider = make("input", "step-slider");
const position = make("output", "step-position");
const summary = make("p", "step-summary");
const scroller = make("div", "tree-scroller");
const canvas = make("div", "tree-canvas");
const detail = make("p", "facts node-detail");
const answer = make("div", "token-text answer-so-far");
const table = make("tbody");

previous.type = next.type = "button";
previous.setAttribute("aria-label", "Previous step");
next.setAttribute("aria-label", "Next step");
slider.type = "range";
slider.min = "0";
slider.setAttribute("aria-label", "Step");
canvas.setAttribute("role", "tree");
answer.tabIndex = 0;
answer.setAttribute("aria-label", "The answer up to this step");

const controls = make("div", "step-controls");
controls.append(previous, slider, next, position);
scroller.append(canvas);
body.append(title, subtitle, make("p", "strip-caption", "Tokens emitted by each step; the pale bar is step 0, which reads the prompt"), strip, controls, summary, scroller, detail, makeTreeLegend(), make("h4", "", "The answer so far"));
body.append(answer, makeTable());
root.append(empty, body);

function makeTreeLegend() {
  const legend = make("ul", "legend tree-legend");
  for (const [status, meaning] of Object.entries(WORDS)) {
    const item = make("li");
    const mark = make("span", `swatch ${status}`, GLYPHS[status] || "·");
    mark.setAttribute("aria-hidden", "true");
    item.append(mark, meaning);
    legend.append(item);
  }
  legend.append(make("li", "", "%: how likely the draft head found the token · ␣ space · ⏎ new line · ⇥ tab"));
  return legend;
}

function makeSvg(name, attributes) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

function makeTable() {
  const details = make("details");
  const head = make("tr");
  for (const name of ["Token", "After", "Depth", "Draft probability", "Verdict"]) head.append(make("th", "", name));
  const frame = make("table");
  const header = make("thead");
  header.append(head);
  frame.append(header, table);
  details.append(make("summary", "", "This step as a table"), frame);
  return details;
}

// ---- drawing

const percent = (value) => (value === null ? "" : value < 0.005 ? "<1%" : `${Math.round(100 * value)}%`);

function draw() {
  const view = state.view;
  empty.hidden = Boolean(view);
  body.hidden = !view;
  if (!view) return;
  setText(title, view.prompt);
  setText(subtitle, view.about);
  slider.max = String(view.count - 1);
  slider.value = String(state.index);
  setText(position, `Step ${state.index} of ${view.count - 1}`);
  previous.disabled = state.index === 0;
  next.disabled = state.index >= view.count - 1;
  drawStrip(view);
  const step = state.steps.get(state.index);
  if (!step) {
    ask();
    return;
  }
  const { draft, verify, commit } = step.milliseconds;
  setText(summary, `${step.summary} Draft ${draft} ms, verify ${verify} ms, commit ${commit} ms.`);
  slider.setAttribute("aria-valuetext", `${position.textContent}: ${step.summary}`);
  drawTree(step);
  drawAnswer(view, step);
  drawTable(step);
}

function ask() {
  const wanted = `${state.run}:${state.index}`;
  if (state.asked === wanted) return;
  state.asked = wanted;
  setText(summary, "Fetching this step …");
  trigger("need_steps", { index: state.index });
}

// How many tokens each step emitted, one bar a step.
function drawStrip(view) {
  const emitted = new Array(view.count).fill(0);
  for (const [, , index] of view.tokens) emitted[index] += 1;
  const tallest = Math.max(2, ...emitted);
  const bar = (index) => `M${index + 0.1} ${tallest}v${-emitted[index]}h0.8v${emitted[index]}z`;
  strip.setAttribute("viewBox", `0 0 ${view.count} ${tallest}`);
  strip.replaceChildren(
    makeSvg("path", { d: emitted.map((_, index) => (index ? bar(index) : "")).join("") }),
    makeSvg("path", { d: bar(0), class: "prompt" }),
    makeSvg("path", { d: bar(state.index), class: "here" })
  );
}

function drawTree(step) {
  state.selected = 0;
  const rows = Math.max(...step.rows) + 1;
  const columns = Math.max(...step.columns) + 1;
  const width = (columns - 1) * COLUMN + NODE_WIDTH;
  const height = (rows - 1) * ROW + NODE_HEIGHT;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  canvas.setAttribute("aria-label", `Draft tree of step ${step.index}. ${step.summary}`);
  canvas.replaceChildren(drawEdges(step, width, height), ...step.texts.map((_, node) => drawNode(step, node)));
  select(step, 0, false);
}

function drawEdges(step, width, height) {
  const svg = makeSvg("svg", { width, height, role: "presentation" });
  step.parents.forEach((parent, node) => {
    if (parent < 0) return;
    const startX = step.columns[parent] * COLUMN + NODE_WIDTH;
    const startY = step.rows[parent] * ROW + NODE_HEIGHT / 2;
    const endX = step.columns[node] * COLUMN;
    const endY = step.rows[node] * ROW + NODE_HEIGHT / 2;
    const middle = (startX + endX) / 2;
    const curve = `M${startX} ${startY}C${middle} ${startY} ${middle} ${endY} ${endX} ${endY}`;
    svg.append(makeSvg("path", { d: curve, class: `edge ${step.statuses[node]}` }));
  });
  return svg;
}

function describe(step, node) {
  const probability = step.probabilities[node];
  const guess = probability === null ? "" : `, draft probability ${percent(probability)}`;
  return `“${step.texts[node]}”, depth ${step.columns[node]}${guess}: ${WORDS[step.statuses[node]]}`;
}

function drawNode(step, node) {
  const status = step.statuses[node];
  const box = make("div", `node ${status}`);
  box.style.left = `${step.columns[node] * COLUMN}px`;
  box.style.top = `${step.rows[node] * ROW}px`;
  box.setAttribute("role", "treeitem");
  box.setAttribute("aria-level", String(step.columns[node] + 1));
  box.setAttribute("aria-label", describe(step, node));
  box.title = describe(step, node);
  box.tabIndex = -1;
  box.dataset.node = String(node);
  if (GLYPHS[status]) box.append(make("span", "glyph", GLYPHS[status]));
  box.append(make("span", "label", step.texts[node]), make("span", "probability", percent(step.probabilities[node])));
  return box;
}

function select(step, node, focus) {
  state.selected = node;
  for (const box of canvas.querySelectorAll(".node")) {
    const chosen = Number(box.dataset.node) === node;
    box.setAttribute("aria-selected", String(chosen));
    box.tabIndex = chosen ? 0 : -1;
    if (chosen && focus) box.focus();
  }
  setText(detail, describe(step, node));
}

function drawAnswer(view, step) {
  const spans = view.tokens
    .filter(([, , index]) => index <= step.index)
    .map(([text, drafted, index]) => {
      const span = tokenSpan(text, index === step.index && drafted);
      if (index === step.index) span.classList.add("current", drafted ? "accepted" : "target");
      span.dataset.step = String(index);
      return span;
    });
  answer.replaceChildren(...spans);
  answer.scrollTop = answer.scrollHeight;
}

function drawTable(step) {
  table.replaceChildren(
    ...step.texts.map((text, node) => {
      const row = make("tr");
      const parent = step.parents[node];
      const cells = [text, parent < 0 ? "–" : step.texts[parent], step.columns[node], percent(step.probabilities[node]) || "–"];
      for (const cell of [...cells, WORDS[step.statuses[node]]]) row.append(make("td", "", String(cell)));
      return row;
    })
  );
}

// ---- moving

function goTo(index) {
  const last = state.view ? state.view.count - 1 : 0;
  state.index = Math.max(0, Math.min(index, last));
  state.following = state.index === last;
  draw();
}

strip.addEventListener("click", (event) => {
  const box = strip.getBoundingClientRect();
  goTo(Math.floor(((event.clientX - box.left) / box.width) * state.view.count));
});
previous.addEventListener("click", () => goTo(state.index - 1));
next.addEventListener("click", () => goTo(state.index + 1));
slider.addEventListener("input", () => goTo(Number(slider.value)));
answer.addEventListener("click", (event) => {
  const span = event.target.closest("[data-step]");
  if (span) goTo(Number(span.dataset.step));
});
canvas.addEventListener("click", (event) => {
  const box = event.target.closest(".node");
  if (box) select(state.steps.get(state.index), Number(box.dataset.node), true);
});

// Arrow keys follow the structure (parent, first child, siblings); [ and ] change the step.
function neighbour(step, key) {
  const node = state.selected;
  const childrenOf = (wanted) =>
    step.parents
      .flatMap((parent, child) => (parent === wanted ? [child] : []))
      .sort((left, right) => step.rows[left] - step.rows[right]);
  const siblings = childrenOf(step.parents[node]);
  const place = siblings.indexOf(node);
  if (key === "ArrowLeft") return step.parents[node];
  if (key === "ArrowRight") return childrenOf(node)[0];
  if (key === "ArrowUp") return siblings[place - 1];
  if (key === "ArrowDown") return siblings[place + 1];
  if (key === "Home") return 0;
  return undefined;
}

root.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || !state.view) return;
  if (event.key === "[" || event.key === "]") {
    goTo(state.index + (event.key === "]" ? 1 : -1));
    event.preventDefault();
    return;
  }
  const step = state.steps.get(state.index);
  if (!step || !canvas.contains(event.target)) return;
  const node = neighbour(step, event.key);
  if (node === undefined) return;
  event.preventDefault();
  if (node >= 0) select(step, node, true);
});

// ---- receiving

function receive() {
  const view = props.value;
  if (!view || view.run === undefined) {
    state.view = null;
    state.run = null;
  } else {
    if (view.run !== state.run) {
      Object.assign(state, { run: view.run, steps: new Map(), following: true, asked: null });
    }
    for (const [index, step] of Object.entries(view.steps)) state.steps.set(Number(index), step);
    state.view = view;
    state.asked = null;
    const moves = view.finished || !matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (state.following && moves) state.index = view.count - 1;
  }
  drawSoon();
}

// Once a frame, and only while the tab is open.
function drawSoon() {
  if (state.scheduled || root.offsetParent === null) return;
  state.scheduled = true;
  requestAnimationFrame(() => {
    state.scheduled = false;
    draw();
  });
}

new IntersectionObserver((entries) => {
  if (entries.some((entry) => entry.isIntersecting)) drawSoon();
}).observe(root);

watch("value", receive);
receive();
