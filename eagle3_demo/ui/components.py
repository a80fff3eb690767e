"""Our drawings: `gr.HTML` with a constant template, JSON as its value, and our own JavaScript that only sets text.

Nothing from a model is ever put into a template, which would run it as script.
"""

from __future__ import annotations

from pathlib import Path

import gradio as gr

STATIC = Path(__file__).parent / "static"


def drawing(name: str, render: bool = True) -> gr.HTML:
    """A component that `static/<name>.js` draws from its JSON value, inside `<div class="<name>">`."""
    script = "\n".join((STATIC / file).read_text(encoding="utf-8") for file in ("shared.js", f"{name}.js"))
    return gr.HTML(
        {},
        html_template=f'<div class="{name}"></div>',
        js_on_load=script,
        apply_default_css=False,
        elem_id=name,
        elem_classes="drawing",
        render=render,
    )
