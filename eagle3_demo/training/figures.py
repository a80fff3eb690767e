"""What was measured in training, as figures: learning curves and data scaling. Reads JSON files, never imports torch.

Files are validated as they are read, so that the page can say what is wrong with one in place of drawing nonsense.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, TypeVar

import plotly.graph_objects as go
from pydantic import BaseModel, Field, PositiveInt, ValidationError

from eagle3_demo.errors import UserError
from eagle3_demo.settings import METHOD_NAMES, Method, TreeSettings

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
_COLOURS: dict[Method, str] = {"eagle3": "#2b8cc4", "eagle2": "#d9722e"}
_PALETTE = ("#2b8cc4", "#d9722e", "#059669", "#7c3aed", "#db2777", "#0891b2", "#65a30d", "#dc2626")
_QUIET = "#64748b"

PUBLISHED_SOURCE = "EAGLE-3 paper (arXiv 2503.01840), LLaMA-3.1-8B; values read off a figure"
PUBLISHED_MULTIPLES = (1, 2, 4, 8)
PUBLISHED: dict[Method, tuple[float, ...]] = {"eagle3": (5.2, 5.5, 5.8, 6.1), "eagle2": (4.1, 4.1, 4.1, 4.1)}
"""Published acceptance lengths by data, in multiples of ShareGPT (about 68,000 conversations); EAGLE-2 is flat."""


class CurvePoint(BaseModel):
    """Held-out acceptance after so many token-passes: the share of like first choices, by step ahead."""

    token_passes: Annotated[int, Field(ge=0)]
    acceptance: Annotated[list[Share], Field(min_length=1)]


class Curve(BaseModel):
    """One training run."""

    name: str
    points: Annotated[list[CurvePoint], Field(min_length=1)]


class LearningCurves(BaseModel):
    """`curve.json`: training runs, and a sentence that says what was trained where, on how much data."""

    about: str
    curves: Annotated[list[Curve], Field(min_length=1)]


class ScalingPoint(BaseModel):
    """One head: what it was trained on and how it did. `identical` of `compared` answers were plain decoding's."""

    method: Method
    fraction: Annotated[float, Field(gt=0, le=1)]
    answer_tokens: PositiveInt
    token_passes: PositiveInt
    acceptance_length: Annotated[float, Field(ge=1, allow_inf_nan=False)]
    identical: Annotated[int, Field(ge=0)]
    compared: PositiveInt


class ScalingResults(BaseModel):
    """`scaling.json`: heads trained on fractions of one corpus, and what the figures depend on."""

    about: str
    rule: str
    tree: TreeSettings
    complete: bool
    points: Annotated[list[ScalingPoint], Field(min_length=1)]


Measured = TypeVar("Measured", LearningCurves, ScalingResults)


def read_measured(path: Path, kind: type[Measured]) -> Measured | None:
    """A file of measurements; None where there is none.

    Raises:
        UserError: it is there and is not what it should be.
    """
    try:
        return kind.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise UserError(f"{path.name} is malformed at {place or 'its top'}: {first['msg']}") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{path.name} cannot be read: {error}") from error


def curve_figure(measured: LearningCurves) -> go.Figure:
    """First-step acceptance of every run by token-passes; the steps further ahead of a lone run as fainter lines."""
    figure = _figure("Token-passes", "Held-out acceptance")
    alone = len(measured.curves) == 1
    for number, curve in enumerate(measured.curves):
        steps = len(curve.points[0].acceptance) if alone else 1
        for step in range(steps):
            points = [point for point in curve.points if len(point.acceptance) > step]
            figure.add_scatter(
                x=[point.token_passes for point in points],
                y=[point.acceptance[step] for point in points],
                name=f"{step + 1} ahead" if alone else curve.name,
                mode="lines+markers",
                line_color=_PALETTE[number % len(_PALETTE)],
                opacity=1 - 0.2 * min(step, 3),
            )
    figure.update_yaxes(range=[0, 1], tickformat=".0%")
    return figure


def scaling_figure(measured: ScalingResults) -> go.Figure:
    """Acceptance length by answer tokens, one line for each kind of head."""
    figure = _figure("Answer tokens to learn from", "Acceptance length")
    for method, colour in _COLOURS.items():
        points = sorted((p for p in measured.points if p.method == method), key=lambda point: point.answer_tokens)
        if points:
            figure.add_scatter(
                x=[point.answer_tokens for point in points],
                y=[point.acceptance_length for point in points],
                name=METHOD_NAMES[method],
                mode="lines+markers",
                line_color=colour,
            )
    figure.update_xaxes(type="log")
    return figure


def published_figure() -> go.Figure:
    """The published curve, for comparison of its shape: another target, another tree, far more data."""
    figure = _figure("Training data, multiples of ShareGPT", "Acceptance length")
    for method, lengths in PUBLISHED.items():
        figure.add_scatter(
            x=PUBLISHED_MULTIPLES,
            y=lengths,
            name=METHOD_NAMES[method],
            mode="lines+markers",
            line={"color": _COLOURS[method], "dash": "dot"},
        )
    figure.update_xaxes(type="log", tickvals=PUBLISHED_MULTIPLES, ticktext=[f"{n}×" for n in PUBLISHED_MULTIPLES])
    return figure


def _figure(x: str, y: str) -> go.Figure:
    """An empty figure that fits light and dark pages."""
    figure = go.Figure()
    figure.update_layout(
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font_color=_QUIET,
        margin={"l": 56, "r": 16, "t": 32, "b": 48},
        legend={"orientation": "h", "y": 1.12, "x": 0},
        hovermode="x unified",
        showlegend=True,
    )
    line = {"gridcolor": "rgba(100,116,139,0.25)", "zeroline": False}
    figure.update_xaxes(title=x, **line)
    figure.update_yaxes(title=y, **line)
    return figure
