"""How page events are wired: what uses the model, what is plumbing, how a mistake is told, who has left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gradio as gr

from eagle3_demo.progress import ReadingCallback
from eagle3_demo.ui.session import Session

PLUMBING: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
"""For events that only move the page."""

CHECK: dict[str, Any] = {**PLUMBING, "queue": True, "concurrency_limit": None}
"""For events that may refuse what was typed. Outside the queue Gradio would answer a refusal with HTTP 500."""

MODEL: dict[str, Any] = {
    "concurrency_id": "model",
    "concurrency_limit": 1,
    "show_progress": "minimal",
    "api_visibility": "private",
}
"""For events that decode: they share one place in the queue, since two runs at once would slow and mis-measure each
other. Pass `show_progress_on=queue_line(…)` beside it."""


def queue_line(elem_id: str) -> gr.HTML:
    """A thin line in which Gradio shows the place in the queue while a run waits."""
    return gr.HTML("", apply_default_css=False, min_height=22, elem_id=elem_id, elem_classes="queue-line")


class Call(NamedTuple):
    """A function for Gradio to call, with the components it reads and draws."""

    function: Callable[..., Any]
    inputs: Any
    outputs: Any


def connect_run(
    prompt: gr.Textbox, starts: Sequence[Callable[..., Any]], begin: Call, run: Call, stop: Call, waiting: gr.HTML
) -> None:
    """Wires everything from a question to its end, alike in every tab that decodes.

    Args:
        prompt: where the question is typed; offers Stop while the run lasts, and then its own button again.
        starts: the events that start a run.
        begin: checks the question and offers Stop; may refuse.
        run: decodes.
        stop: ends the run.
        waiting: the queue line.
    """
    for start in starts:
        connect_start(prompt, start, begin, run, waiting)
    prompt.stop(*stop, **PLUMBING)


def connect_start(prompt: gr.Textbox, start: Callable[..., Any], begin: Call, run: Call, waiting: gr.HTML) -> None:
    """One more event that starts a run; see `connect_run`, which also wires Stop."""
    submit = prompt.submit_btn
    begun = start(*begin, **CHECK)
    ran = begun.success(*run, show_progress_on=waiting, **MODEL)
    for end in (ran.success, ran.failure):
        end(lambda: gr.Textbox(submit_btn=submit, stop_btn=False), None, prompt, **PLUMBING)


def reading_shown() -> ReadingCallback:
    """Shows in the queue line how far a long prompt is read; for the event that is running."""
    progress = gr.Progress()
    return lambda read, total: progress(read / total, f"Reading the prompt: {read:,} of {total:,} tokens")


def refuse(message: str) -> gr.Error:
    """A person's mistake as a message on the page; raise it."""
    return gr.Error(message, title="Please check", duration=8, print_exception=False)


@dataclass(slots=True)
class Visitors:
    """Sessions with a run in progress, by Gradio's session hash, so that closing the page ends the run (faults B41)."""

    running: dict[str, Session] = field(default_factory=dict)

    @contextmanager
    def present(self, session_hash: str | None, session: Session) -> Iterator[None]:
        """Keeps the session findable while its run lasts."""
        key = session_hash or ""
        self.running[key] = session
        try:
            yield
        finally:
            self.running.pop(key, None)

    def leave(self, request: gr.Request) -> None:
        """Ends the runs of the visitor whose page was closed."""
        session = self.running.get(request.session_hash or "")
        if session:
            session.stop_all()
