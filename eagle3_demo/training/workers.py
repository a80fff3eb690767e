"""A corpus written by several processes: each answers its own part of the prompts into the same folder.

On a CPU several processes of one thread do more than one process of many threads. Every worker has a pipe to its
parent; a worker that dies is noticed by its end of the pipe, and a worker whose parent died stops for the same reason.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
from transformers import AutoConfig

from eagle3_demo.environment import processor_count
from eagle3_demo.errors import UserError
from eagle3_demo.training.bfloat16_weights import reorder_weights
from eagle3_demo.training.conversations import Conversations
from eagle3_demo.training.corpus import CorpusWriter, Progress, generate_corpus
from eagle3_demo.training.frozen_target import Precision, load_frozen_target
from eagle3_demo.training.manifest import CorpusSettings, corpus_manifest, target_identity
from eagle3_demo.training.prompts import Turns

PROCESS_BYTES = 700_000_000
"""What a process with torch takes besides weights and cache, roughly."""
MEMORY_SHARE = 0.8
FAILURE = "failure"
"""First word of a worker's last message when something went wrong; the reason follows."""


@dataclass(frozen=True, slots=True)
class CorpusJob:
    """What every worker of a corpus run needs to know.

    Attributes:
        source: hub id or folder that the target is loaded from.
        name: the target as the manifest calls it.
        device: `cpu`, `cuda`, …
        prompts: all conversations, the same for every worker.
        folder: the corpus folder.
        answer_tokens: when to stop, counting what the folder holds already.
    """

    source: str
    name: str
    device: str
    precision: Precision
    prompts: list[Turns]
    settings: CorpusSettings
    folder: Path
    answer_tokens: int


def default_workers(job: CorpusJob) -> int:
    """One process on a GPU; on a CPU one a core, as far as the memory reaches."""
    if job.device != "cpu":
        return 1
    config = AutoConfig.from_pretrained(job.source).get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    positions = job.settings.batch_size * (job.settings.max_prompt_tokens + job.settings.max_new_tokens + 1)
    cached = 2 * config.num_hidden_layers * heads * head_dim * positions
    # Weights twice over, for what a load and a reordered copy take.
    weights = 2 * (12 * config.num_hidden_layers * config.hidden_size**2 + config.vocab_size * config.hidden_size)
    needed = (cached + weights) * (2 if job.precision == "bf16" else 4) + PROCESS_BYTES
    return max(1, min(processor_count(), int(MEMORY_SHARE * psutil.virtual_memory().available) // needed))


def write_corpus(job: CorpusJob, workers: int) -> Generator[Progress, None, None]:
    """Answers prompts with so many processes, this one alone when it is one; yields the progress of all together.

    What has ended is written, whatever ends the run.

    Raises:
        UserError: the folder holds another corpus, or a worker failed; the message says why.
    """
    if workers == 1:
        yield from _answer_part(job, (0, 1))
    else:
        yield from _answer_in_processes(job, workers)


def _answer_part(job: CorpusJob, part: tuple[int, int]) -> Generator[Progress, None, None]:
    from eagle3_demo.models.chat import end_tokens

    model, tokenizer = load_frozen_target(job.source, job.device, job.precision)
    manifest = corpus_manifest(target_identity(job.name, model, tokenizer), job.prompts, job.settings)
    writer = CorpusWriter(job.folder, manifest)
    yield Progress(len(writer.done), writer.answer_tokens, 0.0)
    if writer.answer_tokens >= job.answer_tokens:
        return
    ends = end_tokens(model.config, model.generation_config, tokenizer)
    conversations = Conversations(tokenizer, job.prompts, ends, job.settings.max_prompt_tokens)
    reorder_weights(model, job.settings.batch_size)
    yield from generate_corpus(
        model, conversations, ends, writer, job.settings, job.answer_tokens, part, conversations.next_turn
    )


def _answer_in_processes(job: CorpusJob, workers: int) -> Iterator[Progress]:
    spawning = multiprocessing.get_context("spawn")
    processes: list[Any] = []
    channels: list[Connection] = []
    try:
        with _interrupts_ignored():
            for number in range(workers):
                ours, theirs = spawning.Pipe()
                process = spawning.Process(target=_work, args=(job, (number, workers), theirs))
                process.start()
                theirs.close()
                processes.append(process)
                channels.append(ours)
        yield from _progress_of_all(channels, processes, job.answer_tokens)
    finally:
        # Each writes what it has; a worker takes this signal once and then only finishes.
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()


def _progress_of_all(channels: list[Connection], processes: list[Any], answer_tokens: int) -> Iterator[Progress]:
    first: dict[int, Progress] = {}
    latest: dict[int, Progress] = {}
    running = list(range(len(channels)))
    while running:
        ready = wait([channels[number] for number in running])
        for number in [number for number in running if channels[number] in ready]:
            try:
                message = channels[number].recv()
            except EOFError:
                running.remove(number)
                processes[number].join()
                if code := processes[number].exitcode:
                    raise UserError(
                        f"worker {number} of the corpus run ended with exit code {code} (-9 is often a full "
                        "memory); give fewer --workers or a smaller --batch-size; what had ended is kept"
                    ) from None
                continue
            if message[0] == FAILURE:
                raise UserError(f"worker {number} of the corpus run failed: {message[1]}")
            first.setdefault(number, message[1])
            latest[number] = message[1]
            total = _summed(first, latest)
            yield total
            if total.answer_tokens >= answer_tokens:
                return


def _summed(first: dict[int, Progress], latest: dict[int, Progress]) -> Progress:
    """What was there before any worker wrote, plus what each added."""
    before = min(first.values(), key=lambda progress: progress.answer_tokens)
    return Progress(
        before.conversations + sum(latest[n].conversations - first[n].conversations for n in latest),
        before.answer_tokens + sum(latest[n].answer_tokens - first[n].answer_tokens for n in latest),
        sum(progress.tokens_per_second for progress in latest.values()),
    )


def _work(job: CorpusJob, part: tuple[int, int], channel: Connection) -> None:
    """One worker's life: progress, then silence, or the reason of a failure."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _interrupt_once)
    torch.set_num_threads(1)
    try:
        with closing(_answer_part(job, part)) as answering:
            for progress in answering:
                channel.send(("progress", progress))
                # The parent says nothing: there is something to read only when it is gone.
                if channel.poll():
                    break
    except (KeyboardInterrupt, BrokenPipeError):
        return
    except UserError as error:
        channel.send((FAILURE, str(error)))
    except Exception as error:
        channel.send((FAILURE, f"{type(error).__name__}: {error}"))
        raise


def _interrupt_once(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Processes started here do not die of Ctrl+C before they can take it: their parent tells them to end."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
