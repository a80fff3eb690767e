"""Measurements are read and checked; figures show what is in them; nothing heavy is imported for it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eagle3_demo.errors import UserError
from eagle3_demo.training.figures import (
    LearningCurves,
    ScalingResults,
    curve_figure,
    published_figure,
    read_measured,
    scaling_figure,
)

CURVES: dict[str, Any] = {
    "about": "a head",
    "curves": [
        {
            "name": "run",
            "points": [{"token_passes": 10, "acceptance": [0.3, 0.2]}, {"token_passes": 20, "acceptance": [0.4, 0.3]}],
        }
    ],
}


def scaling_point(method: str, answer_tokens: int, length: float) -> dict[str, Any]:
    return {
        "method": method,
        "fraction": 0.5,
        "answer_tokens": answer_tokens,
        "token_passes": 100,
        "acceptance_length": length,
        "identical": 4,
        "compared": 4,
    }


SCALING: dict[str, Any] = {
    "about": "heads",
    "rule": "same passes",
    "tree": {"depth": 3, "top_k": 3, "nodes": 6},
    "complete": True,
    "points": [
        scaling_point("eagle3", 50, 1.8),
        scaling_point("eagle3", 25, 1.5),
        scaling_point("eagle2", 25, 1.4),
    ],
}


def write(path: Path, value: object) -> Path:
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


def test_a_lone_curve_shows_its_steps_and_several_their_names(tmp_path: Path) -> None:
    measured = read_measured(write(tmp_path / "curve.json", CURVES), LearningCurves)
    assert measured is not None
    lines = curve_figure(measured).data
    assert [line.name for line in lines] == ["1 ahead", "2 ahead"]
    assert list(lines[1].x) == [10, 20] and list(lines[1].y) == [0.2, 0.3]
    two = CURVES | {"curves": [*CURVES["curves"], CURVES["curves"][0] | {"name": "other"}]}
    measured = read_measured(write(tmp_path / "curve.json", two), LearningCurves)
    assert measured is not None
    assert [line.name for line in curve_figure(measured).data] == ["run", "other"]


def test_scaling_has_a_line_for_each_head_in_order_of_data(tmp_path: Path) -> None:
    measured = read_measured(write(tmp_path / "scaling.json", SCALING | {"date": "today"}), ScalingResults)
    assert measured is not None
    eagle3, eagle2 = scaling_figure(measured).data
    assert (eagle3.name, list(eagle3.x), list(eagle3.y)) == ("EAGLE-3", [25, 50], [1.5, 1.8])
    assert (eagle2.name, list(eagle2.x)) == ("EAGLE-2", [25])


def test_the_published_curve_has_both_methods() -> None:
    assert [line.name for line in published_figure().data] == ["EAGLE-3", "EAGLE-2"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{", "cannot be read"),
        ([], "malformed at its top"),
        (SCALING | {"points": []}, "points"),
        (SCALING | {"points": [scaling_point("eagle9", 5, 1.2)]}, r"points\.0\.method"),
        (SCALING | {"points": [scaling_point("eagle3", 0, 1.2)]}, r"points\.0\.answer_tokens"),
        (SCALING | {"points": [scaling_point("eagle3", 5, 0.2)]}, r"points\.0\.acceptance_length"),
        ({"about": "no points"}, "rule"),
    ],
)
def test_a_malformed_file_is_refused_by_place(tmp_path: Path, value: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_measured(write(tmp_path / "scaling.json", value), ScalingResults)


def test_a_missing_file_is_nothing(tmp_path: Path) -> None:
    assert read_measured(tmp_path / "scaling.json", ScalingResults) is None


def test_the_tab_imports_no_torch() -> None:
    code = "import sys, eagle3_demo.ui.training; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
