"""`generate` answers a prompt; `compare` answers it by two methods and says whether the outputs are the same."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import typer

from eagle3_demo.cli.console import note, output, print_json, progress_shown
from eagle3_demo.cli.options import (
    DEFAULTS,
    AsJson,
    MethodOption,
    Prompt,
    check_prompt,
    request,
    requested_engine,
    with_run_options,
)
from eagle3_demo.decoding.events import RunStatistics, compared
from eagle3_demo.engine import DecodingEngine
from eagle3_demo.environment import versions
from eagle3_demo.settings import GenerationSettings, Method

WARM_UP_TOKENS = 8


@with_run_options()
def generate(
    context: typer.Context,
    prompt: Prompt,
    method: MethodOption = DEFAULTS.method,
    as_json: AsJson = False,
) -> None:
    """Answer a prompt. The answer goes to stdout, everything else to stderr."""
    settings = request(context)
    check_prompt(prompt)
    engine = requested_engine(context)
    statistics = _run(engine, prompt, settings, echo=not as_json)
    if as_json:
        print_json(run_figures(engine, settings, statistics))
    else:
        note(f"\n{_in_words(engine, settings, statistics)}")


@with_run_options()
def compare(
    context: typer.Context,
    prompt: Prompt,
    method: MethodOption = DEFAULTS.method,
    as_json: AsJson = False,
) -> None:
    """Answer a prompt twice, plainly and by a speculative method, one after the other, and compare."""
    settings = request(context)
    if settings.method == "autoregressive":
        raise typer.BadParameter("it is what the other method is compared with", param_hint=["--method"])
    check_prompt(prompt)
    engine = requested_engine(context)
    result = comparison(engine, prompt, settings)
    if as_json:
        print_json(result)
    else:
        _print_comparison(result, settings.method)


def comparison(engine: DecodingEngine, prompt: str, settings: GenerationSettings) -> dict[str, Any]:
    """Plain decoding and the method of the settings on one prompt, after a few unmeasured tokens each."""
    each = {
        "autoregressive": settings.model_copy(update={"method": "autoregressive"}),
        settings.method: settings,
    }
    for one in each.values():
        _run(engine, prompt, one.model_copy(update={"max_new_tokens": WARM_UP_TOKENS}))
    runs = {method: _run(engine, prompt, one) for method, one in each.items()}
    figures = {method: run_figures(engine, each[method], run) for method, run in runs.items()}
    return figures | compared(runs["autoregressive"], runs[settings.method])


def run_figures(engine: DecodingEngine, settings: GenerationSettings, statistics: RunStatistics) -> dict[str, Any]:
    """One run as JSON data."""
    speculation = engine.speculation(settings)
    return statistics.figures(speculation) | {
        "token_ids": statistics.token_ids,
        "method": settings.method,
        "target": engine.target_name,
        "head": speculation.head,
        "device": engine.device,
        "dtype": engine.dtype,
        "versions": versions(),
    }


def _run(engine: DecodingEngine, prompt: str, settings: GenerationSettings, *, echo: bool = False) -> RunStatistics:
    statistics = RunStatistics()
    ids = engine.encode([{"role": "user", "content": prompt}])
    with progress_shown() as progress:

        def reading(read: int, total: int) -> None:
            progress(read / total, f"Reading the prompt: {read:,} of {total:,} tokens")

        run = engine.run(ids, settings, reading=reading)
        prefill = next(run)
    for event in itertools.chain([prefill], run):
        statistics.add(event)
        if echo:
            sys.stdout.write(event.text)
            sys.stdout.flush()
    if echo:
        sys.stdout.write("\n")
    return statistics


def _in_words(engine: DecodingEngine, settings: GenerationSettings, statistics: RunStatistics) -> str:
    words = (
        f"{statistics.new_tokens} tokens, {statistics.tokens_per_second:.1f} tokens/s, "
        f"acceptance length {statistics.acceptance_length:.2f}, ended by {statistics.stop_reason}"
    )
    if settings.method != "autoregressive":
        words += f"; {statistics.told(engine.speculation(settings))}"
    return words


def _print_comparison(result: dict[str, Any], fast: Method) -> None:
    console = output()
    for method in ("autoregressive", fast):
        run = result[method]
        console.rule(f"{method}: {run['tokens_per_second']:.1f} tokens/s, {run['acceptance_length']:.2f} per forward")
        console.print(run["text"], markup=False)
    console.rule()
    same = "identical output" if result["identical"] else f"outputs differ from token {result['first_divergence']} on"
    speedup = f"{result['speedup']:.2f}x" if result["speedup"] else "not measured"
    console.print(f"{same}; speedup {speedup}")
    if not result[fast]["speculation"]["active"]:
        console.print(f"speculation is OFF: {result[fast]['speculation']['reason']}")
