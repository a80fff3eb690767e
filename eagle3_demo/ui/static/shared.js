// Shared by all drawings. Text only ever enters the page as textContent.

function make(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function makeSvg(name, attributes) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

function makeButton(className, text, act, label) {
  const button = make("button", className, text);
  button.type = "button";
  if (label) button.setAttribute("aria-label", label);
  button.addEventListener("click", act);
  return button;
}

// Draws once a frame however often it is asked for, and only while its tab is open.
function onceAFrame(root, draw) {
  let scheduled = false;
  return () => {
    if (scheduled || root.offsetParent === null) return;
    scheduled = true;
    requestAnimationFrame(() => {
      scheduled = false;
      draw();
    });
  };
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// One emitted token; line breaks are shown and kept.
function tokenSpan(text, drafted, step) {
  const span = make("span", drafted ? "token drafted" : "token");
  if (step !== undefined) span.dataset.step = String(step);
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

  show(run, tokens, count = tokens.length) {
    if (run !== this.run) this.reset(run);
    if (count === this.drawn) return;
    const atEnd = this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < 40;
    while (this.drawn > count) {
      this.box.lastChild.remove();
      this.drawn -= 1;
    }
    this.box.append(...tokens.slice(this.drawn, count).map(([text, drafted, step]) => tokenSpan(text, drafted, step)));
    this.drawn = count;
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

// What a screen reader is told: at most every five seconds, and the end.
class StatusLine {
  constructor() {
    this.box = make("p", "visually-hidden");
    this.box.setAttribute("role", "status");
    this.told = 0;
  }

  say(text, last) {
    const now = Date.now();
    if (!last && now - this.told < 5000) return;
    this.told = now;
    setText(this.box, text);
  }
}

// Opens the tab with the draft trees of the run.
function makeTreesButton() {
  return makeButton("plain-button trees-button", "Draft trees →", () => trigger("open_step", {}));
}

// Copies a link that opens the same recorded example, tab and step.
function makeLinkButton(parts) {
  const button = makeButton("plain-button link-button", "Copy link", async () => {
    const query = new URLSearchParams(Object.entries(parts()).filter(([, value]) => value !== undefined && value !== ""));
    const link = `${location.origin === "null" ? "" : location.origin}${location.pathname}?${query}`;
    const shown = location.protocol === "file:" ? `${location.href.split(/[?#]/)[0]}?${query}` : link;
    try {
      await navigator.clipboard.writeText(shown);
      setText(button, "Copied");
    } catch {
      window.prompt("The link:", shown);
    }
    setTimeout(() => setText(button, "Copy link"), 1500);
  });
  return button;
}

function makeLegend() {
  const legend = make("p", "legend");
  legend.append(
    tokenSpan("marked", 1),
    " tokens were guessed by the draft head, and the target agreed; the others are the target's own. Choose a token to see its tree."
  );
  return legend;
}
