"""Our JavaScript and style sheets. Free of gradio, so that an exported page is made without it."""

from __future__ import annotations

from pathlib import Path

STATIC = Path(__file__).parent / "static"

STYLE_SHEETS = [STATIC / name for name in ("page.css", "panels.css", "trees.css", "learn.css")]

_SCRIPTS = {
    "answer": ("shared.js", "answer.js"),
    "board": ("shared.js", "player.js", "why.js", "board.js"),
    "learn": ("shared.js", "tree-nodes.js", "why.js", "learn.js"),
    "trees": ("shared.js", "tree-nodes.js", "export.js", "trees.js"),
}


def script(name: str) -> str:
    """The JavaScript of a drawing: a function body over `element`, `props`, `watch` and `trigger`."""
    return "\n".join((STATIC / file).read_text(encoding="utf-8") for file in _SCRIPTS[name])
