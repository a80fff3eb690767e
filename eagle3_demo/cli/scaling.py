"""`scaling` trains heads on fractions of a corpus and measures how much more data helps."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eagle3_demo.benchmark.prompts import PromptFile, read_prompt_file
from eagle3_demo.cli.console import note, output, progress_shown
from eagle3_demo.cli.options import DEFAULTS, Depth, MaxNewTokens, Nodes, TreeTopK, request
from eagle3_demo.cli.training import HELD_OUT_BLOCKS, Device, PrecisionOption, Target
from eagle3_demo.environment import processor_name, versions
from eagle3_demo.errors import UserError
from eagle3_demo.files import write_atomically
from eagle3_demo.models.embedded import embedded_target
from eagle3_demo.presets import EMBEDDED, REPOSITORY
from eagle3_demo.settings import METHOD_NAMES, SPECULATIVE_METHODS, GenerationSettings, Method

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from eagle3_demo.training.batches import Corpus, TokenBlock
    from eagle3_demo.training.frozen_target import Precision
    from eagle3_demo.training.scaling import Doing, ScalingRun, ScalingSettings

PROMPTS = REPOSITORY / "assets" / "prompts.jsonl"
PASSES = 2
RULE = (
    "Every head gets the same number of token-passes, so a smaller fraction is repeated more often; fractions are "
    "nested and drawn at random by blocks of like sequences."
)


def scaling(
    context: typer.Context,
    corpus: Annotated[Path, typer.Option(help="A folder made by `corpus`.")],
    out: Annotated[Path, typer.Option(help="Folder for the heads, scaling.json, curve.json and the figure.")],
    fractions: Annotated[
        str, typer.Option(help="Shares of the corpus, each above 0 and at most 1.")
    ] = "0.125,0.25,0.5,1",
    heads: Annotated[str, typer.Option(help="Kinds of head to train: eagle3, eagle2 or both.")] = "eagle3,eagle2",
    tokens: Annotated[
        int | None, typer.Option(min=1, help=f"Token-passes for every head; without it {PASSES} x the corpus.")
    ] = None,
    prompts: Annotated[Path, typer.Option(help="JSONL to measure on.", show_default="the built-in ones")] = PROMPTS,
    limit: Annotated[int, typer.Option(min=1, help="Prompts to measure on, the suites taking turns.")] = 12,
    target: Target = None,
    steps_ahead: Annotated[int, typer.Option(min=1, help="EAGLE-3's steps of the training-time test.")] = 4,
    draft_vocab: Annotated[int, typer.Option(min=16, help="Tokens that an EAGLE-3 head can propose.")] = 8192,
    block_positions: Annotated[int, typer.Option(min=64, help="Positions in a step, padding included.")] = 4096,
    evaluate_every: Annotated[int, typer.Option(min=1, help="Blocks between points of a learning curve.")] = 50,
    precision: PrecisionOption = "no",
    feature_cache: Annotated[float, typer.Option(min=0, help="GB of disk for the target's features.")] = 8.0,
    max_new_tokens: MaxNewTokens = 128,
    depth: Depth = DEFAULTS.tree.depth,
    tree_top_k: TreeTopK = DEFAULTS.tree.top_k,
    nodes: Nodes = DEFAULTS.tree.nodes,
    seed: Annotated[int, typer.Option(help="For the fractions and the order of the batches.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")] = False,
    device: Device = "auto",
) -> None:
    """Train an EAGLE-3 and an EAGLE-2 head on each fraction of a corpus; measure all with the same tree."""
    shares, methods = parse_fractions(fractions), parse_heads(heads)
    generation = request(context).model_copy(update={"sampling": DEFAULTS.sampling})
    file = read_prompt_file(prompts, limit)
    data, training, held_out = _blocks(corpus, block_positions, seed)
    total = sum(block.answer_tokens for block in training)
    settings = _settings(tokens or PASSES * total, steps_ahead, draft_vocab, evaluate_every, seed, generation, file)

    from eagle3_demo.training.scaling import claim_folder

    frozen = _frozen_target(corpus, data, target, device, precision)
    claim_folder(out, settings.plan(training), resume)
    run = _prepare(frozen, precision, feature_cache, settings, file, out)
    report = _conditions(data, target, settings, file, run, total)
    try:
        with progress_shown() as progress:
            measured = 0
            for doing in run.run(training, held_out, shares, methods):
                progress(_fraction_done(doing, run, settings, len(shares) * len(methods)), _in_words(doing))
                if len(run.points) > measured:
                    measured = len(run.points)
                    _write(out, report | {"complete": measured == len(shares) * len(methods), "points": run.points})
    finally:
        if run.points:
            _print_points(run.points)
            note(f"Written: scaling.json, curve.json, figure.json and figure.html in {out}")


def parse_fractions(text: str) -> tuple[float, ...]:
    """Ascending, different shares.

    Raises:
        typer.BadParameter: one is no number, or not above 0 and at most 1.
    """
    try:
        shares = sorted({float(part) for part in text.split(",") if part.strip()})
    except ValueError as error:
        raise typer.BadParameter(
            f"{text!r} is not a comma-separated list of numbers", param_hint=["--fractions"]
        ) from error
    wrong = [share for share in shares if not 0 < share <= 1]
    if wrong or not shares:
        shown = ", ".join(f"{share:g}" for share in wrong) or "nothing"
        raise typer.BadParameter(f"{shown} is not above 0 and at most 1", param_hint=["--fractions"])
    return tuple(shares)


def parse_heads(text: str) -> tuple[Method, ...]:
    """Different kinds of head, EAGLE-3 first.

    Raises:
        typer.BadParameter: one is no kind of head, or there is none.
    """
    asked = {part.strip() for part in text.split(",") if part.strip()}
    if not asked or not asked <= set(SPECULATIVE_METHODS):
        known = ", ".join(SPECULATIVE_METHODS)
        raise typer.BadParameter(f"{text!r} is not a comma-separated list of {known}", param_hint=["--heads"])
    return tuple(method for method in SPECULATIVE_METHODS if method in asked)


def _blocks(corpus: Path, block_positions: int, seed: int) -> tuple[Corpus, list[TokenBlock], list[TokenBlock]]:
    """The corpus with its blocks to train on and those held out."""
    from eagle3_demo.training.batches import make_blocks, read_corpus

    data = read_corpus(corpus)
    training = make_blocks(data.training, block_positions, seed)
    held_out = make_blocks(data.held_out, block_positions, seed)[:HELD_OUT_BLOCKS]
    if not training or not held_out:
        raise UserError(
            f"{corpus} is too small: it needs answers to train on and some held out; run `corpus` for longer"
        )
    return data, training, held_out


def _settings(
    tokens: int,
    steps_ahead: int,
    draft_vocab: int,
    evaluate_every: int,
    seed: int,
    generation: GenerationSettings,
    file: PromptFile,
) -> ScalingSettings:
    from eagle3_demo.training.scaling import ScalingSettings
    from eagle3_demo.training.trainer import TrainingSettings

    training = TrainingSettings(token_passes=tokens, steps_ahead=steps_ahead, evaluate_every=evaluate_every, seed=seed)
    return ScalingSettings(training, draft_vocab, generation, file.sha256)


def _frozen_target(
    corpus: Path, data: Corpus, target: str | None, device: str, precision: Precision
) -> tuple[str, str, PreTrainedModel]:
    """The target's name, where it is loaded from, and its model to train on, once the corpus is known to be its own."""
    import torch

    from eagle3_demo.training.frozen_target import load_frozen_target
    from eagle3_demo.training.manifest import differing, target_identity

    name = target or EMBEDDED.name
    place = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    with progress_shown() as progress:
        source = str(target or embedded_target(progress=progress))
    model, tokenizer = load_frozen_target(source, place, precision)
    if different := differing(data.manifest, target_identity(name, model, tokenizer)):
        raise UserError(
            f"{corpus} holds answers of {data.manifest['target']}, and {name} is another target (its "
            f"{', '.join(different)} differ); give the --target that the corpus is of, or make a corpus of {name}"
        )
    return name, source, model


def _prepare(
    frozen: tuple[str, str, PreTrainedModel],
    precision: Precision,
    feature_cache: float,
    settings: ScalingSettings,
    file: PromptFile,
    out: Path,
) -> ScalingRun:
    """Loads the target once more, as the demo runs it, to measure with."""
    from eagle3_demo.decoding.local_engine import LocalEngine
    from eagle3_demo.models.target import TargetModel
    from eagle3_demo.training.features import TargetFeatures
    from eagle3_demo.training.scaling import AcceptanceMeter, ScalingRun, shared_taps

    name, source, model = frozen
    with progress_shown() as progress:
        engine = LocalEngine(TargetModel.load(source, device=model.device.type, progress=progress), {}, name)
    encoded = [engine.encode([{"role": "user", "content": prompt.text}]) for prompt in file.prompts]
    taps = shared_taps(model.config.get_text_config().num_hidden_layers)
    features = TargetFeatures(model, taps, out / "features", int(feature_cache * 1e9))
    meter = AcceptanceMeter(engine.target, encoded, settings.generation)
    return ScalingRun(model, features, meter, settings, sorted(engine.target.end_tokens), out, precision)


def _conditions(
    data: Corpus, target: str | None, settings: ScalingSettings, file: PromptFile, run: ScalingRun, total: int
) -> dict[str, Any]:
    """What the figures depend on, as JSON data."""
    import torch

    machine = f"{processor_name()}, {torch.get_num_threads()} threads, {run.model.device.type}"
    passes = settings.training.token_passes
    return {
        "about": (
            f"Heads for {target or EMBEDDED.name}, each trained for {passes:,} token-passes on a share of "
            f"{total:,} answer tokens; measured greedily on {len(file.prompts)} prompts of {file.name}. "
            f"Machine: {machine}."
        ),
        "rule": RULE,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "corpus": data.manifest,
        "prompt_file": {"name": file.name, "sha256": file.sha256, "prompts": len(file.prompts)},
        "tree": settings.generation.tree.model_dump(mode="json"),
        "max_new_tokens": settings.generation.max_new_tokens,
        "versions": versions(),
    }


def _write(out: Path, results: dict[str, Any]) -> None:
    """scaling.json, curve.json and the figure as JSON and HTML, each whole or not at all."""
    from eagle3_demo.training.figures import ScalingResults, scaling_figure
    from eagle3_demo.training.scaling import curves

    figure = scaling_figure(ScalingResults.model_validate(results))
    about = {"about": results["about"], "curves": curves(results["points"], out)}
    texts = {
        "scaling.json": json.dumps(results, indent=1, ensure_ascii=False),
        "curve.json": json.dumps(about, indent=1, ensure_ascii=False),
        "figure.json": figure.to_json(),
        "figure.html": figure.to_html(include_plotlyjs=True),
    }
    for name, text in texts.items():
        write_atomically(out / name, partial(Path.write_text, data=text, encoding="utf-8"))


def _fraction_done(doing: Doing, run: ScalingRun, settings: ScalingSettings, heads: int) -> float:
    passes = settings.training.token_passes
    within = min(1.0, doing.report.token_passes / passes) if doing.report else 0.0
    return min(1.0, (len(run.points) + 0.9 * within) / heads)


def _in_words(doing: Doing) -> str:
    head = f"{METHOD_NAMES[doing.method]} on {doing.fraction:g}"
    if doing.report is None:
        return f"{head}: measuring"
    return f"{head}, {doing.report.kind}: acceptance by step {doing.report.acceptance}"


def _print_points(points: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table("head", "share", "answer tokens", "token-passes", "acceptance length", "identical")
    for point in points:
        table.add_row(
            METHOD_NAMES[point["method"]],
            f"{point['fraction']:g}",
            f"{point['answer_tokens']:,}",
            f"{point['token_passes']:,}",
            f"{point['acceptance_length']:.2f}",
            f"{point['identical']}/{point['compared']}",
        )
    output().print(RULE)
    output().print(table)
