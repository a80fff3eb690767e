// The panel beside a conversation: figures of an answer, and its tokens one by one.

const root = element.querySelector(".answer");
const IDLE = "Speed and tokens of the answer appear here.";
const empty = make("p", "empty", IDLE);
const body = make("div", "answer-body");
const method = make("h3");
const copy = makeButton("plain-button", "Copy answer", copyAnswer);
const speed = makeFigure("tokens per second", "decoding only, measured in the engine");
const acceptance = makeFigure("acceptance length", "tokens gained per forward pass of the target; plain decoding is 1");
const facts = make("p", "facts");
const text = make("div", "token-text");
text.tabIndex = 0;
text.setAttribute("role", "region");
text.setAttribute("aria-label", "The answer, token by token");
const words = new TokenText(text);
const status = new StatusLine();

const pager = make("div", "pager");
const older = makeButton("plain-button", "‹", () => turn(-1), "Previous answer");
const newer = makeButton("plain-button", "›", () => turn(1), "Next answer");
const place = make("span", "facts");
pager.append(older, place, newer);

const heading = make("div", "panel-heading");
const actions = make("span", "actions");
actions.append(pager, copy, makeButton("plain-button trees-button", "Draft trees →", () => openTrees()));
heading.append(method, actions);
const figures = make("div", "figures");
figures.append(speed.box, acceptance.box);
body.append(heading, figures, facts, text, makeLegend());
root.append(empty, body, status.box);

async function copyAnswer() {
  await navigator.clipboard.writeText(props.value.tokens.map(([part]) => part).join(""));
  setText(copy, "Copied");
  setTimeout(() => setText(copy, "Copy answer"), 1500);
}

function openTrees(index) {
  trigger("open_step", { run: props.value.run, index });
}

function turn(direction) {
  const { answers, run } = props.value;
  const wanted = answers[answers.indexOf(run) + direction];
  if (wanted !== undefined) trigger("show_answer", { run: wanted });
}

text.addEventListener("click", (event) => {
  const token = event.target.closest("[data-step]");
  if (token) openTrees(Number(token.dataset.step));
});

function draw() {
  const view = props.value || {};
  const started = view.run !== undefined;
  empty.hidden = started;
  body.hidden = !started;
  setText(empty, view.waiting ? "Waiting for the model …" : IDLE);
  if (!started) return;
  setText(method, view.method);
  // Browsers lend the clipboard to https and localhost only.
  copy.hidden = !view.finished || !navigator.clipboard;
  speed.show(view.numbers.tokens_per_second);
  acceptance.show(view.numbers.acceptance_length);
  const { tokens, target_forwards: forwards, drafts_accepted: accepted, seconds } = view.numbers;
  setText(facts, `${tokens} tokens from ${forwards} forward passes in ${seconds} s. Drafted tokens accepted: ${accepted}.`);
  words.show(view.run, view.tokens);
  const answers = view.answers || [view.run];
  const here = answers.indexOf(view.run);
  pager.hidden = answers.length < 2;
  setText(place, `${here + 1} of ${answers.length}`);
  older.disabled = here <= 0;
  newer.disabled = here >= answers.length - 1;
  if (view.finished) status.say(`Answer finished: ${view.note}`, true);
}

watch("value", draw);
draw();
