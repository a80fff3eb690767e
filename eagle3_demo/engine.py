"""The one object that page, command line and benchmark talk to: a loaded target, its head, and how to decode with them.

Importing this module is cheap: torch and transformers are imported when an engine is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from eagle3_demo.decoding.events import Speculation, StepEvent
from eagle3_demo.progress import ProgressCallback
from eagle3_demo.settings import GenerationSettings

__all__ = ["DecodingEngine", "ProgressCallback"]


class DecodingEngine(Protocol):
    """What consumers may rely on. Every call is safe from several threads; runs do not share state."""

    target_name: str
    head_name: str | None
    device: str
    dtype: str
    max_context: int

    def encode(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Token ids of a conversation (`role`, `content` turns), ready for the assistant's answer.

        Raises:
            UserError: nothing to answer, or longer than the target's context.
        """

    def speculation(self, settings: GenerationSettings) -> Speculation:
        """Whether a run with these settings speculates, and why or why not."""

    def run(
        self,
        prompt_ids: Sequence[int],
        settings: GenerationSettings,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Iterator[StepEvent]:
        """Decodes step by step. `cancelled` is asked once a step; closing the iterator frees everything at once.

        Raises:
            UserError: the prompt does not fit the context.
        """
