"""`benchmark`: methods against each other on a file of prompts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eagle3_demo.benchmark import BENCHMARK_METHODS, PEER
from eagle3_demo.benchmark.prompts import PromptFile, read_prompt_file
from eagle3_demo.cli.console import note, output, progress_shown
from eagle3_demo.cli.options import request, requested_engine, with_run_options
from eagle3_demo.engine import DecodingEngine
from eagle3_demo.models.embedded import embedded_target
from eagle3_demo.presets import EMBEDDED, find_preset
from eagle3_demo.settings import GenerationSettings

if TYPE_CHECKING:
    from eagle3_demo.benchmark.run import PromptResult
    from eagle3_demo.benchmark.runners import Runner


@with_run_options("stop", max_new_tokens=128)
def benchmark(
    context: typer.Context,
    prompts: Annotated[Path, typer.Option(help="JSONL: suite, id, and turns or prompt on each line.")],
    methods: Annotated[str, typer.Option(help=f"Of {', '.join(BENCHMARK_METHODS)}.")] = "autoregressive,eagle3",
    limit: Annotated[int | None, typer.Option(min=1, help="Prompts in total, the suites taking turns.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for results.json and report.md.")] = Path("results"),
) -> None:
    """Measure methods against each other, interleaved prompt by prompt; write results.json and report.md."""
    names = _method_names(methods)
    settings = request(context)
    file = read_prompt_file(prompts, limit)
    engine = requested_engine(context)
    runners = {name: _runner(name, engine, context.params["preset"], context.params["target"]) for name in names}
    results = _measure(engine, runners, file, settings)
    _report(engine, file, settings, names, results, out)


def _measure(
    engine: DecodingEngine, runners: dict[str, Runner], file: PromptFile, settings: GenerationSettings
) -> list[PromptResult]:
    """Results prompt by prompt; those so far when the person interrupts."""
    from eagle3_demo.benchmark.run import run_benchmark

    results: list[PromptResult] = []
    total = len(file.prompts)
    try:
        with progress_shown() as progress:
            progress(0.0, "Warming up")
            for result in run_benchmark(file.prompts, runners, engine.encode, settings):
                results.append(result)
                progress(len(results) / total, f"{len(results)} of {total} prompts")
    except KeyboardInterrupt:
        if not results:
            raise
        note("Interrupted: reporting the prompts measured so far")
    return results


def _report(
    engine: DecodingEngine,
    file: PromptFile,
    settings: GenerationSettings,
    methods: list[str],
    results: list[PromptResult],
    out: Path,
) -> None:
    from eagle3_demo.benchmark.report import console_table, write_report
    from eagle3_demo.benchmark.run import conditions
    from eagle3_demo.benchmark.summary import figures

    report = conditions(engine, settings, file, methods) | {"complete": len(results) == len(file.prompts)}
    report |= figures(results, greedy=settings.sampling.greedy)
    output().print(console_table(report))
    write_report(report, out)
    note(f"Written: {out / 'results.json'} and {out / 'report.md'}")


def _method_names(text: str) -> list[str]:
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names or not set(names) <= set(BENCHMARK_METHODS):
        known = ", ".join(BENCHMARK_METHODS)
        raise typer.BadParameter(f"{text!r} is not a comma-separated list of {known}", param_hint=["--methods"])
    return names


def _runner(name: str, engine: DecodingEngine, preset: str | None, target: str | None) -> Runner:
    from eagle3_demo.benchmark.runners import TransformersRunner, engine_runner

    if name != PEER:
        return engine_runner(engine, name)
    chosen = find_preset(preset) if preset else EMBEDDED
    source = target or (embedded_target() if chosen.embedded else chosen.target)
    return TransformersRunner(source, engine.device, engine.dtype)
