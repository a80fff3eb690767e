// Shared by all drawings. Text only ever enters the page as textContent.

function make(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// One emitted token; line breaks are shown and kept.
function tokenSpan(text, drafted) {
  const span = make("span", drafted ? "token drafted" : "token");
  String(text).split("\n").forEach((part, index) => {
    if (index > 0) {
      const mark = make("span", "line-break", "⏎");
      mark.setAttribute("aria-hidden", "true");
      span.append(mark, "\n");
    }
    span.append(part);
  });
  return span;
}

// An answer that grows: only new tokens are added, and the end stays in view unless the reader scrolled up.
class TokenText {
  constructor(box) {
    this.box = box;
    this.reset(null);
  }

  reset(run) {
    this.run = run;
    this.drawn = 0;
    this.box.replaceChildren();
  }

  show(run, tokens) {
    if (run !== this.run || tokens.length < this.drawn) this.reset(run);
    if (tokens.length === this.drawn) return;
    const atEnd = this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < 40;
    const fresh = tokens.slice(this.drawn).map(([text, drafted]) => tokenSpan(text, drafted));
    this.box.append(...fresh);
    this.drawn = tokens.length;
    if (atEnd) this.box.scrollTop = this.box.scrollHeight;
  }
}

// A figure with its name and, in plain words, what it means.
function makeFigure(name, meaning) {
  const box = make("div", "figure");
  const value = make("span", "figure-value", "–");
  box.append(value, make("span", "figure-name", name), make("span", "figure-meaning", meaning));
  return { box, show: (text) => setText(value, text) };
}

// Opens the tab with the draft trees of the last run.
function makeTreesButton() {
  const button = make("button", "plain-button", "Draft trees →");
  button.type = "button";
  button.addEventListener("click", () => trigger("show_trees"));
  return button;
}

function makeLegend() {
  const legend = make("p", "legend");
  legend.append(tokenSpan("marked", 1), " tokens were guessed by the draft head, and the target agreed; the others are the target's own.");
  return legend;
}
