"""One run as the page keeps it: totals, emitted tokens, and each step's draft tree ready to be drawn.

A recording is fed event by event and asked for views: fresh plain data that becomes JSON. Views are small: the whole
answer is in each (Gradio sends only what changed), but trees only of the steps that were asked for.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

from eagle3_demo.decoding.events import RunStatistics, Speculation, StepEvent
from eagle3_demo.settings import METHOD_NAMES, GenerationSettings, Method
from eagle3_demo.ui.steps import fallen_text, step_view

WINDOW = 32
"""Draft trees sent at once."""

LIVE_WINDOW = 2
"""Draft trees sent while the run goes on: nobody can see more of them."""

_ENDINGS = {
    "end_token": "the model ended the answer",
    "stop_string": "ended at a stop string",
    "length": "token limit reached",
    "context": "the model's context is full",
    "cancelled": "stopped by you",
}
_numbers = itertools.count(1)


@dataclass(slots=True)
class Recording:
    """A run, growing.

    Attributes:
        prompt: what was asked, for headings.
        settings: how the answer is decoded.
        speculation: whether a draft head takes part, and why.
        origin: where a recorded run comes from, in words; empty for a run of this session.
        example: name of the recorded example, for links; empty for a run of this session.
        number: tells runs apart on the page.
        tokens: `[text, drafted (0 or 1), step]` of every emitted token; the texts joined are the answer.
        steps: the drawable trees, by step.
        events: everything the engine told, for the figures of a finished run.
    """

    prompt: str
    settings: GenerationSettings
    speculation: Speculation
    origin: str = ""
    example: str = ""
    number: int = field(default_factory=lambda: next(_numbers))
    statistics: RunStatistics = field(default_factory=RunStatistics)
    tokens: list[list[str | int]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    events: list[StepEvent] = field(default_factory=list)
    _clock: list[float] = field(default_factory=list)
    _drafted: list[int] = field(default_factory=list)
    _fallen: list[str] = field(default_factory=list)

    def add(self, event: StepEvent) -> None:
        """Takes one step in."""
        self.statistics.add(event)
        self.events.append(event)
        self.steps.append(step_view(event))
        self.tokens += [[token.text, int(token.drafted), event.index] for token in event.tokens]
        self._clock.append(round(1000 * (self.statistics.seconds_prefill + self.statistics.seconds_decode), 2))
        self._drafted.append(len(event.tree.tokens) - 1)
        self._fallen.append(fallen_text(event))

    @property
    def method(self) -> Method:
        """How the answer is decoded."""
        return self.settings.method

    @property
    def finished(self) -> bool:
        """Whether the last step is in."""
        return self.statistics.stop_reason is not None

    def best_step(self) -> int:
        """The first of the steps that emitted most tokens: the one worth looking at first."""
        emitted = [0] * len(self.steps)
        for _, _, step in self.tokens:
            emitted[int(step)] += 1
        return emitted.index(max(emitted)) if emitted else 0

    def opened(self, step: int | None = None) -> dict[str, Any]:
        """The trees opened at a step, or at the one worth looking at first; a growing run at its newest."""
        if step is None and self.finished:
            step = self.best_step()
        return self.tree_view(step) | {"focus": step}

    def summary(self) -> str:
        """The one honest line under an answer: how much, how fast, and whether speculation was on and why."""
        statistics = self.statistics
        parts = [
            f"{statistics.new_tokens} tokens",
            f"{statistics.tokens_per_second:.1f} tokens/s",
            f"acceptance length {statistics.acceptance_length:.2f}",
            statistics.told(self.speculation),
        ]
        return " · ".join([*parts, _ENDINGS[statistics.stop_reason]] if statistics.stop_reason else parts)

    def label(self) -> str:
        """The decoder's name and, where it drafts, its tree."""
        name = METHOD_NAMES[self.method]
        if not self.speculation.active:
            return name
        tree = self.settings.tree
        spoiled = f", {tree.spoiled:.0%} spoiled" if tree.spoiled else ""
        shape = "tree chosen by cost" if tree.nodes == "auto" else f"{tree.nodes} nodes, depth {tree.depth}"
        return f"{name} · {shape}{spoiled}"

    def about(self) -> str:
        """How the run is decoded, in words."""
        name, reason = METHOD_NAMES[self.method], self.speculation.reason
        return reason if reason.startswith(name) else f"{name}: {reason}"

    def answer_view(self) -> dict[str, Any]:
        """What the panel beside an answer shows."""
        return {
            "run": self.number,
            "method": METHOD_NAMES[self.method],
            "finished": self.finished,
            "tokens": list(self.tokens),
            "numbers": self.numbers(),
            "note": self.summary() if self.statistics.new_tokens else "Reading the prompt …",
        }

    def side_view(self) -> dict[str, Any]:
        """What one side of the race shows; `clock` is this side's own time in milliseconds at the end of each step."""
        reason = self.statistics.stop_reason
        return {
            "run": self.number,
            "name": METHOD_NAMES[self.method],
            "label": self.label(),
            "drafts": self.speculation.active,
            "reason": self.speculation.reason,
            "finished": self.finished,
            "ending": _ENDINGS[reason] if reason else "",
            "tokens": list(self.tokens),
            "clock": list(self._clock),
            "drafted": list(self._drafted),
        }

    def numbers(self) -> dict[str, str]:
        """The measured figures as text; a dash where nothing was measured yet."""
        statistics = self.statistics
        measured = statistics.target_forwards > 0
        share = f"{statistics.accepted_tokens} of {statistics.drafted_tokens}" if statistics.drafted_tokens else "–"
        return {
            "tokens_per_second": f"{statistics.tokens_per_second:.1f}" if measured else "–",
            "acceptance_length": f"{statistics.acceptance_length:.2f}" if measured else "–",
            "tokens": str(statistics.new_tokens),
            "target_forwards": str(statistics.target_forwards) if measured else "–",
            "drafts_accepted": share,
            "seconds": f"{statistics.seconds_prefill + statistics.seconds_decode:.1f}",
        }

    def tree_view(self, around: int | None = None, *, everything: bool = False) -> dict[str, Any]:
        """The steps near `around` (the newest when not given), or all, with everything needed to read them."""
        count = len(self.steps)
        window = count if everything else WINDOW if self.finished or around is not None else LIVE_WINDOW
        centre = count if around is None else max(0, min(around, count))
        first = max(0, min(centre - window // 2, count - window))
        return {
            "run": self.number,
            "prompt": self.prompt,
            "about": self.about(),
            "origin": self.origin,
            "example": self.example,
            "finished": self.finished,
            "count": count,
            "tokens": list(self.tokens),
            "fallen": list(self._fallen),
            # Keyed by step, so that Gradio's differ adds and drops whole steps in place of editing inside them.
            "steps": {str(step["index"]): step for step in self.steps[first : first + window]},
        }
