"""The recorded races of `assets/traces` as the page shows them: the same recordings and views as those of live runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eagle3_demo.traces import TRACES, RecordedOn, RecordedRun, Trace, load_traces
from eagle3_demo.ui.comparison import Comparison
from eagle3_demo.ui.recording import Recording

FIRST = "code"
"""Shown to a visitor who has not chosen anything."""


@dataclass(frozen=True, slots=True)
class Example:
    """One recorded race."""

    name: str
    label: str
    prompt: str
    comparison: Comparison

    @property
    def acceptance_length(self) -> float:
        """Of the EAGLE-3 side."""
        return self.comparison.right.statistics.acceptance_length


def load_examples(folder: Path = TRACES) -> dict[str, Example]:
    """The recorded races by name, the first to show first; empty where none were recorded.

    Raises:
        UserError: a file is damaged.
    """
    return as_examples(load_traces(folder))


def as_examples(traces: Sequence[Trace]) -> dict[str, Example]:
    """Traces as examples by name, the first to show first."""
    ordered = sorted(traces, key=lambda trace: trace.name != FIRST)
    return {trace.name: _example(trace) for trace in ordered}


def origin(recorded: RecordedOn) -> str:
    """Where a recorded run comes from, in words."""
    model = recorded.target.rpartition("/")[2]
    return f"Recorded {recorded.date} · {model} ({recorded.dtype}) · {recorded.machine}"


def _example(trace: Trace) -> Example:
    left, right = (_recording(trace, run) for run in (trace.left, trace.right))
    return Example(trace.name, trace.label, trace.prompt, Comparison(left, right))


def _recording(trace: Trace, run: RecordedRun) -> Recording:
    recording = Recording(trace.prompt, run.settings, run.speculation, origin(trace.recorded), trace.name)
    for event in run.events:
        recording.add(event)
    return recording
