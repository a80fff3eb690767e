"""The page as a whole: header, settings, tabs. `build` needs an engine, which may still be loading."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import gradio as gr

from eagle3_demo.background_engine import BackgroundEngine
from eagle3_demo.engine import DecodingEngine
from eagle3_demo.ui.api import publish
from eagle3_demo.ui.benchmarks import build_benchmarks
from eagle3_demo.ui.chat import build_chat
from eagle3_demo.ui.controls import MOST_TOKENS, build_controls
from eagle3_demo.ui.events import PLUMBING, Visitors
from eagle3_demo.ui.examples import Example, load_examples
from eagle3_demo.ui.learn import build_learn
from eagle3_demo.ui.race import build_race
from eagle3_demo.ui.session import Session
from eagle3_demo.ui.static_files import STYLE_SHEETS
from eagle3_demo.ui.theme import page_theme
from eagle3_demo.ui.training import build_training
from eagle3_demo.ui.trees import build_trees, tree_drawing

QUEUE_LENGTH = 20
TABS = ("race", "trees", "chat", "learn", "benchmarks", "training")

_PRECISIONS = {"packed16": "packed16 (16-bit weights)", "gguf": "gguf (the file's own 4- and 8-bit weights)"}
_OPEN_SIDEBAR_WHEN_WIDE = "() => [window.innerWidth > 1200]"


@dataclass(frozen=True, slots=True)
class Page:
    """What `launch` needs: Gradio 6 takes theme, style and the like at launch, not in Blocks."""

    blocks: gr.Blocks
    launch_arguments: dict[str, Any] = field(default_factory=dict)

    def launch(self, **arguments: Any) -> str:
        """Starts serving without blocking and returns the address; `arguments` are Gradio's."""
        _, address, _ = self.blocks.launch(prevent_thread_lock=True, quiet=True, **self.launch_arguments, **arguments)
        return address


def build(
    engine: DecodingEngine,
    examples: Mapping[str, Example] | None = None,
    *,
    queue_length: int | None = None,
    most_tokens: int = MOST_TOKENS,
) -> Page:
    """The page for one engine, ready to launch.

    Args:
        engine: loaded, or a `BackgroundEngine` that loads while recorded runs are shown.
        examples: recorded runs in place of those of `assets/traces`.
        queue_length: runs that may wait; `QUEUE_LENGTH` when not given. Always set, as ZeroGPU would make it 1.
        most_tokens: new tokens that a visitor or script may ask for.
    """
    examples = load_examples() if examples is None else examples
    first = next(iter(examples.values()), None)
    visitors = Visitors()
    with gr.Blocks(title="EAGLE-3, live", analytics_enabled=False) as blocks:
        session = gr.State(Session())
        tree = tree_drawing(first.comparison.right if first else None)
        with gr.Sidebar(open=False, width=300, elem_id="settings") as sidebar:
            gr.HTML("<h2>Settings</h2>", apply_default_css=False)
            controls = build_controls(engine, most_tokens)
        header = gr.HTML(_header(engine), apply_default_css=False, elem_id="header")
        _follow_loading(engine, blocks, header)
        with gr.Tabs(elem_id="tabs") as tabs:
            with gr.Tab("Race", id="race"):
                race, board, prompt = build_race(engine, visitors, session, controls, tree, tabs, examples, most_tokens)
            with gr.Tab("Draft trees", id="trees"):
                build_trees(tree, session, first.comparison.right if first else None)
            with gr.Tab("Chat", id="chat"):
                build_chat(engine, visitors, session, controls, tree, tabs, examples, most_tokens)
            with gr.Tab("Learn", id="learn"):
                build_learn(race, session, tree, tabs, first)
            with gr.Tab("Benchmarks", id="benchmarks") as benchmarks:
                build_benchmarks(benchmarks)
            with gr.Tab("Training", id="training"):
                build_training()
        publish(engine, examples, most_tokens)
        wide = gr.Checkbox(visible=False)
        blocks.load(lambda wide: gr.Sidebar(open=bool(wide)), wide, sidebar, js=_OPEN_SIDEBAR_WHEN_WIDE, **PLUMBING)
        opener = LinkOpener(examples)
        blocks.load(opener.open, session, [board, tree, prompt, tabs], **PLUMBING)
        blocks.unload(visitors.leave)
    blocks.queue(max_size=queue_length or QUEUE_LENGTH)
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


@dataclass(frozen=True, slots=True)
class LinkOpener:
    """Opens what a link names: `?example=code&tab=trees&step=12`."""

    examples: Mapping[str, Example]

    def open(self, session: Session, request: gr.Request) -> tuple[Any, ...]:
        """Board, trees, prompt and tab of the link; what it does not name, or names wrongly, stays as it is."""
        query = dict(request.query_params)
        tab = query.get("tab")
        shown = gr.Tabs(selected=tab) if tab in TABS else gr.skip()
        example = self.examples.get(query.get("example", ""))
        if example is None:
            return gr.skip(), gr.skip(), gr.skip(), shown
        session.race, session.recording = example.comparison, example.comparison.right
        text = query.get("step", "")
        step = int(text) if text.isdecimal() and len(text) < 6 else None
        tree = session.recording.opened(step)
        return example.comparison.view(autoplay=True), tree, example.prompt, shown


def _follow_loading(engine: DecodingEngine, blocks: gr.Blocks, header: gr.HTML) -> None:
    """Tells in the header how far loading is, until it is done."""
    if not isinstance(engine, BackgroundEngine):
        return
    timer = gr.Timer(1.0)
    blocks.load(lambda: _header(engine), None, header, **PLUMBING)

    def tick() -> tuple[str, gr.Timer]:
        done = engine.state.ready or engine.state.error is not None
        return _header(engine), gr.Timer(active=not done)

    timer.tick(tick, None, [header, timer], **PLUMBING)


def _header(engine: DecodingEngine) -> str:
    """Title, promise and what is loaded; every value escaped."""
    facts = {
        "Target model": engine.target_name,
        "Draft head": engine.head_name or "none",
        "Device": engine.device,
        "Precision": _PRECISIONS.get(engine.dtype, engine.dtype),
    }
    items = "".join(
        f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>"
        for name, value in facts.items()
        if value
    )
    return f"""<header class="page-header">
<h1>EAGLE-3, live</h1>
<p>A small <b>draft head</b> guesses several tokens ahead; the large <b>target model</b> checks all guesses in one
pass and keeps the right ones. The answer is the same; how much sooner it comes is measured.</p>
<dl>{items}{_state(engine)}</dl>
</header>"""


def _state(engine: DecodingEngine) -> str:
    if not isinstance(engine, BackgroundEngine) or engine.state.ready:
        return ""
    if engine.state.error is not None:
        text = f"The model could not be loaded, so only recorded runs are shown. {engine.state.error}"
        return f'<div class="load-state failed" role="alert">{html.escape(text)}</div>'
    text = f"{engine.state.doing} … {100 * engine.state.fraction:.0f} %. Recorded runs play meanwhile."
    return f'<div class="load-state">{html.escape(text)}</div>'
