"""ZeroGPU: a GPU is lent for one call at a time, which runs in a forked worker and passes its values back pickled.

So what crosses is plain data (token ids, settings, `StepEvent`s), a race is one call and not two, and Stop works by
closing the call: a flag of this process would not be seen in the worker. Elsewhere none of this is used.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, Protocol

from eagle3_demo.decoding.events import Speculation, StepEvent
from eagle3_demo.engine import DecodingEngine
from eagle3_demo.progress import ReadingCallback
from eagle3_demo.race import alternate
from eagle3_demo.settings import GenerationSettings

SECONDS_BEFORE = 8
"""Asked for beside decoding: getting the GPU, moving the weights, reading the prompt."""

SLOWEST = 15.0
"""Tokens a second that a borrowed GPU is sure to reach with the targets of presets.py; a guess on the safe side."""

LONGEST = 120
"""Seconds that one call may ask for."""


class Lend(Protocol):
    """`spaces.GPU`, or a stand-in: decorates a generator function."""

    def __call__(self, *, duration: Callable[..., int]) -> Callable[[Callable[..., Any]], Callable[..., Any]]: ...


def import_spaces() -> Any | None:
    """The `spaces` package where it is installed. Call this before anything imports torch: it must come first."""
    return importlib.import_module("spaces") if importlib.util.find_spec("spaces") else None


def on_zero_gpu() -> bool:
    """Whether this process runs on a ZeroGPU Space."""
    return os.environ.get("SPACES_ZERO_GPU", "").lower() in ("1", "true", "t")


def seconds_needed(prompt_ids: Sequence[int], sides: Mapping[str, GenerationSettings]) -> int:
    """An honest estimate of how long a call needs the GPU; quotas are charged by it."""
    tokens = sum(settings.max_new_tokens for settings in sides.values())
    return min(LONGEST, SECONDS_BEFORE + len(prompt_ids) // 1000 + int(tokens / SLOWEST) + 1)


class ZeroGpuEngine:
    """A `DecodingEngine` whose runs borrow a GPU.

    Args:
        engine: loaded in this process before any call, as ZeroGPU wants it.
        lend: `spaces.GPU`.
    """

    def __init__(self, engine: DecodingEngine, lend: Lend) -> None:
        self._engine = engine
        self.target_name, self.head_name = engine.target_name, engine.head_name
        self.device, self.dtype, self.max_context = engine.device, engine.dtype, engine.max_context

        @lend(duration=seconds_needed)
        def decode(
            prompt_ids: list[int], sides: dict[str, GenerationSettings]
        ) -> Generator[tuple[str, StepEvent], None, None]:
            with closing(alternate({side: engine.run(prompt_ids, own) for side, own in sides.items()})) as steps:
                yield from steps

        self._decode = decode

    def encode(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """See `DecodingEngine.encode`."""
        return self._engine.encode(messages)

    def speculation(self, settings: GenerationSettings) -> Speculation:
        """See `DecodingEngine.speculation`."""
        return self._engine.speculation(settings)

    def run(
        self,
        prompt_ids: Sequence[int],
        settings: GenerationSettings,
        cancelled: Callable[[], bool] = lambda: False,
        reading: ReadingCallback | None = None,
    ) -> Generator[StepEvent, None, None]:
        """See `DecodingEngine.run`; `reading` is not told, as it would not cross to the worker."""
        with closing(self.race(prompt_ids, {"only": settings}, cancelled)) as steps:
            for _, event in steps:
                yield event

    def race(
        self,
        prompt_ids: Sequence[int],
        sides: Mapping[str, GenerationSettings],
        cancelled: Callable[[], bool] = lambda: False,
        reading: ReadingCallback | None = None,
    ) -> Generator[tuple[str, StepEvent], None, None]:
        """Several runs on one borrowed GPU; see `eagle3_demo.race.start_race`; `reading` is not told."""
        open_sides = set(sides)
        with closing(self._decode(list(prompt_ids), dict(sides))) as steps:
            for side, event in steps:
                stopping = event.stop_reason is None and cancelled()
                yield side, replace(event, stop_reason="cancelled") if stopping else event
                if stopping or event.stop_reason is not None:
                    open_sides.discard(side)
                if not open_sides:
                    return
