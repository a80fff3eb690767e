"""What a training run tells: reports as JSON lines, and the learning curve as a page."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import torch
from plotly.subplots import make_subplots

from eagle3_demo.files import full_disk_told, write_atomically
from eagle3_demo.training.training_time_test import StepResult

METRICS = "metrics.jsonl"
CURVE = "curve.html"


@dataclass(frozen=True, slots=True)
class Report:
    """A line of `metrics.jsonl`.

    Attributes:
        kind: `training` (since the last report) or `held_out`.
        acceptance: share of slots where head and target make the same first choice, by step ahead.
        loss: mean loss, by step ahead.
    """

    kind: str
    step: int
    token_passes: int
    seconds: float
    tokens_per_second: float
    acceptance: list[float]
    loss: list[float]


class Tally:
    """Sums step results over batches; `sums` [steps, 4]: loss, valid slots, matches, slots, by step ahead."""

    def __init__(self, steps: int, device: torch.device) -> None:
        self.sums = torch.zeros(steps, 4, device=device)

    def add(self, results: list[StepResult]) -> None:
        """Takes one batch's results."""
        for row, result in zip(self.sums, results, strict=False):
            valid = result.slots if result.valid is None else result.valid
            row[0] += result.loss.detach() * valid
            row[1] += valid
            row[2] += result.matches
            row[3] += result.slots

    def losses(self) -> list[float]:
        """Mean loss by step ahead, as far as there were slots."""
        return [round(loss / max(1.0, valid), 4) for loss, valid, _, _ in self._seen()]

    def acceptance(self) -> list[float]:
        """Share of matches by step ahead, as far as there were slots."""
        return [round(matches / slots, 4) for _, _, matches, slots in self._seen()]

    def _seen(self) -> list[list[float]]:
        return [row for row in self.sums.tolist() if row[3]]


def append_report(folder: Path, report: Report) -> None:
    """Adds one line to the run's metrics."""
    path = folder / METRICS
    with full_disk_told(path), path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(report)) + "\n")


def read_reports(folder: Path) -> list[dict[str, Any]]:
    """All whole lines of a run's metrics; an interrupted last one is left out."""
    path = folder / METRICS
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines() if line]


def forget_after(folder: Path, step: int) -> None:
    """Drops reports of steps that a resumed run will make again."""
    reports = read_reports(folder)
    lines = [json.dumps(report) + "\n" for report in reports if report["step"] <= step]
    if len(lines) == len(reports):
        return
    write_atomically(folder / METRICS, lambda temporary: temporary.write_text("".join(lines), encoding="utf-8"))


def write_curve(folder: Path) -> None:
    """Draws the metrics as `curve.html`: loss and acceptance by step ahead, on training and held-out answers.

    The plotting script lies beside it, so that it opens without a network.
    """
    figure = make_subplots(rows=2, shared_xaxes=True, subplot_titles=("acceptance", "loss"), vertical_spacing=0.08)
    reports = read_reports(folder)
    for kind, dash in (("training", "dot"), ("held_out", "solid")):
        chosen = [report for report in reports if report["kind"] == kind]
        steps = max((len(report["loss"]) for report in chosen), default=0)
        for row, values in ((1, "acceptance"), (2, "loss")):
            for step in range(steps):
                seen = [report for report in chosen if len(report[values]) > step]
                line = go.Scatter(
                    x=[report["token_passes"] for report in seen],
                    y=[report[values][step] for report in seen],
                    name=f"{kind.replace('_', '-')}, step {step + 1}",
                    legendgroup=f"{kind}{step}",
                    showlegend=row == 1,
                    line={"dash": dash, "color": _COLOURS[step % len(_COLOURS)]},
                )
                figure.add_trace(line, row=row, col=1)
    figure.update_xaxes(title_text="answer tokens trained on, with repetition", row=2)
    figure.update_layout(template="plotly_white", height=800, title="Training-time test by step ahead")
    write_atomically(folder / CURVE, lambda temporary: figure.write_html(temporary, include_plotlyjs="directory"))


_COLOURS = ("#2b8cc4", "#d9722e", "#059669", "#7c3aed", "#db2777", "#0891b2", "#65a30d")
