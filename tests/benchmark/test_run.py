"""Methods take turns, get the same token ids, and warm up unmeasured."""

from __future__ import annotations

from collections.abc import Sequence

from eagle3_demo.benchmark.prompts import BenchmarkPrompt
from eagle3_demo.benchmark.run import WARM_UP_TOKENS, run_benchmark
from eagle3_demo.benchmark.runners import Measurement, Runner
from eagle3_demo.settings import GenerationSettings

PROMPTS = [BenchmarkPrompt("suite", str(number), "x" * number) for number in range(1, 4)]


def test_order_rotates_and_inputs_are_shared() -> None:
    calls: list[tuple[str, list[int], int]] = []

    def runner(name: str) -> Runner:
        def measure(prompt_ids: Sequence[int], settings: GenerationSettings) -> Measurement:
            calls.append((name, list(prompt_ids), settings.max_new_tokens))
            return Measurement((1, 2), 1, 1, 0.1, 0.1)

        return measure

    results = run_benchmark(
        PROMPTS,
        {name: runner(name) for name in "abc"},
        lambda messages: [len(messages[0]["content"])],
        GenerationSettings(max_new_tokens=50),
    )
    assert [list(result.measurements) for result in results] == [["a", "b", "c"]] * 3
    assert calls[:3] == [(name, [1], WARM_UP_TOKENS) for name in "abc"]
    assert [name for name, _, _ in calls[3:]] == list("abc" + "bca" + "cab")
    assert [ids for _, ids, _ in calls[3:]] == [[1]] * 3 + [[2]] * 3 + [[3]] * 3
    assert {budget for _, _, budget in calls[3:]} == {50}
