// The parts of a drawn tree: boxes for nodes and curves between them. Places come from Python.

const WIDE = { column: 160, row: 40, width: 128, height: 30 };
const NARROW = { column: 124, row: 38, width: 106, height: 28 };
const GLYPHS = { root: "●", accepted: "✓", rejected: "✕", unreached: "", target: "★" };

const percent = (value) => (value === null || value === undefined ? "" : value < 0.005 ? "<1%" : `${Math.round(100 * value)}%`);
const edgeWidth = (probability) => (probability === null ? 3 : 1 + 4 * probability).toFixed(1);

function nodeBox(step, node, size, status = step.statuses[node]) {
  const box = make("div", `node ${status}`);
  box.style.left = `${step.columns[node] * size.column}px`;
  box.style.top = `${step.rows[node] * size.row}px`;
  box.style.width = `${size.width}px`;
  box.style.height = `${size.height}px`;
  if (GLYPHS[status]) box.append(make("span", "glyph", GLYPHS[status]));
  box.append(make("span", "label", step.texts[node]), make("span", "probability", percent(step.probabilities[node])));
  return box;
}

// Gives the canvas the tree's size and returns its edges; `nodes` limits them to some nodes.
function sizedEdges(canvas, step, size, nodes = step.texts.map((_, node) => node), statuses = step.statuses) {
  const width = Math.max(...nodes.map((node) => step.columns[node])) * size.column + size.width;
  const height = Math.max(...nodes.map((node) => step.rows[node])) * size.row + size.height;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const svg = makeSvg("svg", { width, height, "aria-hidden": "true" });
  for (const node of nodes) {
    const parent = step.parents[node];
    if (parent < 0) continue;
    const startX = step.columns[parent] * size.column + size.width;
    const startY = step.rows[parent] * size.row + size.height / 2;
    const endX = step.columns[node] * size.column;
    const endY = step.rows[node] * size.row + size.height / 2;
    const middle = (startX + endX) / 2;
    const curve = `M${startX} ${startY}C${middle} ${startY} ${middle} ${endY} ${endX} ${endY}`;
    const edge = makeSvg("path", { d: curve, class: `edge ${statuses[node]}` });
    edge.style.strokeWidth = edgeWidth(step.probabilities[node]);
    svg.append(edge);
  }
  return svg;
}
