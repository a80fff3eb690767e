"""The page as a whole: header, settings, four tabs. `build` needs an engine and nothing else."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from typing import Any

import gradio as gr

from eagle3_demo.engine import DecodingEngine
from eagle3_demo.ui.chat import build_chat
from eagle3_demo.ui.compare import build_compare
from eagle3_demo.ui.controls import build_controls
from eagle3_demo.ui.events import PLUMBING, Visitors
from eagle3_demo.ui.session import Session
from eagle3_demo.ui.theme import STYLE_SHEETS, page_theme
from eagle3_demo.ui.training import build_training
from eagle3_demo.ui.trees import build_trees, tree_drawing

QUEUE_LENGTH = 20

_PRECISIONS = {"packed16": "packed16 (16-bit weights)", "gguf": "gguf (the file's own 4- and 8-bit weights)"}
_OPEN_SIDEBAR_WHEN_WIDE = "() => [window.innerWidth > 1000]"


@dataclass(frozen=True, slots=True)
class Page:
    """What `launch` needs: Gradio 6 takes theme, style and the like at launch, not in Blocks."""

    blocks: gr.Blocks
    launch_arguments: dict[str, Any] = field(default_factory=dict)

    def launch(self, **arguments: Any) -> str:
        """Starts serving without blocking and returns the address; `arguments` are Gradio's."""
        _, address, _ = self.blocks.launch(prevent_thread_lock=True, quiet=True, **self.launch_arguments, **arguments)
        return address


def build(engine: DecodingEngine) -> Page:
    """The page for one engine, ready to launch."""
    visitors = Visitors()
    with gr.Blocks(title="EAGLE-3, live", analytics_enabled=False) as blocks:
        session = gr.State(Session())
        tree = tree_drawing()
        with gr.Sidebar(open=False, width=300, elem_id="settings") as sidebar:
            gr.HTML("<h2>Settings</h2>", apply_default_css=False)
            controls = build_controls(engine)
        gr.HTML(_header(engine), apply_default_css=False, elem_id="header")
        with gr.Tabs() as tabs:
            with gr.Tab("Chat", id="chat"):
                build_chat(engine, visitors, session, controls, tree, tabs)
            with gr.Tab("Compare", id="compare"):
                build_compare(engine, visitors, session, controls, tree, tabs)
            with gr.Tab("Draft trees", id="trees"):
                build_trees(tree, session)
            with gr.Tab("Training", id="training"):
                build_training()
        wide = gr.Checkbox(visible=False)
        blocks.load(
            lambda wide: gr.Sidebar(open=bool(wide)),
            wide,
            sidebar,
            js=_OPEN_SIDEBAR_WHEN_WIDE,
            **PLUMBING,
        )
        blocks.unload(visitors.leave)
    blocks.queue(max_size=QUEUE_LENGTH)
    return Page(
        blocks,
        {
            "theme": page_theme(),
            "css_paths": STYLE_SHEETS,
            "footer_links": ["gradio", "settings"],
            "run_history": False,
            "show_error": True,
            "ssr_mode": False,
        },
    )


def _header(engine: DecodingEngine) -> str:
    """Title, promise and what is loaded; every value escaped."""
    facts = {
        "Target model": engine.target_name,
        "Draft head": engine.head_name or "none",
        "Device": engine.device,
        "Precision": _PRECISIONS.get(engine.dtype, engine.dtype),
    }
    items = "".join(
        f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>" for name, value in facts.items()
    )
    return f"""<header class="page-header">
<h1>EAGLE-3, live</h1>
<p>A small <b>draft head</b> guesses several tokens ahead; the large <b>target model</b> checks all guesses in one
pass and keeps the right ones. The answer is the same; how much sooner it comes is measured.</p>
<dl>{items}</dl>
</header>"""
