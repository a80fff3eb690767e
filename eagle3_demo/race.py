"""Two runs on one machine, shown side by side without competing for it.

Only one side computes at a time: always the one whose own clock (the engine time of its steps) is behind. So at every
moment both have used the same computing time, which is what a viewer would see on two machines.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import ExitStack, closing
from typing import TypeVar

from eagle3_demo.decoding.events import StepEvent

Side = TypeVar("Side")


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
