"""One HTML file with the recorded races and their trees: our own drawings and data, no Python, no network.

Token text is in the file as JSON inside a script element, with every `<` escaped, and enters the page as text only.
"""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

from eagle3_demo.errors import UserError
from eagle3_demo.ui.examples import Example, load_examples
from eagle3_demo.ui.static_files import STATIC, STYLE_SHEETS, script

_DRAWINGS = ("board", "trees")


def viewer_page(traces: Path) -> str:
    """The whole page as text.

    Raises:
        UserError: the folder holds no recorded races, or a damaged one.
    """
    examples = load_examples(traces)
    if not examples:
        raise UserError(f"{traces} holds no recorded races; record some with `python -m eagle3_demo record-traces`")
    data = {name: _example(example) for name, example in examples.items()}
    styles = "\n".join(path.read_text(encoding="utf-8") for path in (STATIC / "viewer.css", *STYLE_SHEETS))
    drawings = ",\n".join(
        f"{name}: function (element, props, watch, trigger) {{\n{script(name)}\n}}" for name in _DRAWINGS
    )
    return _PAGE.format(
        title=html.escape("EAGLE-3, recorded"),
        styles=styles,
        data=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
        drawings=drawings,
        viewer=(STATIC / "viewer.js").read_text(encoding="utf-8"),
    )


def _example(example: Example) -> dict[str, Any]:
    race = example.comparison
    return {
        "label": f"{example.label} · {example.acceptance_length:.1f}",
        "prompt": example.prompt,
        "board": race.view(autoplay=True),
        "trees": {
            side: recording.tree_view(everything=True) | {"focus": recording.best_step()}
            for side, recording in (("left", race.left), ("right", race.right))
        },
    }


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{styles}
</style>
</head>
<body>
<main class="gradio-container viewer">
<header class="page-header">
<h1>EAGLE-3, recorded</h1>
<p>A small <b>draft head</b> guesses several tokens ahead; the large <b>target model</b> checks all guesses in one
pass and keeps the right ones. These are recorded runs of a real model; each says where it was recorded.</p>
</header>
<nav id="examples" aria-label="Recorded prompts"></nav>
<p id="example-prompt"></p>
<div role="tablist" class="viewer-tabs" aria-label="Views">
<button role="tab" id="tab-race" aria-controls="race" type="button">Race</button>
<button role="tab" id="tab-trees" aria-controls="trees" type="button">Draft trees</button>
</div>
<div role="tabpanel" id="race" class="drawing" aria-labelledby="tab-race"><div class="board"></div></div>
<div role="tabpanel" id="trees" class="drawing" aria-labelledby="tab-trees"><div class="trees"></div></div>
</main>
<script type="application/json" id="recorded">{data}</script>
<script>
"use strict";
const drawings = {{
{drawings}
}};
{viewer}
</script>
</body>
</html>
"""
