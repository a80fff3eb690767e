"""Many engine events, few drawings: events are gathered by time, so that drawing never slows decoding.

The first event is passed on at once, the last ones always; in between a batch leaves at most every `interval` seconds,
and less often when drawing is slow, so that drawing takes a fifth of the time at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")

INTERVAL = 0.08
SLOWEST_INTERVAL = 0.4


def gather(
    items: Iterable[Item], interval: float = INTERVAL, clock: Callable[[], float] = time.monotonic
) -> Iterator[list[Item]]:
    """Yields batches of the items in order, none lost; what was gathered before an error is yielded before it rises.

    Args:
        items: the events of a run.
        interval: shortest time between two batches, in seconds, counted from the moment the consumer asks again.
        clock: monotonic seconds.
    """
    batch: list[Item] = []
    due = clock()
    try:
        for item in items:
            batch.append(item)
            if clock() < due:
                continue
            handed_over = clock()
            yield batch
            batch = []
            returned = clock()
            due = returned + max(interval, min(4 * (returned - handed_over), SLOWEST_INTERVAL))
    except Exception:
        if batch:
            yield batch
        raise
    if batch:
        yield batch
