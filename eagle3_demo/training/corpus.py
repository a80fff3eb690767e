"""The training corpus: the target's own answers to a list of prompts, kept as token shards.

A head learns to imitate *this* target, so the answers must come from it (eagle3_reference.md section 3.5), through the
same chat template as serving. Answers are generated in a batch whose rows are refilled as answers end.

A corpus folder holds `manifest.json` and `shard-HASH.safetensors` files. A shard's tensors:

- `tokens`: uint16 or int32 [tokens], all conversations one after another, prompts and answers;
- `answer`: bool [tokens], true where the token was written by the target (the end-of-turn token included);
- `offsets`: int64 [conversations + 1], where each conversation starts;
- `prompt_index`: int64 [conversations], the prompt's line in the prompt list;
- `held_out`: bool [conversations], true for the prompts kept away from training.
"""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from transformers import PreTrainedModel

from eagle3_demo.errors import UserError
from eagle3_demo.files import write_atomically
from eagle3_demo.training.answers import Answer, AnswerGenerator
from eagle3_demo.training.manifest import CorpusSettings, differing, read_manifest

HELD_OUT_ONE_IN = 50


@dataclass(frozen=True, slots=True)
class Progress:
    """What a corpus run has written so far."""

    conversations: int
    answer_tokens: int
    tokens_per_second: float


class CorpusWriter:
    """Appends finished answers to a corpus folder, a shard at a time; an interrupted run resumes where it stood.

    Args:
        folder: the corpus folder; created when missing.
        manifest: what the corpus is made with; a folder made otherwise is refused.

    Raises:
        UserError: the folder holds a corpus with another manifest, or a shard is damaged.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any], sequences_per_shard: int = 512) -> None:
        self.folder, self.sequences_per_shard = folder, sequences_per_shard
        self.pending: list[Answer] = []
        path = folder / "manifest.json"
        if path.exists():
            different = differing(read_manifest(folder), manifest)
            if different:
                raise UserError(
                    f"{folder} holds a corpus made with another {', '.join(different)}; "
                    "give another --out folder or the settings it was made with"
                )
        else:
            text = json.dumps(manifest, indent=1, ensure_ascii=False)
            write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
        loaded = [_load_shard(shard) for shard in sorted(folder.glob("shard-*.safetensors"))]
        self.done = {int(index) for shard in loaded for index in shard["prompt_index"]}
        self.answer_tokens = sum(int(shard["answer"].sum()) for shard in loaded)

    def add(self, answer: Answer) -> None:
        """Takes one ended conversation; writes a shard when enough have come together."""
        self.pending.append(answer)
        self.answer_tokens += sum(answer.marks)
        self.done.add(answer.prompt_index)
        if len(self.pending) >= self.sequences_per_shard:
            self.flush()

    def flush(self) -> None:
        """Writes what is pending as one shard, whole or not at all."""
        if not self.pending:
            return
        sequences = [answer.tokens for answer in self.pending]
        tokens = np.concatenate([np.asarray(ids, dtype=np.int32) for ids in sequences])
        if int(tokens.max()) < 2**16:
            tokens = tokens.astype(np.uint16)
        indices = np.array([answer.prompt_index for answer in self.pending], dtype=np.int64)
        tensors = {
            "tokens": tokens,
            "answer": np.concatenate([np.asarray(answer.marks, dtype=bool) for answer in self.pending]),
            "offsets": np.cumsum([0] + [len(ids) for ids in sequences], dtype=np.int64),
            "prompt_index": indices,
            "held_out": np.array([is_held_out(int(index)) for index in indices], dtype=bool),
        }
        # Named by content, so that several processes can fill one folder.
        name = hashlib.sha256(tokens.tobytes()).hexdigest()[:12]
        path = self.folder / f"shard-{name}.safetensors"
        write_atomically(path, lambda temporary: save_file(tensors, temporary))
        self.pending = []


def _load_shard(path: Path) -> dict[str, np.ndarray]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"corpus shard {path} is damaged ({error}); delete it and run `corpus` again") from error


def is_held_out(prompt_index: int) -> bool:
    """Whether a prompt is kept away from training: one in 50, by a hash of its number, the same in every run."""
    return hashlib.sha256(str(prompt_index).encode()).digest()[0] % HELD_OUT_ONE_IN == 0


def waiting_prompts(
    order: list[int], encoded: Sequence[list[int]], settings: CorpusSettings, done: set[int], window: int = 1024
) -> Iterator[Answer]:
    """Prompts still to answer, sorted by length within windows so that a batch holds rows of like length."""
    batch: list[Answer] = []
    for index in order:
        if index in done:
            continue
        ids = encoded[index]
        if len(ids) > settings.max_prompt_tokens:
            continue
        temperature = random.Random(f"{settings.seed}:{index}").choice(settings.temperatures)
        batch.append(Answer(index, temperature, ids))
        if len(batch) == window:
            yield from sorted(batch, key=lambda answer: len(answer.prompt))
            batch = []
    yield from sorted(batch, key=lambda answer: len(answer.prompt))


def generate_corpus(
    model: PreTrainedModel,
    encoded: Sequence[list[int]],
    end_tokens: frozenset[int],
    writer: CorpusWriter,
    settings: CorpusSettings,
    answer_tokens: int,
    part: tuple[int, int] = (0, 1),
    next_turn: Callable[[Answer], Answer | None] | None = None,
) -> Iterator[Progress]:
    """Answers prompts until the corpus holds `answer_tokens` tokens of answers or the prompts run out.

    On a CPU several processes of one thread each, every one on its own part, do more than one process of many threads.

    Args:
        model: the frozen target.
        encoded: token ids of every prompt, template included, by prompt index.
        answer_tokens: when to stop, counting what this process has written and what it found.
        part: (k, n): every n-th prompt of the shuffled order, from the k-th on.
        next_turn: how a conversation goes on after an answer (training/conversations.py); None ends it.

    Yields:
        Progress after every ended conversation.
    """
    order = list(range(len(encoded)))
    random.Random(settings.seed).shuffle(order)
    order = order[part[0] :: part[1]]
    waiting = waiting_prompts(order, encoded, settings, set(writer.done))
    generator = AnswerGenerator(
        model,
        end_tokens,
        batch_size=settings.batch_size,
        max_prompt_tokens=settings.max_prompt_tokens,
        max_new_tokens=settings.max_new_tokens,
        seed=settings.seed * part[1] + part[0],
        next_turn=next_turn,
    )
    before, start = writer.answer_tokens, time.perf_counter()
    try:
        for answer in generator.run(waiting):
            writer.add(answer)
            speed = (writer.answer_tokens - before) / (time.perf_counter() - start)
            yield Progress(len(writer.done), writer.answer_tokens, speed)
            if writer.answer_tokens >= answer_tokens:
                return
    finally:
        writer.flush()
