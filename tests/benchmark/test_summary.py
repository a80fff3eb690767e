"""The arithmetic of the figures, on measurements made by hand."""

from __future__ import annotations

import json

from eagle3_demo.benchmark.prompts import BenchmarkPrompt
from eagle3_demo.benchmark.report import markdown, table_rows
from eagle3_demo.benchmark.run import PromptResult
from eagle3_demo.benchmark.runners import Measurement
from eagle3_demo.benchmark.summary import figures


def measured(tokens: list[int], seconds: float, forwards: int) -> Measurement:
    """A run whose first token came from the prefill."""
    return Measurement(tuple(tokens), forwards, len(tokens) - 1, 0.5, seconds)


def result(suite: str, number: str, **measurements: Measurement) -> PromptResult:
    """One prompt of a suite."""
    return PromptResult(BenchmarkPrompt(suite, number, "text"), 9, measurements)


SAME = [1, 2, 3, 4, 5]
RESULTS = [
    result(
        *("a", "1"),
        autoregressive=measured(SAME, 4.0, 4),
        eagle3=measured(SAME, 2.0, 2),
        transformers=measured([1, 2, 9, 9, 9], 8.0, 4),
    ),
    result(
        *("b", "2"),
        autoregressive=measured(SAME, 2.0, 4),
        eagle3=measured([1, 2, 3], 1.0, 1),
        transformers=measured(SAME, 4.0, 4),
    ),
]


def test_pooled_speeds_median_speedups_and_acceptance() -> None:
    overall = figures(RESULTS, greedy=True)["overall"]
    assert overall["autoregressive"]["tokens_per_second"] == round(8 / 6, 3)
    assert overall["autoregressive"]["tokens_per_second_median"] == 1.5
    assert overall["autoregressive"]["speedup"] is None
    assert overall["autoregressive"]["speedup_over_transformers"] == 2.0
    assert overall["eagle3"]["acceptance_length"] == 2.0
    assert overall["eagle3"]["speedup"] == 1.5
    assert overall["transformers"]["speedup"] == 0.5


def test_identity_is_judged_against_plain_decoding() -> None:
    found = figures(RESULTS, greedy=True)
    first, second = (prompt["methods"] for prompt in found["prompts"])
    assert first["eagle3"]["identical"] is True and first["eagle3"]["first_divergence"] is None
    assert second["eagle3"]["identical"] is False and second["eagle3"]["first_divergence"] == 3
    assert first["transformers"]["first_divergence"] == 2
    assert first["autoregressive"]["identical"] is None
    assert (found["overall"]["eagle3"]["identical"], found["overall"]["eagle3"]["compared"]) == (1, 2)
    assert found["suites"]["a"]["eagle3"]["identical"] == 1


def test_sampled_transformers_output_is_not_compared() -> None:
    found = figures(RESULTS, greedy=False)
    assert found["overall"]["transformers"]["compared"] == 0
    assert found["overall"]["eagle3"]["compared"] == 2


def test_a_prompt_answered_by_the_prefill_alone_breaks_nothing() -> None:
    alone = Measurement((7,), 0, 0, 0.5, 0.0)
    found = figures([result("a", "1", autoregressive=alone, eagle3=alone)], greedy=True)
    assert found["overall"]["eagle3"]["tokens_per_second"] is None
    assert found["overall"]["eagle3"]["speedup"] is None
    assert found["overall"]["eagle3"]["identical"] == 1
    json.dumps(found, allow_nan=False)


def test_the_report_names_what_was_run_and_where_outputs_part() -> None:
    report = figures(RESULTS, greedy=True) | {
        "date": "2026-01-01T00:00:00+00:00",
        "target": "the target",
        "head": None,
        "heads": {},
        "device": "cpu",
        "dtype": "float32",
        "speculation": {"active": True, "reason": "EAGLE-3"},
        "machine": {"processor": "a processor", "threads": 2},
        "versions": {"torch": "2"},
        "settings": {"max_new_tokens": 5},
        "prompt_file": {"name": "p.jsonl", "sha256": "abc"},
        "complete": False,
    }
    text = markdown(report)
    for expected in ("the target", "a processor), 2 threads", "p.jsonl (SHA-256 abc)", "Interrupted", "torch 2"):
        assert expected in text
    assert "- b 2, eagle3: token 3" in text
    rows = table_rows(report)
    assert [row[:2] for row in rows[:3]] == [["all", name] for name in ("autoregressive", "eagle3", "transformers")]
    assert len(rows) == 9 and rows[1][-1] == "1/2"
