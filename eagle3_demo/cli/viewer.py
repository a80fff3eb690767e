"""`record-traces` records the races that the page plays before a model is loaded; `export-viewer` writes them as a page
that needs no Python."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eagle3_demo.cli.console import note, progress_shown
from eagle3_demo.cli.options import (
    DEFAULTS,
    Depth,
    Device,
    Dtype,
    HeadPath,
    Nodes,
    PresetName,
    TargetId,
    TreeTopK,
    request,
    requested_engine,
)
from eagle3_demo.decoding.events import RunStatistics
from eagle3_demo.files import write_atomically
from eagle3_demo.traces import TRACES, record, save_trace
from eagle3_demo.ui.prompts import GALLERY

RECORDED_TOKENS = 160
_WARM_UP_TOKENS = 8


def record_traces(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Folder for the recorded races.")] = TRACES,
    preset: PresetName = None,
    target: TargetId = None,
    head: HeadPath = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    max_new_tokens: Annotated[int, typer.Option(help="Exact budget of new tokens.")] = RECORDED_TOKENS,
    depth: Depth = DEFAULTS.tree.depth,
    tree_top_k: TreeTopK = DEFAULTS.tree.top_k,
    nodes: Nodes = str(DEFAULTS.tree.nodes),
) -> None:
    """Record the page's own prompts, plain against EAGLE-3, for pages without a model."""
    settings = request(context)
    engine = requested_engine(context)
    short = settings.model_copy(update={"max_new_tokens": _WARM_UP_TOKENS})
    record(engine, "warm-up", "", GALLERY[0].text, short)
    with progress_shown() as progress:
        for number, prompt in enumerate(GALLERY):
            progress(number / len(GALLERY), f"Recording {prompt.label}")
            trace = record(engine, prompt.name, prompt.label, prompt.text, settings)
            path = save_trace(trace, out)
            plain, fast = RunStatistics.of(trace.left.events), RunStatistics.of(trace.right.events)
            note(
                f"{path}: {path.stat().st_size / 1000:.0f} kB, {plain.tokens_per_second:.1f} and "
                f"{fast.tokens_per_second:.1f} tokens/s, acceptance length {fast.acceptance_length:.2f}"
            )


def export_viewer(
    out: Annotated[Path, typer.Argument(help="The HTML file to write.")],
    traces: Annotated[Path, typer.Option(help="Folder of recorded races.")] = TRACES,
) -> None:
    """Write the recorded races and the tree explorer as one HTML file that needs no Python and no network."""
    from eagle3_demo.ui.export import viewer_page

    page = viewer_page(traces)
    write_atomically(out, lambda temporary: temporary.write_text(page, encoding="utf-8"))
    note(f"{out}: {out.stat().st_size / 1000:.0f} kB; open it in a browser")
