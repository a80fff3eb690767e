"""The one object that page, command line and benchmark talk to: a loaded target, its head, and how to decode with them.

Importing this module is cheap: torch and transformers are imported when an engine is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Protocol

from eagle3_demo.decoding.events import Speculation, StepEvent
from eagle3_demo.progress import ProgressCallback, ReadingCallback
from eagle3_demo.settings import GenerationSettings

__all__ = ["DecodingEngine", "ProgressCallback", "load_engine"]


class DecodingEngine(Protocol):
    """What consumers may rely on. Every call is safe from several threads; runs do not share state."""

    @property
    def target_name(self) -> str:
        """How the target is called."""

    @property
    def head_name(self) -> str | None:
        """How the main draft head is called; None without one."""

    @property
    def device(self) -> str:
        """Where it runs, as PyTorch calls it."""

    @property
    def dtype(self) -> str:
        """What the target's weights are; see `TargetModel.precision`."""

    @property
    def max_context(self) -> int:
        """Positions that prompt and answer may take together."""

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
        reading: ReadingCallback | None = None,
    ) -> Generator[StepEvent, None, None]:
        """Decodes step by step. Closing the iterator frees everything at once.

        Args:
            cancelled: asked once a step.
            reading: told how far the prefill is, when the prompt is long.

        Raises:
            UserError: the prompt does not fit the context.
        """


def load_engine(
    preset: str | None = None,
    target: str | None = None,
    head: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    progress: ProgressCallback | None = None,
) -> DecodingEngine:
    """Loads a target and its draft head, ready to decode.

    Args:
        preset: a name from presets.py; the embedded pair when neither preset nor target is given.
        target: hub id or local folder of any causal language model, in place of a preset.
        head: hub id or local folder of an EAGLE-3 head; without one a given target decodes plainly.
        device, dtype: see `TargetModel.load`.
        progress: told how far loading is.

    Raises:
        UserError: both preset and target, a name or file that does not exist, or a pair that does not fit.
    """
    from eagle3_demo.decoding.local_engine import LocalEngine

    return LocalEngine.load(preset, target, head, device=device, dtype=dtype, progress=progress)
