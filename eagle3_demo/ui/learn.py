"""The Learn tab: a tour of five stops on a recorded run, and EAGLE-3 part by part."""

from __future__ import annotations

from typing import Any

import gradio as gr

from eagle3_demo.ui.components import drawing
from eagle3_demo.ui.events import PLUMBING
from eagle3_demo.ui.examples import Example
from eagle3_demo.ui.race import RaceTab
from eagle3_demo.ui.session import Session
from eagle3_demo.ui.static_files import STATIC

_SAMPLE = 14
"""Tokens of the answer that the first stop shows."""


def tour_view(example: Example) -> dict[str, Any]:
    """What the tour shows: the step of the run in which most was accepted, and the figures of both sides."""
    race = example.comparison
    plain, fast = race.left.statistics, race.right.statistics
    return {
        "prompt": example.prompt,
        "origin": race.right.origin,
        "step": race.right.steps[race.right.best_step()],
        "identical": race.verdict()["state"] == "identical",
        "plain": {
            "tokens": plain.new_tokens,
            "forwards": plain.target_forwards,
            "step": round(1000 * plain.seconds_decode / max(1, plain.target_forwards), 2),
            "rate": round(plain.tokens_per_second, 2),
            "sample": race.left.tokens[:_SAMPLE],
        },
        "fast": {
            "forwards": fast.target_forwards,
            "tau": round(fast.acceptance_length, 3),
            "rate": round(fast.tokens_per_second, 2),
            "speedup": race.speedup() or 0.0,
        },
    }


def build_learn(tab: RaceTab, session: gr.State, tree: gr.HTML, tabs: gr.Tabs, example: Example | None) -> None:
    """Places tour and lessons; the tour's tree opens in the Draft trees tab."""
    if example is not None:

        def open_step(session: Session, event: gr.EventData) -> tuple[Any, Any]:
            session.race = example.comparison
            return tab.open_step(session, event)

        tour = drawing("learn", tour_view(example))
        tour.open_step(open_step, session, [tree, tabs], **PLUMBING)
    # Constant text of ours: nothing from a model or a visitor is in it.
    gr.HTML((STATIC / "learn.html").read_text(encoding="utf-8"), apply_default_css=False, elem_id="lessons")
