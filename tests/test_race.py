from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

from eagle3_demo.decoding.events import StepEvent
from eagle3_demo.race import alternate
from tests.ui.scripted import scripted_step


def steps(seconds: list[float], closed: list[str] | None = None, name: str = "") -> Generator[StepEvent, None, None]:
    step = scripted_step(0, ["word"], 0, 1, drafts=False, reason=None)
    try:
        for index, time in enumerate(seconds):
            yield replace(step, index=index, seconds_draft=0.0, seconds_verify=time, seconds_commit=0.0)
    finally:
        if closed is not None:
            closed.append(name)


def test_the_side_whose_clock_is_behind_always_steps() -> None:
    clocks = {"slow": 0.0, "fast": 0.0}
    remaining = {"slow": 10, "fast": 25}
    for side, event in alternate({"slow": steps([0.5] * 10), "fast": steps([0.2] * 25)}):
        other = "fast" if side == "slow" else "slow"
        assert clocks[side] <= clocks[other] or remaining[other] == 0
        clocks[side] += event.seconds
        remaining[side] -= 1
    assert remaining == {"slow": 0, "fast": 0}


def test_the_longer_run_goes_on_alone() -> None:
    order = [side for side, _ in alternate({"short": steps([1.0]), "long": steps([1.0] * 4)})]
    assert order == ["short", "long", "long", "long", "long"]


def test_closing_the_race_closes_both_runs() -> None:
    closed: list[str] = []
    race = alternate({"left": steps([1.0] * 5, closed, "left"), "right": steps([1.0] * 5, closed, "right")})
    next(race)
    next(race)
    race.close()
    assert sorted(closed) == ["left", "right"]
