"""A corpus as training batches: shards read through memory maps, sequences of like length side by side.

Batches keep their composition from pass to pass and only their order changes, so that the frozen target's features of
a batch can be kept on disk (training/features.py).
"""

from __future__ import annotations

import hashlib
import itertools
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from eagle3_demo.errors import UserError
from eagle3_demo.training.manifest import read_manifest


@dataclass(frozen=True, slots=True)
class Sequence:
    """One prompt with the target's answer: token ids and the answer mask, as numpy arrays [n]."""

    tokens: np.ndarray
    answer: np.ndarray


@dataclass(frozen=True, slots=True)
class TokenBlock:
    """Sequences right-aligned in one block, all [batch, n]: int64 `tokens`, bool `real`, bool `answer`; and a name.

    `name` is a hash of the content; it names the features kept on disk.
    """

    tokens: Tensor
    real: Tensor
    answer: Tensor
    name: str

    @property
    def answer_tokens(self) -> int:
        """Tokens written by the target."""
        return int(self.answer.sum())


@dataclass(frozen=True, slots=True)
class Corpus:
    """A corpus folder in memory: its manifest, and by shard the sequences to train on and those held out."""

    manifest: dict[str, Any]
    training: list[list[Sequence]]
    held_out: list[list[Sequence]]

    def answer_counts(self, vocabulary_size: int) -> Tensor:
        """How often each token occurs in the training answers, int64 [vocabulary]."""
        counts = np.zeros(vocabulary_size, dtype=np.int64)
        for sequence in itertools.chain.from_iterable(self.training):
            counts += np.bincount(sequence.tokens[sequence.answer], minlength=vocabulary_size)
        return torch.from_numpy(counts)


def read_corpus(folder: Path) -> Corpus:
    """Reads every shard of a corpus folder.

    Raises:
        UserError: the folder is no corpus, or a shard is damaged.
    """
    manifest = read_manifest(folder)
    shards = sorted(folder.glob("shard-*.safetensors"))
    if not shards:
        raise UserError(f"{folder} holds no answers yet: it has no shard files; run `corpus` for longer")
    training: list[list[Sequence]] = []
    held_out: list[list[Sequence]] = []
    seen: set[int] = set()
    for path in shards:
        training.append([])
        held_out.append([])
        try:
            # Through torch: its reader maps the file into memory, numpy's copies it.
            shard = {name: tensor.numpy() for name, tensor in load_file(path).items()}
            bounds = shard["offsets"]
            for number, (start, end) in enumerate(itertools.pairwise(bounds)):
                if int(shard["prompt_index"][number]) in seen:
                    continue
                seen.add(int(shard["prompt_index"][number]))
                sequence = Sequence(shard["tokens"][start:end], shard["answer"][start:end])
                (held_out if shard["held_out"][number] else training)[-1].append(sequence)
        except (SafetensorError, KeyError, OSError) as error:
            raise UserError(f"corpus shard {path} is damaged ({error}); delete it and run `corpus` again") from error
    return Corpus(manifest, training, held_out)


def make_blocks(shards: list[list[Sequence]], positions: int, seed: int = 0, max_rows: int = 16) -> list[TokenBlock]:
    """Packs sequences of like shape into blocks of at most `positions` positions, padding included.

    Shard by shard, so that a corpus that grows keeps the blocks it had and their features on disk.

    Args:
        shards: sequences with fewer than three answer tokens supervise too little and are left out.
        positions: rows times columns of a block.
        max_rows: sequences in a block; small batches learn more from each token.
    """
    return [block for shard in shards for block in _blocks_of(shard, positions, seed, max_rows)]


def _blocks_of(sequences: list[Sequence], positions: int, seed: int, max_rows: int) -> list[TokenBlock]:
    usable = [sequence for sequence in sequences if int(sequence.answer.sum()) >= 3]
    shuffled = random.Random(seed).sample(usable, len(usable))
    blocks: list[TokenBlock] = []
    for start in range(0, len(shuffled), 512):
        window = sorted(shuffled[start : start + 512], key=lambda s: (len(s.tokens) // 32, int(s.answer.sum())))
        rows: list[Sequence] = []
        for sequence in window:
            width = max([len(row.tokens) for row in rows] + [len(sequence.tokens)])
            if rows and (len(rows) == max_rows or width * (len(rows) + 1) > positions):
                blocks.append(_block(rows))
                rows = []
            rows.append(sequence)
        if rows:
            blocks.append(_block(rows))
    return blocks


def _block(rows: list[Sequence]) -> TokenBlock:
    width = max(len(row.tokens) for row in rows)
    tokens = np.zeros((len(rows), width), dtype=np.int64)
    real = np.zeros((len(rows), width), dtype=bool)
    answer = np.zeros((len(rows), width), dtype=bool)
    for number, row in enumerate(rows):
        start = width - len(row.tokens)
        tokens[number, start:] = row.tokens
        real[number, start:] = True
        answer[number, start:] = row.answer
    name = hashlib.sha256(tokens.tobytes() + answer.tobytes()).hexdigest()[:24]
    return TokenBlock(torch.from_numpy(tokens), torch.from_numpy(real), torch.from_numpy(answer), name)
