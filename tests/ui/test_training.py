"""The Training tab from sample files, without them, and with malformed ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gradio as gr

from eagle3_demo.ui.app import build
from eagle3_demo.ui.training import build_training, curve_panel, scaling_panel
from tests.training.test_figures import CURVES, SCALING
from tests.ui.scripted import ScriptedEngine


def drawn(folder: Path) -> tuple[int, str]:
    """How many figures the tab has, and all its text."""
    with gr.Blocks() as blocks:
        build_training(folder)
    parts = list(blocks.blocks.values())
    return sum(isinstance(part, gr.Plot) for part in parts), "\n".join(
        str(part.value) for part in parts if isinstance(part, gr.HTML)
    )


def samples(folder: Path, **changes: Any) -> Path:
    (folder / "curve.json").write_text(json.dumps(CURVES | {"about": "A head, on <much> data."}))
    (folder / "scaling.json").write_text(json.dumps(SCALING | changes))
    return folder


def test_both_figures_stand_beside_the_published_one(tmp_path: Path) -> None:
    figures, text = drawn(samples(tmp_path))
    assert figures == 3
    assert "A head, on &lt;much&gt; data." in text
    assert "12 of 12 answers were plain decoding" in text and "6 nodes, depth 3" in text
    assert "interrupted" not in text and "arXiv 2503.01840" in text


def test_an_interrupted_run_says_so(tmp_path: Path) -> None:
    assert "interrupted" in scaling_panel(samples(tmp_path, complete=False)).text


def test_without_files_the_tab_says_what_measures_them(tmp_path: Path) -> None:
    figures, text = drawn(tmp_path)
    assert figures == 1
    assert text.count("Not measured yet") == 2
    assert "python -m eagle3_demo scaling" in text


def test_malformed_files_are_told_and_break_nothing(tmp_path: Path) -> None:
    (tmp_path / "curve.json").write_text("{")
    (tmp_path / "scaling.json").write_text(json.dumps(SCALING | {"points": "many"}))
    assert curve_panel(tmp_path).figure is None and "curve.json cannot be read" in curve_panel(tmp_path).text
    assert "scaling.json is malformed at points" in scaling_panel(tmp_path).text
    assert drawn(tmp_path)[0] == 1


def test_the_page_has_the_tab_and_offers_eagle2_only_with_its_head() -> None:
    def method_choices(engine: ScriptedEngine) -> list[str]:
        blocks = build(engine).blocks
        assert "Training" in [part.label for part in blocks.blocks.values() if isinstance(part, gr.Tab)]
        radio = next(part for part in blocks.blocks.values() if isinstance(part, gr.Radio))
        return [value for _, value in radio.choices]

    assert method_choices(ScriptedEngine()) == ["eagle3", "autoregressive"]
    assert method_choices(TwoHeads()) == ["eagle3", "eagle2", "autoregressive"]


class TwoHeads(ScriptedEngine):
    """An engine whose every method but plain decoding speculates."""

    def speculation(self, settings: Any) -> Any:
        return super().speculation(settings.model_copy(update={"method": "eagle3"}))
