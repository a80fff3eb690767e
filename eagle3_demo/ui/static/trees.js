// The draft trees of a run, one step at a time. Places come from Python; here they are only drawn.

const root = element.querySelector(".trees");
const WORDS = {
  root: "the last token before this step",
  accepted: "accepted: the target agrees",
  rejected: "rejected: the target chose otherwise",
  unreached: "not reached: an earlier guess was rejected",
  target: "the target's own token",
};
const STEP_SECONDS = 0.9;

const state = {
  run: null,
  steps: new Map(),
  index: 0,
  following: true,
  selected: 0,
  view: null,
  asked: null,
  playing: null,
  wanted: null,
  drawn: {},
};
const drawSoon = onceAFrame(root, () => draw());

// ---- skeleton

const empty = make("p", "empty", "Ask something under Chat or start a race: the draft trees of the last run appear here.");
const body = make("div", "trees-body");
const origin = make("p", "origin");
const originMark = make("span", "origin-mark recorded", "recorded run");
const originText = make("span");
origin.append(originMark, originText);
const title = make("h3");
const subtitle = make("p", "facts");
const previous = makeButton("step-button", "‹", () => goTo(state.index - 1), "Previous step");
const play = makeButton("player-play", "▶ Play", () => (state.playing ? stopPlaying() : startPlaying()));
const next = makeButton("step-button", "›", () => goTo(state.index + 1), "Next step");
const strip = makeSvg("svg", { class: "step-strip", preserveAspectRatio: "none", "aria-hidden": "true" });
const slider = make("input", "step-slider");
const position = make("output", "step-position");
const summary = make("p", "step-summary");
const stage = make("div", "tree-stage");
const scroller = make("div", "tree-scroller");
const canvas = make("div", "tree-canvas");
const inspector = make("section", "inspector");
const detail = make("p", "node-detail");
const inspectorBody = make("div", "inspector-body");
const answer = make("div", "token-text answer-so-far");
const table = make("tbody");
const showFallen = make("input");

slider.type = "range";
slider.min = "0";
slider.setAttribute("aria-label", "Step");
scroller.tabIndex = -1;
canvas.setAttribute("role", "tree");
inspector.setAttribute("aria-label", "The chosen token");
inspector.append(detail, inspectorBody);
answer.tabIndex = 0;
answer.setAttribute("role", "region");
answer.setAttribute("aria-label", "The answer; the tokens of this step are marked");
showFallen.type = "checkbox";
showFallen.addEventListener("change", () => {
  state.drawn.run = null;
  draw();
});

const controls = make("div", "step-controls");
controls.append(previous, play, next, slider, position);
scroller.append(canvas);
stage.append(scroller, inspector);
const answerHeading = make("div", "panel-heading answer-heading");
const fallenLabel = make("label", "check");
fallenLabel.append(showFallen, " show rejected guesses in place");
answerHeading.append(make("h4", "", "The answer, this step marked"), fallenLabel);
body.append(origin, title, subtitle, make("p", "strip-caption", "Tokens emitted by each step; the pale bar is step 0, which reads the prompt"), strip, controls, summary, stage, makeTreeLegend());
body.append(answerHeading, answer, makeTable(), makeDownloads());
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
  legend.append(make("li", "", "% and line width: how likely the draft head found the token · ␣ space · ⏎ new line · ⇥ tab"));
  legend.append(make("li", "", "Keys: arrows walk the tree, [ and ] change the step, space plays"));
  return legend;
}

function makeTable() {
  const details = make("details");
  const head = make("tr");
  for (const name of ["Token", "After", "Depth", "Draft", "Target", "Verdict"]) {
    const cell = make("th", "", name);
    cell.scope = "col";
    head.append(cell);
  }
  const frame = make("table");
  const header = make("thead");
  header.append(head);
  frame.append(header, table);
  const roll = make("div", "table-scroller");
  roll.append(frame);
  details.append(make("summary", "", "This step as a table"), roll);
  return details;
}

function makeDownloads() {
  const box = make("div", "downloads");
  const name = (ending) => `draft-tree-${(state.view.example || "run") + "-step-" + state.index}.${ending}`;
  const picture = () => treePicture(state.steps.get(state.index), WIDE, `Step ${state.index}: ${state.steps.get(state.index).summary}`);
  box.append(
    make("span", "facts", "Download:"),
    makeButton("plain-button", "tree SVG", () => download(name("svg"), picture().text, "image/svg+xml")),
    makeButton("plain-button", "tree PNG", () => downloadPng(name("png"), picture())),
    makeButton("plain-button", "run JSON", () => downloadRun("json")),
    makeButton("plain-button", "run CSV", () => downloadRun("csv")),
    makeLinkButton(() => ({ tab: "trees", example: state.view.example, step: String(state.index) }))
  );
  return box;
}

// The whole run is needed: what is missing is fetched first.
function downloadRun(kind) {
  if (state.steps.size < state.view.count) {
    state.wanted = kind;
    trigger("need_steps", { all: true });
    return;
  }
  state.wanted = null;
  const steps = [...state.steps.values()].sort((left, right) => left.index - right.index);
  const { prompt, about, origin: from, tokens } = state.view;
  if (kind === "csv") download("draft-trees.csv", runAsCsv(steps), "text/csv");
  else download("draft-trees.json", JSON.stringify({ prompt, about, origin: from, tokens, steps }), "application/json");
}

// ---- drawing

function draw() {
  const view = state.view;
  empty.hidden = Boolean(view);
  body.hidden = !view;
  if (!view) return;
  origin.hidden = !view.origin;
  setText(originText, view.origin.replace(/^Recorded /, ""));
  setText(title, view.prompt);
  setText(subtitle, view.about);
  slider.max = String(view.count - 1);
  slider.value = String(state.index);
  setText(position, `Step ${state.index} of ${view.count - 1}`);
  previous.disabled = state.index === 0;
  next.disabled = state.index >= view.count - 1;
  body.querySelector(".link-button").hidden = !view.example;
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
  const size = root.clientWidth < 600 ? NARROW : WIDE;
  const key = `${state.run}:${step.index}:${size.width}`;
  if (state.drawn.tree === key) return;
  const focused = canvas.contains(document.activeElement);
  state.drawn.tree = key;
  state.selected = 0;
  canvas.setAttribute("aria-label", `Draft tree of step ${step.index}. ${step.summary}`);
  const nodes = step.texts.map((_, node) => drawNode(step, node, size));
  canvas.replaceChildren(sizedEdges(canvas, step, size), ...nodes);
  const fallen = step.statuses.indexOf("rejected");
  select(step, fallen > 0 ? fallen : step.statuses.length - 1, focused);
  scroller.scrollLeft = 0;
}

function childrenOf(step, wanted) {
  return step.parents
    .flatMap((parent, child) => (parent === wanted ? [child] : []))
    .sort((left, right) => step.rows[left] - step.rows[right]);
}

function describe(step, node) {
  const probability = step.probabilities[node];
  const guess = probability === null ? "" : `, draft probability ${percent(probability)}`;
  return `“${step.texts[node]}”, depth ${step.columns[node]}${guess}: ${WORDS[step.statuses[node]]}`;
}

function drawNode(step, node, size) {
  const box = nodeBox(step, node, size);
  const siblings = step.parents[node] < 0 ? [node] : childrenOf(step, step.parents[node]);
  box.setAttribute("role", "treeitem");
  box.setAttribute("aria-level", String(step.columns[node] + 1));
  box.setAttribute("aria-setsize", String(siblings.length));
  box.setAttribute("aria-posinset", String(siblings.indexOf(node) + 1));
  box.setAttribute("aria-label", describe(step, node));
  box.title = describe(step, node);
  box.tabIndex = -1;
  box.dataset.node = String(node);
  return box;
}

function select(step, node, focus) {
  state.selected = node;
  for (const box of canvas.querySelectorAll(".node")) {
    const chosen = Number(box.dataset.node) === node;
    box.setAttribute("aria-selected", String(chosen));
    box.tabIndex = chosen ? 0 : -1;
    if (chosen && focus) box.focus({ preventScroll: true });
    if (chosen && focus) box.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
  setText(detail, describe(step, node));
  inspect(step, node);
}

// ---- the inspector

function inspect(step, node) {
  const status = step.statuses[node];
  const parent = step.parents[node];
  const parts = [];
  const reason = reasonFor(step, node);
  if (reason) parts.push(make("p", "reason", reason));
  const siblings = parent < 0 ? [] : childrenOf(step, parent).filter((child) => step.probabilities[child] !== null);
  if (status !== "root") {
    const list = make("dl", "inspector-facts");
    const fact = (name, value) => value && list.append(make("dt", "", name), make("dd", "", value));
    const ranked = [...siblings].sort((left, right) => step.probabilities[right] - step.probabilities[left]);
    fact("draft probability", percent(step.probabilities[node]));
    fact("target probability", percent(step.target[node]));
    if (siblings.includes(node)) fact("rank among its siblings", `${ranked.indexOf(node) + 1} of ${siblings.length}`);
    parts.push(list);
  }
  if (siblings.length) {
    parts.push(make("h4", "", `Guesses after “${step.texts[parent]}”: draft and target`));
    const rows = siblings.map((child) => [step.texts[child], step.probabilities[child], step.target[child], child === node]);
    parts.push(probabilityRows(rows));
  }
  const place = [0, ...step.path].indexOf(parent < 0 ? 0 : parent);
  const top = place >= 0 ? step.tops[place] : undefined;
  if (top) {
    const chosen = parent < 0 ? null : step.texts[chosenChild(step, parent)];
    parts.push(make("h4", "", `The target's own likeliest tokens after “${step.texts[parent < 0 ? 0 : parent]}”`));
    parts.push(probabilityRows(top.map(([text, probability]) => [text, null, probability, text === chosen])));
  }
  inspectorBody.replaceChildren(...parts);
}

// What the target emitted after a node: its accepted child, or its own token.
function chosenChild(step, parent) {
  return step.parents.findIndex((above, child) => above === parent && (step.statuses[child] === "accepted" || step.statuses[child] === "target"));
}

function reasonFor(step, node) {
  const status = step.statuses[node];
  const parent = step.parents[node];
  const likely = (child) => (step.target[child] === undefined || step.target[child] === null ? "" : ` (${percent(step.target[child])})`);
  if (status === "root") return "Every tree grows from the last token that was already emitted.";
  if (status === "accepted") return `The target, asked for its own next token here, took the same one${likely(node)}.`;
  if (status === "target") {
    const guesses = childrenOf(step, parent).length - 1;
    if (!guesses) return "Nothing was guessed here. Each step ends with one token of the target's own, at no extra cost.";
    return `None of the ${guesses} guess${guesses === 1 ? "" : "es"} here was the target's choice, so it put its own${likely(node)}.`;
  }
  if (status === "rejected") {
    const chosen = chosenChild(step, parent);
    const instead = chosen < 0 ? "another token" : `“${step.texts[chosen]}”${likely(chosen)}`;
    return `After “${step.texts[parent]}” the target took ${instead}; this guess had ${percent(step.target[node]) || "less"}.`;
  }
  let fallen = parent;
  while (fallen > 0 && step.statuses[fallen] === "unreached") fallen = step.parents[fallen];
  if (step.statuses[fallen] === "accepted" || fallen <= 0) return "The answer ended before this guess.";
  return `It hangs below “${step.texts[fallen]}”, which was rejected, so it could not stand whatever it was.`;
}

function probabilityRows(rows) {
  const list = make("ol", "probability-rows");
  for (const [text, draft, target, chosen] of rows) {
    const row = make("li", chosen ? "chosen" : "");
    const bars = make("span", "twin-bars");
    for (const [kind, value] of [["draft", draft], ["target", target]]) {
      if (value === null || value === undefined) continue;
      const bar = make("span", `twin ${kind}`);
      bar.style.width = `${100 * value}%`;
      const line = make("span", "twin-line");
      line.append(bar);
      bars.append(line);
    }
    const values = [draft, target].filter((value) => value !== null && value !== undefined).map(percent);
    row.append(make("span", "label", text), bars, make("span", "probability", values.join(" / ")));
    list.append(row);
  }
  return list;
}

// ---- the answer

function drawAnswer(view, step) {
  if (state.drawn.run !== state.run) {
    answer.replaceChildren();
    state.drawn = { ...state.drawn, run: state.run, tokens: 0, fallen: -1 };
  }
  for (const [text, drafted, index] of view.tokens.slice(state.drawn.tokens)) {
    const span = tokenSpan(text, 0, index);
    if (drafted) span.dataset.drafted = "1";
    else if (showFallen.checked && view.fallen[index]) answer.append(fallenSpan(view.fallen[index], index));
    answer.append(span);
  }
  state.drawn.tokens = view.tokens.length;
  let here = null;
  for (const span of answer.children) {
    const index = Number(span.dataset.step);
    const current = index === step.index;
    span.classList.toggle("current", current);
    span.classList.toggle("accepted", current && span.dataset.drafted === "1");
    span.classList.toggle("target", current && span.dataset.drafted !== "1" && !span.classList.contains("fallen"));
    span.classList.toggle("later", index > step.index);
    if (current) here = span;
  }
  if (here) answer.scrollTop = here.offsetTop - answer.offsetTop - answer.clientHeight / 2;
}

function fallenSpan(text, index) {
  const span = make("del", "token fallen", text.replaceAll("\n", "⏎"));
  span.dataset.step = String(index);
  return span;
}

function drawTable(step) {
  table.replaceChildren(
    ...step.texts.map((text, node) => {
      const row = make("tr");
      const parent = step.parents[node];
      const cells = [text, parent < 0 ? "–" : step.texts[parent], step.columns[node], percent(step.probabilities[node]) || "–"];
      for (const cell of [...cells, percent(step.target[node]) || "–", WORDS[step.statuses[node]]]) row.append(make("td", "", String(cell)));
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

function startPlaying() {
  if (state.index >= state.view.count - 1) state.index = -1;
  setText(play, "❚❚ Pause");
  goTo(state.index + 1);
  state.playing = setInterval(() => {
    if (!root.isConnected || state.index >= state.view.count - 1) stopPlaying();
    else goTo(state.index + 1);
  }, 1000 * STEP_SECONDS);
}

function stopPlaying() {
  clearInterval(state.playing);
  state.playing = null;
  setText(play, "▶ Play");
}

strip.addEventListener("click", (event) => {
  const box = strip.getBoundingClientRect();
  goTo(Math.floor(((event.clientX - box.left) / box.width) * state.view.count));
});
slider.addEventListener("input", () => {
  stopPlaying();
  goTo(Number(slider.value));
});
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
  const siblings = childrenOf(step, step.parents[node]);
  const place = siblings.indexOf(node);
  if (key === "ArrowLeft") return step.parents[node];
  if (key === "ArrowRight") return childrenOf(step, node)[0];
  if (key === "ArrowUp") return siblings[place - 1];
  if (key === "ArrowDown") return siblings[place + 1];
  if (key === "Home") return 0;
  if (key === "End") return step.texts.length - 1;
  return undefined;
}

const STEP_KEYS = { "[": -1, "]": 1, PageUp: -1, PageDown: 1 };

root.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || !state.view) return;
  if (event.key in STEP_KEYS && !(event.key.startsWith("Page") && event.target === slider)) {
    stopPlaying();
    goTo(state.index + STEP_KEYS[event.key]);
    event.preventDefault();
    return;
  }
  if (event.key === " " && !event.target.closest("button, input, summary, select")) {
    state.playing ? stopPlaying() : startPlaying();
    event.preventDefault();
    return;
  }
  const step = state.steps.get(state.index);
  const box = event.target.closest(".node");
  if (!step || !box) return;
  state.selected = Number(box.dataset.node);
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
      Object.assign(state, { run: view.run, steps: new Map(), following: true, asked: null, wanted: null });
      state.drawn = {};
      stopPlaying();
    }
    for (const [index, step] of Object.entries(view.steps)) state.steps.set(Number(index), step);
    state.view = view;
    state.asked = null;
    const moves = view.finished || !matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (Number.isInteger(view.focus)) {
      state.index = Math.max(0, Math.min(view.focus, view.count - 1));
      state.following = false;
    } else if (state.following && moves && !state.playing) state.index = view.count - 1;
    if (state.wanted) downloadRun(state.wanted);
  }
  drawSoon();
}

new IntersectionObserver((entries) => {
  if (entries.some((entry) => entry.isIntersecting)) drawSoon();
}).observe(root);

watch("value", receive);
receive();
