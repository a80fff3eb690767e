"""Recorded races made with the scripted engine."""

from __future__ import annotations

from eagle3_demo.settings import generation_settings
from eagle3_demo.traces import Trace, record
from eagle3_demo.ui.examples import Example, as_examples
from tests.ui.scripted import ScriptedEngine


def scripted_trace(
    name: str = "code", prompt: str = "Count to ten, please", engine: ScriptedEngine | None = None
) -> Trace:
    """A recorded race."""
    return record(engine or ScriptedEngine(), name, name.capitalize(), prompt, generation_settings())


def scripted_examples() -> dict[str, Example]:
    """Two recorded races."""
    return as_examples([scripted_trace("story", "Tell a story"), scripted_trace("code")])
