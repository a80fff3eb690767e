"""Runs every method on every prompt, interleaved so that slow phases of the machine hit all of them alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import torch

from eagle3_demo.benchmark.prompts import BenchmarkPrompt, PromptFile
from eagle3_demo.benchmark.runners import Measurement, Runner
from eagle3_demo.engine import DecodingEngine
from eagle3_demo.environment import processor_name, versions
from eagle3_demo.settings import SPECULATIVE_METHODS, GenerationSettings

WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class PromptResult:
    """All methods on one prompt."""

    prompt: BenchmarkPrompt
    prompt_tokens: int
    measurements: dict[str, Measurement]


def run_benchmark(
    prompts: Sequence[BenchmarkPrompt],
    runners: dict[str, Runner],
    encode: Callable[[list[dict[str, str]]], list[int]],
    settings: GenerationSettings,
) -> Iterator[PromptResult]:
    """Yields the result of each prompt as soon as every method has answered it.

    The methods take turns at going first. Before the first prompt each method answers a few tokens unmeasured.

    Args:
        runners: by method name; each gets the same token ids.
        encode: a conversation to token ids.
    """
    encoded = [encode([{"role": "user", "content": prompt.text}]) for prompt in prompts]
    warm_up = settings.model_copy(update={"max_new_tokens": min(WARM_UP_TOKENS, settings.max_new_tokens)})
    for runner in runners.values():
        runner(encoded[0], warm_up)
    names = list(runners)
    for number, (prompt, ids) in enumerate(zip(prompts, encoded, strict=True)):
        turn = number % len(names)
        order = names[turn:] + names[:turn]
        measured = {name: runners[name](ids, settings) for name in order}
        yield PromptResult(prompt, len(ids), {name: measured[name] for name in names})


def conditions(
    engine: DecodingEngine, settings: GenerationSettings, file: PromptFile, methods: Sequence[str]
) -> dict[str, Any]:
    """What the figures depend on, as JSON data; `head` and `speculation` are those of the first speculative method."""
    drafting = next((name for name in methods if name in SPECULATIVE_METHODS), "autoregressive")
    speculation = engine.speculation(settings.model_copy(update={"method": drafting}))
    heads = {
        name: engine.speculation(settings.model_copy(update={"method": name})).head
        for name in methods
        if name in SPECULATIVE_METHODS
    }
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "target": engine.target_name,
        "head": speculation.head,
        "heads": heads,
        "device": engine.device,
        "dtype": engine.dtype,
        "speculation": {"active": speculation.active, "reason": speculation.reason},
        "machine": {"processor": processor_name(), "threads": torch.get_num_threads()},
        "versions": versions(),
        "settings": settings.model_dump(mode="json", exclude={"method", "stop"}),
        "prompt_file": {"name": file.name, "sha256": file.sha256},
    }
