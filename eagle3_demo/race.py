"""Runs on one machine, shown side by side without competing for it.

Only one side computes at a time: always the one whose own clock (the engine time of its steps) is behind. So at every
moment all have used the same computing time, which is what a viewer would see on two machines.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Protocol, TypeVar, runtime_checkable

from eagle3_demo.decoding.events import StepEvent
from eagle3_demo.engine import DecodingEngine
from eagle3_demo.progress import ReadingCallback
from eagle3_demo.settings import GenerationSettings

Side = TypeVar("Side")


@runtime_checkable
class RacingEngine(Protocol):
    """An engine that runs a whole race itself, because its runs cannot be interleaved from outside."""

    def race(
        self,
        prompt_ids: Sequence[int],
        sides: Mapping[str, GenerationSettings],
        cancelled: Callable[[], bool],
        reading: ReadingCallback | None,
    ) -> Generator[tuple[str, StepEvent], None, None]:
        """What `start_race` promises."""


def start_race(
    engine: DecodingEngine,
    prompt_ids: Sequence[int],
    sides: Mapping[str, GenerationSettings],
    cancelled: Callable[[], bool] = lambda: False,
    reading: ReadingCallback | None = None,
) -> Generator[tuple[str, StepEvent], None, None]:
    """Decodes one prompt by several settings in turns.

    Args:
        cancelled: asked once a step; ends every side.
        reading: told how far each side's prefill is, when the prompt is long.

    Raises:
        UserError: the prompt does not fit the context.
    """
    if isinstance(engine, RacingEngine):
        return engine.race(prompt_ids, sides, cancelled, reading)
    return alternate({side: engine.run(prompt_ids, own, cancelled, reading) for side, own in sides.items()})


def alternate(runs: Mapping[Side, Generator[StepEvent, None, None]]) -> Generator[tuple[Side, StepEvent], None, None]:
    """Steps the runs by virtual clock until all have ended; closes them all when it is closed."""
    with ExitStack() as stack:
        running = {side: stack.enter_context(closing(run)) for side, run in runs.items()}
        clocks = dict.fromkeys(running, 0.0)
        while running:
            side = min(running, key=clocks.__getitem__)
            event = next(running[side], None)
            if event is None:
                del running[side]
                continue
            clocks[side] += event.seconds
            yield side, event
