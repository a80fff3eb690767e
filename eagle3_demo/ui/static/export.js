// Files of what is drawn: one tree as SVG or PNG, a whole run as JSON or CSV. Made in the browser, from the same data.

const FILE_COLOURS = {
  root: ["#eef1f5", "#5b6678", ""],
  accepted: ["#e0eef7", "#0072b2", ""],
  rejected: ["#ffffff", "#d55e00", "5 3"],
  unreached: ["#ffffff", "#5b6678", "1 3"],
  target: ["#ffffff", "#007a5a", ""],
};

function download(name, content, type) {
  const link = make("a");
  link.href = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// A picture of one tree that stands alone: colours and fonts inside, on white.
function treePicture(step, size, title) {
  const margin = 16;
  const top = 44;
  const width = Math.max(...step.columns) * size.column + size.width + 2 * margin;
  const height = Math.max(...step.rows) * size.row + size.height + top + margin;
  const svg = makeSvg("svg", { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}`, "font-family": "monospace", "font-size": 12 });
  const name = makeSvg("title", {});
  name.textContent = title;
  const heading = makeSvg("text", { x: margin, y: 24, "font-family": "sans-serif", fill: "#1f2937" });
  heading.textContent = title;
  svg.append(name, makeSvg("rect", { width, height, fill: "#ffffff" }), heading);
  const left = (node) => margin + step.columns[node] * size.column;
  const upper = (node) => top + step.rows[node] * size.row;
  step.parents.forEach((parent, node) => {
    if (parent < 0) return;
    const [, colour, dashes] = FILE_COLOURS[step.statuses[node]];
    const from = [left(parent) + size.width, upper(parent) + size.height / 2];
    const to = [left(node), upper(node) + size.height / 2];
    const middle = (from[0] + to[0]) / 2;
    svg.append(
      makeSvg("path", {
        d: `M${from}C${middle} ${from[1]} ${middle} ${to[1]} ${to}`,
        fill: "none",
        stroke: colour,
        "stroke-width": edgeWidth(step.probabilities[node]),
        "stroke-dasharray": dashes || "none",
      })
    );
  });
  step.texts.forEach((text, node) => {
    const status = step.statuses[node];
    const [fill, colour, dashes] = FILE_COLOURS[status];
    const box = { x: left(node), y: upper(node), width: size.width, height: size.height, rx: status === "root" ? 15 : 5 };
    svg.append(makeSvg("rect", { ...box, fill, stroke: colour, "stroke-width": status === "accepted" ? 2.5 : 1.5, "stroke-dasharray": dashes || "none" }));
    if (status === "target") {
      svg.append(makeSvg("rect", { x: box.x + 3, y: box.y + 3, width: box.width - 6, height: box.height - 6, rx: 3, fill: "none", stroke: colour }));
    }
    const label = makeSvg("text", { x: box.x + 8, y: box.y + 19, fill: "#1f2937", "text-decoration": status === "rejected" ? "line-through" : "none" });
    label.textContent = `${GLYPHS[status]} ${text.length > 11 ? `${text.slice(0, 10)}…` : text}`;
    const probability = makeSvg("text", { x: box.x + box.width - 7, y: box.y + 19, fill: "#5b6678", "text-anchor": "end", "font-size": 10 });
    probability.textContent = percent(step.probabilities[node]);
    svg.append(label, probability);
  });
  return { text: new XMLSerializer().serializeToString(svg), width, height };
}

function downloadPng(name, picture) {
  const image = new Image();
  const address = URL.createObjectURL(new Blob([picture.text], { type: "image/svg+xml" }));
  image.addEventListener("load", () => {
    const sheet = make("canvas");
    sheet.width = 2 * picture.width;
    sheet.height = 2 * picture.height;
    sheet.getContext("2d").drawImage(image, 0, 0, sheet.width, sheet.height);
    URL.revokeObjectURL(address);
    sheet.toBlob((blob) => download(name, blob, "image/png"), "image/png");
  });
  image.src = address;
}

// One line a node. A cell that a spreadsheet would take for a formula starts with an apostrophe.
function runAsCsv(steps) {
  const cell = (value) => {
    const text = String(value ?? "");
    return `"${(typeof value === "string" && /^[=+\-@]/.test(text) ? `'${text}` : text).replaceAll('"', '""')}"`;
  };
  const head = ["step", "node", "parent", "depth", "token", "draft_probability", "target_probability", "verdict", "draft_ms", "verify_ms", "commit_ms"];
  const lines = [head.map(cell).join(",")];
  for (const step of steps) {
    const { draft, verify, commit } = step.milliseconds;
    step.texts.forEach((text, node) => {
      const row = [step.index, node, step.parents[node], step.columns[node], text, step.probabilities[node], step.target[node], step.statuses[node]];
      lines.push([...row, draft, verify, commit].map(cell).join(","));
    });
  }
  return lines.join("\r\n");
}
