"""`corpus` collects the target's own answers; `train` trains a draft head on them."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from eagle3_demo.cli.console import note, progress_shown
from eagle3_demo.errors import UserError
from eagle3_demo.models.embedded import embedded_target
from eagle3_demo.presets import EMBEDDED

if TYPE_CHECKING:
    import torch
    from accelerate import PartialState

    from eagle3_demo.training.metrics import Report

HELD_OUT_BLOCKS = 12
DRAFT_VOCABULARY = 8192

Precision = Literal["no", "bf16"]
StartName = Literal["plain", "lm-head", "full"]
LossName = Literal["soft", "hard", "lk", "topk"]
OptimizerChoice = Literal["muon", "adamw"]
PrecisionOption = Annotated[Precision, typer.Option(help="bf16 where the processor has it.")]
Target = Annotated[str | None, typer.Option(help="Hub id or folder; without it the embedded target.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, …; auto takes CUDA when there is some.")]


def corpus(
    prompts: Annotated[list[Path], typer.Option(help="JSONL with prompt or turns, or text; repeatable.")],
    out: Annotated[Path, typer.Option(help="The corpus folder; an interrupted run goes on where it stood.")],
    tokens: Annotated[int, typer.Option(min=1, help="Answer tokens to collect in all.")] = 300_000,
    target: Target = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 256,
    batch_size: Annotated[int, typer.Option(min=1, help="Answers in flight at once, in each worker.")] = 192,
    follow_ups: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the single-turn prompts that get a second turn.")
    ] = 0.0,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; by default one a core on a CPU, one on a GPU.")
    ] = None,
    precision: PrecisionOption = "no",
    seed: Annotated[int, typer.Option(help="For prompt order, temperatures and sampling.")] = 0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Only go on with a corpus; without it one is begun where there is none.")
    ] = False,
    device: Device = "auto",
) -> None:
    """Let the target answer prompts and keep its answers as token shards to train on."""
    from eagle3_demo.training.bfloat16_weights import how_it_multiplies
    from eagle3_demo.training.manifest import CorpusSettings
    from eagle3_demo.training.prompts import read_prompts, with_follow_ups
    from eagle3_demo.training.workers import CorpusJob, default_workers, write_corpus

    if resume and not (out / "manifest.json").is_file():
        raise UserError(f"nothing to resume: {out} holds no corpus; leave --resume out to begin one")
    settings = CorpusSettings(
        max_new_tokens=max_new_tokens, batch_size=batch_size, seed=seed, follow_up_share=follow_ups
    )
    job = CorpusJob(
        source=_source(target),
        name=target or EMBEDDED.name,
        device=_place(device),
        precision=precision,
        prompts=with_follow_ups(read_prompts(prompts), follow_ups, seed),
        settings=settings,
        folder=out,
        answer_tokens=tokens,
    )
    processes = workers or default_workers(job)
    multiplying = how_it_multiplies(job.device, precision == "bf16")
    note(f"{processes} {'process' if processes == 1 else 'processes'}, {multiplying}")
    state = None
    try:
        with progress_shown() as progress, closing(write_corpus(job, processes)) as states:
            for state in states:
                doing = f"{state.answer_tokens:,} answer tokens, {state.tokens_per_second:.0f} a second"
                progress(min(1.0, state.answer_tokens / tokens), doing)
    finally:
        if state is not None:
            note(
                f"{out}: {state.conversations:,} conversations, {state.answer_tokens:,} answer tokens; "
                "the same command goes on"
            )


def train(
    corpus: Annotated[Path, typer.Option(help="A folder made by `corpus`.")],
    out: Annotated[Path, typer.Option(help="The run folder; its folder `head` is the best head so far.")],
    target: Target = None,
    epochs: Annotated[float, typer.Option(min=0.01, help="Passes over the corpus.")] = 4.0,
    tokens: Annotated[
        int | None, typer.Option(min=1, help="Answer tokens to train on, with repetition; in place of --epochs.")
    ] = None,
    steps_ahead: Annotated[int, typer.Option(min=1, help="Steps of the training-time test.")] = 4,
    draft_vocab: Annotated[
        int | None, typer.Option(min=16, help=f"Tokens that the head can propose.  [default: {DRAFT_VOCABULARY}]")
    ] = None,
    taps: Annotated[
        str | None, typer.Option(help="Three layers whose inputs are read, as a,b,c.  [default: 2, L//2, L-3]")
    ] = None,
    start: Annotated[
        StartName | None, typer.Option(help="First weights: random, or taken from the target.  [default: full]")
    ] = None,
    start_from: Annotated[Path | None, typer.Option(help="A head's folder to go on from, in place of --start.")] = None,
    loss: Annotated[LossName, typer.Option(help="What is minimised at each step.")] = "soft",
    optimizer: Annotated[OptimizerChoice, typer.Option(help="Muon for matrices and AdamW, or AdamW alone.")] = "muon",
    learning_rate: Annotated[float, typer.Option(min=0, help="AdamW's peak rate.")] = 1e-3,
    muon_learning_rate: Annotated[float, typer.Option(min=0, help="Muon's peak rate.")] = 1e-2,
    block_positions: Annotated[int, typer.Option(min=64, help="Positions in a block, padding included.")] = 4096,
    rows_per_update: Annotated[int, typer.Option(min=1, help="Conversations in an update of one process.")] = 4,
    rows_at_once: Annotated[
        int | None, typer.Option(min=1, help="Conversations in a forward; gradients add up over an update.")
    ] = None,
    evaluate_every: Annotated[int, typer.Option(min=1, help="Blocks between evaluations.")] = 400,
    precision: PrecisionOption = "no",
    feature_cache: Annotated[float, typer.Option(min=0, help="GB of disk for the target's features.")] = 8.0,
    seed: Annotated[int, typer.Option(help="For first weights and the order of the batches.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the run folder's last state.")] = False,
    device: Device = "auto",
) -> None:
    """Train a draft head on a corpus by the training-time test; `accelerate launch` runs it in several processes."""
    import torch

    from eagle3_demo.models.chat import end_tokens
    from eagle3_demo.training.batches import make_blocks, read_corpus
    from eagle3_demo.training.features import TargetFeatures
    from eagle3_demo.training.frozen_target import load_frozen_target
    from eagle3_demo.training.initial_head import HeadChoice, default_taps, first_head
    from eagle3_demo.training.manifest import differing, target_identity
    from eagle3_demo.training.trainer import Trainer, TrainingSettings

    if not resume and ((out / "state.pt").exists() or (out / "head").exists()):
        raise UserError(f"{out} holds a training run already; add --resume to go on with it, or give another --out")
    if resume and not (out / "state.pt").is_file():
        raise UserError(f"nothing to resume: {out / 'state.pt'} does not exist; start without --resume")
    if start_from and (draft_vocab or taps or start):
        raise UserError("--start-from brings a head's own draft vocabulary, taps and weights; leave the others out")
    data = read_corpus(corpus)
    held_out = make_blocks(data.held_out, block_positions, seed)[:HELD_OUT_BLOCKS]
    blocks = make_blocks(data.training, block_positions, seed)
    if not blocks or not held_out:
        raise UserError(
            f"{corpus} holds too few answers to train on some and keep others back; run `corpus` for longer"
        )
    state, place = _processes(device)
    model, tokenizer = load_frozen_target(_source(target), place, precision)
    name = target or EMBEDDED.name
    if different := differing(data.manifest, target_identity(name, model, tokenizer)):
        raise UserError(
            f"{corpus} holds answers of {data.manifest['target']}, and {name} is another target (its "
            f"{', '.join(different)} differ); give the --target that the corpus is of, or make a corpus of {name}"
        )
    counts = data.answer_counts(model.config.get_text_config().vocab_size)
    ends = end_tokens(model.config, model.generation_config, tokenizer)
    torch.manual_seed(seed)
    choice = HeadChoice(draft_vocab or DRAFT_VOCABULARY, _layers(taps), start or "full", start_from)
    head = first_head(model, choice, counts, sorted(ends))
    budget = int(feature_cache * 1e9) // state.num_processes
    features = TargetFeatures(model, head.config.taps or default_taps(model), out / "features", budget)
    settings = TrainingSettings(
        token_passes=tokens or int(epochs * int(counts.sum())),
        steps_ahead=steps_ahead,
        optimizer=optimizer,
        learning_rate=learning_rate,
        muon_learning_rate=muon_learning_rate,
        loss=loss,
        rows_per_update=rows_per_update,
        rows_at_once=rows_at_once,
        evaluate_every=evaluate_every,
        seed=seed,
    )
    trainer = Trainer(head, features, settings, out, resume=resume, mixed_precision=precision)
    with progress_shown() as progress:
        for report in trainer.run(blocks, held_out):
            if state.is_main_process:
                progress(min(1.0, report.token_passes / settings.token_passes), _told(report, settings.token_passes))
    if state.is_main_process:
        note(f"The best head is in {out / 'head'}, the learning curve in {out / 'curve.html'}")


def _told(report: Report, token_passes: int) -> str:
    """A report in one line: loss and acceptance by step ahead, speed, time left."""
    by_step = [" ".join(f"{value:.3f}" for value in values) for values in (report.loss, report.acceptance)]
    told = f"{report.kind.replace('_', '-')}: loss {by_step[0]}, acceptance {by_step[1]}"
    if not report.tokens_per_second:
        return told
    left = timedelta(seconds=round((token_passes - report.token_passes) / report.tokens_per_second))
    return f"{told}, {report.tokens_per_second:.0f} tokens/s, {max(left, timedelta())} left"


def _layers(taps: str | None) -> tuple[int, ...] | None:
    try:
        return tuple(int(part) for part in taps.split(",")) if taps else None
    except ValueError as error:
        raise typer.BadParameter(f"{taps!r} is not three layers, such as 2,15,27", param_hint="--taps") from error


def _processes(device: str) -> tuple[PartialState, torch.device]:
    """All processes of this training, and the device that this one trains on."""
    import torch
    from accelerate import PartialState

    state = PartialState(cpu=device == "cpu" or (device == "auto" and not torch.cuda.is_available()))
    return state, state.device if device in ("auto", "cuda") else torch.device(device)


def _source(target: str | None) -> str:
    """Where the target is loaded from; the embedded one is provided first."""
    if target:
        return target
    with progress_shown() as progress:
        return str(embedded_target(progress=progress))


def _place(device: str) -> str:
    import torch

    return ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
