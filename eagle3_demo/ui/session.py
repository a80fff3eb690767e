"""What one browser session owns. Nothing here is shared between sessions (faults B40)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import gradio as gr

from eagle3_demo.engine import DecodingEngine
from eagle3_demo.errors import UserError
from eagle3_demo.settings import GenerationSettings
from eagle3_demo.ui.comparison import Comparison
from eagle3_demo.ui.recording import Recording


@dataclass(slots=True)
class StopSwitch:
    """Asked by the engine once a step; thrown by the Stop button, or when the page is closed."""

    thrown: bool = False


@dataclass(slots=True, eq=False)
class Exchange:
    """A question and its answer as they were written, the line of figures under the answer, and how it was decoded."""

    question: str
    answer: str = ""
    note: str = ""
    recording: Recording | None = None


@dataclass(slots=True)
class Request:
    """A checked question that waits for its turn."""

    exchange: Exchange
    prompt_ids: list[int]
    settings: GenerationSettings
    stop: StopSwitch = field(default_factory=StopSwitch)


@dataclass(slots=True)
class Session:
    """Everything one visitor has done.

    Attributes:
        exchanges: the conversation of the Chat tab.
        waiting: the question that waits in the queue.
        running: the question that is being answered.
        comparison: stops the running race.
        race: the race on the board.
        recording: the run that the Draft trees tab shows.
    """

    exchanges: list[Exchange] = field(default_factory=list)
    waiting: Request | None = None
    running: Request | None = None
    comparison: StopSwitch | None = None
    race: Comparison | None = None
    recording: Recording | None = None

    def live_trees(self, *growing: Recording) -> Any:
        """The newest trees of the growing run that the Draft trees tab shows; nothing new when it shows another."""
        shown = next((recording for recording in growing if recording is self.recording), None)
        return shown.tree_view() if shown else gr.skip()

    def stop_chat(self) -> None:
        """Ends the running answer within one step, and a waiting one before it starts."""
        for request in (self.waiting, self.running):
            if request:
                request.stop.thrown = True

    def stop_comparison(self) -> None:
        """Ends the running race within one step."""
        if self.comparison:
            self.comparison.thrown = True

    def stop_all(self) -> None:
        """Ends whatever runs, because the visitor has left."""
        self.stop_chat()
        self.stop_comparison()


def encode_conversation(
    engine: DecodingEngine, exchanges: Sequence[Exchange], question: str, room: int
) -> tuple[list[int], int]:
    """Token ids of the conversation with its new question, without the oldest exchanges that do not fit.

    Args:
        engine: encodes the conversation and knows how long it may be.
        exchanges: what was said before, oldest first.
        question: the new turn.
        room: tokens to keep free for the answer.

    Returns:
        The token ids, and how many of the oldest exchanges were left out.

    Raises:
        UserError: the question is empty, or too long by itself.
    """
    if not any(character.isprintable() and not character.isspace() for character in question):
        raise UserError("The prompt is empty: type something to answer.")
    turn = {"role": "user", "content": question}
    for dropped in range(len(exchanges)):
        history = [
            {"role": role, "content": content}
            for exchange in exchanges[dropped:]
            for role, content in (("user", exchange.question), ("assistant", exchange.answer))
        ]
        try:
            prompt_ids = engine.encode([*history, turn])
        except UserError:
            continue
        if len(prompt_ids) + room <= engine.max_context:
            return prompt_ids, dropped
    return engine.encode([turn]), len(exchanges)
