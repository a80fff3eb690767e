// The exported page: the same drawings as the live one, fed from the data in this file in place of a server.

const recorded = JSON.parse(document.getElementById("recorded").textContent);
const tabs = ["race", "trees"];
const query = new URLSearchParams(location.search);
const mounted = {};
let current = null;

function mount(name, host, handlers) {
  const listeners = [];
  const props = { value: {} };
  drawings[name](
    host,
    props,
    (_, listener) => listeners.push(listener),
    (event, data) => handlers[event](data || {})
  );
  mounted[name] = (value) => {
    props.value = value;
    listeners.forEach((listener) => listener());
  };
}

function openTab(name) {
  for (const tab of tabs) {
    const chosen = tab === name;
    const button = document.getElementById(`tab-${tab}`);
    button.setAttribute("aria-selected", String(chosen));
    button.tabIndex = chosen ? 0 : -1;
    document.getElementById(tab).hidden = !chosen;
  }
}

function openExample(name, step) {
  current = name;
  const example = recorded[name];
  document.getElementById("example-prompt").textContent = example.prompt;
  for (const button of document.querySelectorAll("#examples button")) {
    button.setAttribute("aria-pressed", String(button.dataset.name === name));
  }
  mounted.board(example.board);
  mounted.trees({ ...example.trees.right, focus: step ?? example.trees.right.focus });
}

mount("board", document.getElementById("race"), {
  open_step: ({ side, index }) => {
    const trees = recorded[current].trees[side === "left" ? "left" : "right"];
    openTab("trees");
    mounted.trees({ ...trees, focus: index ?? trees.focus });
  },
});
mount("trees", document.getElementById("trees"), { need_steps: () => {} });

for (const [name, example] of Object.entries(recorded)) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "plain-button";
  button.textContent = example.label;
  button.dataset.name = name;
  button.addEventListener("click", () => openExample(name));
  document.getElementById("examples").append(button);
}
for (const tab of tabs) {
  const button = document.getElementById(`tab-${tab}`);
  button.addEventListener("click", () => openTab(tab));
  button.addEventListener("keydown", (event) => {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    const other = tabs[1 - tabs.indexOf(tab)];
    openTab(other);
    document.getElementById(`tab-${other}`).focus();
  });
}

const wanted = query.get("example");
const step = /^\d{1,5}$/.test(query.get("step") || "") ? Number(query.get("step")) : undefined;
openTab(tabs.includes(query.get("tab")) ? query.get("tab") : "race");
openExample(wanted in recorded ? wanted : Object.keys(recorded)[0], step);
