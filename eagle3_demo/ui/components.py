"""Our drawings: `gr.HTML` with a constant template, JSON as its value, and our own JavaScript that only sets text.

Nothing from a model is ever put into a template, which would run it as script.
"""

from __future__ import annotations

from typing import Any

import gradio as gr

from eagle3_demo.ui.static_files import script


def drawing(name: str, value: dict[str, Any] | None = None, render: bool = True) -> gr.HTML:
    """A component that our JavaScript draws from its JSON value, inside `<div class="<name>">`."""
    return gr.HTML(
        value or {},
        html_template=f'<div class="{name}"></div>',
        js_on_load=script(name),
        apply_default_css=False,
        elem_id=name,
        elem_classes="drawing",
        render=render,
    )
