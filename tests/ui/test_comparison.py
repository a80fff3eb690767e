from __future__ import annotations

import pytest

from eagle3_demo.decoding.events import first_divergence
from eagle3_demo.settings import METHODS, generation_settings
from eagle3_demo.ui.comparison import Comparison
from eagle3_demo.ui.recording import Recording
from tests.ui.scripted import ScriptedEngine


def compared(engine: ScriptedEngine, stop_after: dict[str, int] | None = None) -> Comparison:
    recordings = {}
    for method in METHODS:
        settings = generation_settings(method=method)
        recording = recordings[method] = Recording("Hi", settings, engine.speculation(settings))
        prompt_ids = engine.encode([{"role": "user", "content": "Hi"}])
        limit = (stop_after or {}).get(method, 10**6)
        for event in engine.run(prompt_ids, settings, lambda recording=recording, n=limit: len(recording.steps) >= n):
            recording.add(event)
    return Comparison(recordings["autoregressive"], recordings["eagle3"])


def test_equal_token_ids_are_called_identical() -> None:
    comparison = compared(ScriptedEngine())
    assert comparison.verdict()["state"] == "identical"
    assert f"{comparison.right.statistics.new_tokens} tokens" in comparison.verdict()["text"]


def test_the_first_difference_is_named() -> None:
    verdict = compared(ScriptedEngine(differ=True)).verdict()
    assert verdict["state"] == "different"
    assert "token 6" in verdict["text"]
    assert "“␣other”" in verdict["text"]


def test_stopped_runs_are_not_called_identical() -> None:
    verdict = compared(ScriptedEngine(), {"eagle3": 3, "autoregressive": 3}).verdict()
    assert verdict["state"] == "stopped"


def test_a_difference_shows_while_both_still_run() -> None:
    comparison = compared(ScriptedEngine(differ=True))
    comparison.left.statistics.stop_reason = None
    comparison.right.statistics.stop_reason = None
    assert comparison.verdict()["state"] == "different"


def test_speedup_is_the_ratio_of_decode_speeds() -> None:
    comparison = compared(ScriptedEngine())
    ratio = comparison.right.statistics.tokens_per_second / comparison.left.statistics.tokens_per_second
    assert comparison.speedup() == pytest.approx(ratio, abs=0.005)
    assert ratio > 1


def test_speedup_waits_for_both_sides() -> None:
    assert compared(ScriptedEngine(), {"eagle3": 0}).speedup() is None


@pytest.mark.parametrize(
    ("left", "right", "index"),
    [([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1], [1, 2], 1), ([], [], None), ([0], [], 0)],
)
def test_first_divergence(left: list[int], right: list[int], index: int | None) -> None:
    assert first_divergence(left, right) == index
