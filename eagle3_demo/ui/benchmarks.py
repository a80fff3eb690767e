"""The Benchmarks tab: the `results.json` files that `python -m eagle3_demo benchmark` writes, drawn with plotly."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import gradio as gr
import plotly.graph_objects as go

from eagle3_demo.presets import REPOSITORY
from eagle3_demo.ui.events import PLUMBING

FOLDERS = (REPOSITORY / "results", REPOSITORY / "assets" / "benchmarks")
"""Where reports are looked for: the command's own folder first, then those that come along."""

_COLOURS = {"autoregressive": "#8a94a6", "eagle3": "#0072b2", "transformers": "#e69f00"}
_NAMES = {"autoregressive": "plain decoding", "eagle3": "EAGLE-3", "transformers": "transformers.generate"}
_HOW = (
    "No benchmark has been run yet. `python -m eagle3_demo benchmark --prompts assets/prompts.jsonl` measures plain "
    "decoding against EAGLE-3 and writes `results/results.json`, which is drawn here."
)


def find_reports(folders: tuple[Path, ...] = FOLDERS) -> dict[str, Path]:
    """The reports there are, by a name for people."""
    found: dict[str, Path] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*.json")) if folder.is_dir() else []:
            report = read_report(path)
            if report is not None:
                found[f"{_title(report)} ({path.relative_to(folder.parent)})"] = path
    return found


def read_report(path: Path) -> dict[str, Any] | None:
    """A benchmark's report; None where the file is something else or damaged."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    complete = isinstance(report, dict) and {"overall", "suites", "target", "machine"} <= set(report)
    return report if complete else None


def build_benchmarks(tab: gr.Tab) -> None:
    """Places the choice of reports, their facts and charts; they are read when the tab is opened."""
    with gr.Column():
        choice = gr.Dropdown([], label="Report", elem_id="report-choice", filterable=False, visible=False)
        facts = gr.Markdown(_HOW, elem_id="report-facts")
        speeds = gr.Plot(label="Tokens per second by suite", visible=False)
        speedups = gr.Plot(label="Speedup and acceptance length by suite", visible=False)

    def offer() -> Any:
        names = list(find_reports())
        return gr.Dropdown(choices=names, value=names[0] if names else None, visible=bool(names))

    def show(name: str | None) -> tuple[Any, ...]:
        path = find_reports().get(name or "")
        report = read_report(path) if path else None
        if report is None:
            return _HOW, gr.Plot(visible=False), gr.Plot(visible=False)
        return (
            describe(report),
            gr.Plot(speed_chart(report), visible=True),
            gr.Plot(speedup_chart(report), visible=True),
        )

    outputs = [facts, speeds, speedups]
    tab.select(offer, None, choice, **PLUMBING)
    choice.change(show, choice, outputs, **PLUMBING)


def describe(report: dict[str, Any]) -> str:
    """What was measured, where and when, as Markdown with everything from the file escaped."""
    machine = report["machine"]
    facts = {
        "Target": report["target"],
        "Draft head": report.get("head") or "none",
        "Machine": f"{machine.get('processor', 'unknown')}, {machine.get('threads', '?')} threads",
        "Precision": report.get("dtype", "unknown"),
        "Prompts": str(len(report.get("prompts", []))),
    }
    lines = [f"**{name}** {html.escape(str(value))}" for name, value in facts.items()]
    compared = report["overall"].get("eagle3", {})
    if compared.get("compared"):
        lines.append(f"**Identical to plain decoding** {compared['identical']} of {compared['compared']}")
    return " · ".join(lines)


def speed_chart(report: dict[str, Any]) -> go.Figure:
    """Tokens per second of each method by suite, overall first."""
    return _bars(report, "tokens_per_second", "tokens per second", _methods(report))


def speedup_chart(report: dict[str, Any]) -> go.Figure:
    """EAGLE-3's speedup over plain decoding and its acceptance length, by suite."""
    groups = _groups(report)
    figure = go.Figure()
    for key, name, colour in (("speedup", "speedup", "#0072b2"), ("acceptance_length", "acceptance length", "#009e73")):
        values = [methods.get("eagle3", {}).get(key) for methods in groups.values()]
        figure.add_bar(x=list(groups), y=values, name=name, marker_color=colour, texttemplate="%{y:.2f}")
    figure.add_hline(y=1, line_dash="dot", line_color="#8a94a6")
    return _styled(figure, "times plain decoding; tokens per pass")


def _bars(report: dict[str, Any], key: str, title: str, methods: list[str]) -> go.Figure:
    groups = _groups(report)
    figure = go.Figure()
    for method in methods:
        figure.add_bar(
            x=list(groups),
            y=[group.get(method, {}).get(key) for group in groups.values()],
            name=_NAMES.get(method, method),
            marker_color=_COLOURS.get(method),
            texttemplate="%{y:.1f}",
        )
    return _styled(figure, title)


def _styled(figure: go.Figure, title: str) -> go.Figure:
    return figure.update_layout(
        barmode="group",
        yaxis_title=title,
        yaxis_rangemode="tozero",
        legend={"orientation": "h", "y": 1.12},
        margin={"l": 50, "r": 10, "t": 30, "b": 40},
        height=360,
    )


def _groups(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {"all": report["overall"], **report["suites"]}


def _methods(report: dict[str, Any]) -> list[str]:
    return list(report["overall"])


def _title(report: dict[str, Any]) -> str:
    target = str(report["target"]).rpartition("/")[2]
    return f"{target}, {len(report.get('prompts', []))} prompts"
