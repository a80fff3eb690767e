// The panel beside a conversation: figures of the last answer, and its tokens one by one.

const root = element.querySelector(".answer");
const empty = make("p", "empty", "Speed and tokens of the answer appear here.");
const body = make("div", "answer-body");
const method = make("h3");
const copy = make("button", "plain-button", "Copy answer");
const speed = makeFigure("tokens per second", "decoding only, measured in the engine");
const acceptance = makeFigure("acceptance length", "tokens gained per forward pass of the target; plain decoding is 1");
const facts = make("p", "facts");
const text = make("div", "token-text");
text.tabIndex = 0;
text.setAttribute("aria-label", "The answer, token by token");
const words = new TokenText(text);

const heading = make("div", "panel-heading");
const actions = make("span", "actions");
actions.append(copy, makeTreesButton());
heading.append(method, actions);
const figures = make("div", "figures");
figures.append(speed.box, acceptance.box);
body.append(heading, figures, facts, text, makeLegend());
root.append(empty, body);

copy.type = "button";
copy.addEventListener("click", async () => {
  await navigator.clipboard.writeText(props.value.tokens.map(([part]) => part).join(""));
  setText(copy, "Copied");
  setTimeout(() => setText(copy, "Copy answer"), 1500);
});

function draw() {
  const view = props.value || {};
  const started = view.run !== undefined;
  empty.hidden = started;
  body.hidden = !started;
  setText(empty, view.waiting ? "Waiting for the model …" : "Speed and tokens of the answer appear here.");
  if (!started) return;
  setText(method, view.method);
  // Browsers lend the clipboard to https and localhost only.
  copy.hidden = !view.finished || !navigator.clipboard;
  speed.show(view.numbers.tokens_per_second);
  acceptance.show(view.numbers.acceptance_length);
  const { tokens, target_forwards: forwards, drafts_accepted: accepted, seconds } = view.numbers;
  setText(facts, `${tokens} tokens from ${forwards} forward passes in ${seconds} s. Drafted tokens accepted: ${accepted}.`);
  words.show(view.run, view.tokens);
}

watch("value", draw);
draw();
