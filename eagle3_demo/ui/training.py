"""The Training tab: what was measured while heads were trained, beside what the EAGLE-3 paper published.

Everything shown comes from two files, `curve.json` and `scaling.json`; what is missing is called not measured yet.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path

import gradio as gr

from eagle3_demo.errors import UserError
from eagle3_demo.training.figures import (
    PUBLISHED_SOURCE,
    LearningCurves,
    Measured,
    ScalingResults,
    curve_figure,
    published_figure,
    read_measured,
    scaling_figure,
)

MEASUREMENTS = Path(__file__).resolve().parents[2] / "assets" / "training"

_COMMANDS = {
    "curve.json": "python -m tools.learning_curve RUN_FOLDER",
    "scaling.json": "python -m eagle3_demo scaling --corpus CORPUS --out RUN",
}
_PUBLISHED = (
    f"What was published: {PUBLISHED_SOURCE}. EAGLE-3 gains there with every doubling of the data, EAGLE-2 not. "
    "Another target, other prompts, deeper and wider trees and far more data: compare the shape, not the height."
)


@dataclass(frozen=True, slots=True)
class Panel:
    """A figure's sentence, and the figure; without one the sentence says why."""

    text: str
    figure: object | None = None


def curve_panel(folder: Path) -> Panel:
    """The learning curves, or what is the matter with them."""
    measured = _read(folder / "curve.json", LearningCurves)
    if isinstance(measured, Panel):
        return measured
    return Panel(measured.about, curve_figure(measured))


def scaling_panel(folder: Path) -> Panel:
    """Acceptance length by data, or what is the matter with it."""
    measured = _read(folder / "scaling.json", ScalingResults)
    if isinstance(measured, Panel):
        return measured
    tree = measured.tree
    checked = sum(point.compared for point in measured.points)
    same = sum(point.identical for point in measured.points)
    sentences = [
        measured.about,
        measured.rule,
        f"Draft trees of {tree.nodes} nodes, depth {tree.depth}, top-k {tree.top_k}.",
        f"{same} of {checked} answers were plain decoding's, token for token.",
    ]
    if not measured.complete:
        sentences.append("The run was interrupted: not every share was measured.")
    return Panel(" ".join(sentences), scaling_figure(measured))


def build_training(folder: Path = MEASUREMENTS) -> None:
    """Draws the tab from the files as they are when the page is built."""
    with gr.Row(equal_height=False):
        with gr.Column(min_width=320):
            _show("Learning curve", curve_panel(folder))
        with gr.Column(min_width=320):
            _show("More data: measured here", scaling_panel(folder))
        with gr.Column(min_width=320):
            _show("More data: published", Panel(_PUBLISHED, published_figure()))


def _read(path: Path, kind: type[Measured]) -> Measured | Panel:
    try:
        measured = read_measured(path, kind)
    except UserError as error:
        return Panel(f"Not shown: {error}. Make it again with `{_COMMANDS[path.name]}`.")
    return measured or Panel(f"Not measured yet. `{_COMMANDS[path.name]}` measures it.")


def _show(title: str, panel: Panel) -> None:
    gr.HTML(f"<h3>{html.escape(title)}</h3>", apply_default_css=False)
    if panel.figure is not None:
        gr.Plot(panel.figure, show_label=False, container=False)
    gr.HTML(f'<p class="measurement-note">{html.escape(panel.text)}</p>', apply_default_css=False)
