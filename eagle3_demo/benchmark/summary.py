"""From measurements to figures: per prompt, per suite, overall. Plain data that becomes `results.json`.

Speeds are decode speeds by the clock on the wall. `tokens_per_second` and `acceptance_length` pool all tokens;
`tokens_per_second_median`, `speedup` and `speedup_over_transformers` are medians over prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from eagle3_demo.benchmark import PEER
from eagle3_demo.benchmark.run import PromptResult
from eagle3_demo.benchmark.runners import Measurement
from eagle3_demo.decoding.events import first_divergence

BASELINE = "autoregressive"


def prompt_figures(result: PromptResult, *, greedy: bool) -> dict[str, Any]:
    """One prompt: what each method did and how it compares with plain decoding.

    `identical` is null for the baseline itself and where outputs cannot be compared: transformers draws its samples
    with other noise.
    """
    methods: dict[str, Any] = {}
    baseline = result.measurements.get(BASELINE)
    for name, measured in result.measurements.items():
        comparable = baseline is not None and name != BASELINE and (greedy or name != PEER)
        different = first_divergence(measured.token_ids, baseline.token_ids) if comparable and baseline else None
        methods[name] = {
            "new_tokens": len(measured.token_ids),
            "target_forwards": measured.target_forwards,
            "acceptance_length": round(measured.acceptance_length, 3),
            "seconds_prefill": round(measured.seconds_prefill, 4),
            "seconds_decode": round(measured.seconds_decode, 4),
            "tokens_per_second": round(measured.tokens_per_second, 3),
            "speedup": _ratio(measured, baseline),
            "speedup_over_transformers": _ratio(measured, result.measurements.get(PEER)),
            "identical": different is None if comparable else None,
            "first_divergence": different,
            "stop_reason": measured.stop_reason,
        }
    prompt = result.prompt
    return {"suite": prompt.suite, "id": prompt.id, "prompt_tokens": result.prompt_tokens, "methods": methods}


def method_figures(results: Sequence[PromptResult], name: str, *, greedy: bool) -> dict[str, Any]:
    """One method over several prompts. Figures that nothing was measured for are null."""
    measured = [result.measurements[name] for result in results]
    figures = [prompt_figures(result, greedy=greedy)["methods"][name] for result in results]
    seconds = sum(one.seconds_decode for one in measured)
    forwards = sum(one.target_forwards for one in measured)
    tokens = sum(one.decode_tokens for one in measured)
    compared = [one["identical"] for one in figures if one["identical"] is not None]
    return {
        "prompts": len(measured),
        "new_tokens": sum(len(one.token_ids) for one in measured),
        "tokens_per_second": round(tokens / seconds, 3) if seconds else None,
        "tokens_per_second_median": _median([one.tokens_per_second for one in measured if one.decode_tokens]),
        "seconds_prefill_median": _median([one.seconds_prefill for one in measured]),
        "acceptance_length": round(tokens / forwards, 3) if forwards else None,
        "speedup": _median([one["speedup"] for one in figures if one["speedup"] is not None]),
        "speedup_over_transformers": _median(
            [one["speedup_over_transformers"] for one in figures if one["speedup_over_transformers"] is not None]
        ),
        "identical": sum(compared) if compared else None,
        "compared": len(compared),
    }


def figures(results: Sequence[PromptResult], *, greedy: bool) -> dict[str, Any]:
    """Everything: `overall` and `suites` by method, `prompts` one by one.

    Args:
        results: at least one prompt.
        greedy: whether the run was greedy.
    """
    names = list(results[0].measurements)
    suites = list(dict.fromkeys(result.prompt.suite for result in results))
    by_suite = {suite: [result for result in results if result.prompt.suite == suite] for suite in suites}
    return {
        "overall": {name: method_figures(results, name, greedy=greedy) for name in names},
        "suites": {
            suite: {name: method_figures(some, name, greedy=greedy) for name in names}
            for suite, some in by_suite.items()
        },
        "prompts": [prompt_figures(result, greedy=greedy) for result in results],
    }


def _ratio(measured: Measurement, other: Measurement | None) -> float | None:
    if other is None or other is measured or not measured.tokens_per_second or not other.tokens_per_second:
        return None
    return round(measured.tokens_per_second / other.tokens_per_second, 3)


def _median(values: list[float]) -> float | None:
    return round(median(values), 3) if values else None
