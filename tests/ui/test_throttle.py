from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from eagle3_demo.ui.throttle import SLOWEST_INTERVAL, gather


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def ticking(self, count: int, seconds: float) -> Iterator[int]:
        """Numbers that each take `seconds` to come."""
        for number in range(count):
            self.now += seconds
            yield number


def test_nothing_is_lost_or_reordered() -> None:
    clock = FakeClock()
    batches = list(gather(clock.ticking(100, 0.01), 0.08, clock))
    assert [number for batch in batches for number in batch] == list(range(100))


def test_first_event_is_handed_on_at_once() -> None:
    clock = FakeClock()
    assert next(gather(clock.ticking(100, 0.001), 0.08, clock)) == [0]


def test_fast_events_are_drawn_at_most_every_interval() -> None:
    clock = FakeClock()
    handed_over = [clock.now for _ in gather(clock.ticking(1000, 0.003), 0.08, clock)]
    pauses = [later - earlier for earlier, later in itertools.pairwise(handed_over)]
    assert all(pause >= 0.08 for pause in pauses[:-1])
    assert len(handed_over) <= 1 + 3.0 / 0.08 + 1


def test_slow_events_are_drawn_one_by_one() -> None:
    clock = FakeClock()
    assert list(gather(clock.ticking(5, 0.2), 0.08, clock)) == [[0], [1], [2], [3], [4]]


@pytest.mark.parametrize(("drawing", "least_pause"), [(0.05, 0.2), (3.0, SLOWEST_INTERVAL)])
def test_slow_drawing_leaves_the_engine_most_of_the_time(drawing: float, least_pause: float) -> None:
    clock = FakeClock()
    decoding = []
    returned = clock.now
    for _ in gather(clock.ticking(1000, 0.01), 0.08, clock):
        decoding.append(clock.now - returned)
        clock.now += drawing
        returned = clock.now
    assert all(pause >= least_pause - 1e-9 for pause in decoding[1:-1])


def test_what_was_gathered_before_an_error_is_still_drawn() -> None:
    clock = FakeClock()

    def failing() -> Iterator[int]:
        yield from clock.ticking(5, 0.001)
        raise RuntimeError("broken")

    seen: list[int] = []
    with pytest.raises(RuntimeError, match="broken"):
        for batch in gather(failing(), 0.08, clock):
            seen += batch
    assert seen == [0, 1, 2, 3, 4]


def test_no_events_no_drawing() -> None:
    assert list(gather([], 0.08, FakeClock())) == []
