"""The training corpus: the target's own answers to a list of prompts, kept as token shards.

A head learns to imitate *this* target, so the answers must come from it (eagle3_reference.md section 3.5), through the
same chat template as serving. Answers are generated in a batch whose rows are refilled as answers end.

A corpus folder holds `manifest.json` and `shard-HASH.safetensors` files. A shard's tensors:

- `tokens`: uint16 or int32 [tokens], all sequences one after another, prompt and answer;
- `answer`: bool [tokens], true where the token was written by the target (the end-of-turn token included);
- `offsets`: int64 [sequences + 1], where each sequence starts;
- `prompt_index`: int64 [sequences], the prompt's line in the prompt list;
- `held_out`: bool [sequences], true for the prompts kept away from training.
"""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file
from transformers import PreTrainedModel

from eagle3_demo.errors import UserError
from eagle3_demo.files import write_atomically
from eagle3_demo.training.answers import Answer, AnswerGenerator

HELD_OUT_ONE_IN = 50


@dataclass(frozen=True, slots=True)
class CorpusSettings:
    """What a corpus is made with; written into its manifest and checked on resume.

    Attributes:
        temperatures: sampling temperatures, one drawn for each prompt; repeated values weigh more.
        max_new_tokens: longest answer in tokens; a longer one is cut and stays without its end token.
        max_prompt_tokens: longer prompts are left out.
        batch_size: answers in flight at once.
        seed: for the order of the prompts, their temperatures and the sampling.
    """

    temperatures: tuple[float, ...] = (0.0, 0.0, 0.0, 0.6, 1.0)
    max_new_tokens: int = 256
    max_prompt_tokens: int = 512
    batch_size: int = 128
    seed: int = 0


def read_prompts(paths: list[Path]) -> list[str]:
    """First turns of prompt files: JSONL with `prompt` or `turns`, or plain text with a prompt a line.

    Raises:
        UserError: a file is missing, empty, not UTF-8, or has a line that is neither.
    """
    prompts: list[str] = []
    for path in paths:
        for number, line in enumerate(_text_of(path).split("\n"), 1):
            if not line.strip():
                continue
            prompts.append(_prompt_of(line, path, number) if path.suffix == ".jsonl" else line.strip())
    prompts = list(dict.fromkeys(prompt for prompt in prompts if prompt.strip()))
    if not prompts:
        raise UserError(f"no prompts in {', '.join(map(str, paths))}; each line needs a `prompt` or `turns` field")
    return prompts


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"prompt file {path} cannot be read ({error.strerror}); give a JSONL or text file") from error
    except UnicodeDecodeError as error:
        raise UserError(f"prompt file {path} is not UTF-8 text; give a JSONL or text file") from error


def _prompt_of(line: str, path: Path, number: int) -> str:
    try:
        record = json.loads(line)
        prompt = record["prompt"] if "prompt" in record else record["turns"][0]
    except (json.JSONDecodeError, KeyError, IndexError, TypeError) as error:
        raise UserError(f"{path} line {number} is no JSON object with `prompt` or `turns`") from error
    if not isinstance(prompt, str):
        raise UserError(f"{path} line {number}: the prompt is a {type(prompt).__name__}, not text")
    return prompt


@dataclass(frozen=True, slots=True)
class Progress:
    """What a corpus run has written so far."""

    sequences: int
    answer_tokens: int
    tokens_per_second: float


class CorpusWriter:
    """Appends finished answers to a corpus folder, a shard at a time; an interrupted run resumes where it stood.

    Args:
        folder: the corpus folder; created when missing.
        manifest: what the corpus is made with; a folder made otherwise is refused.

    Raises:
        UserError: the folder holds a corpus with another manifest.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any], sequences_per_shard: int = 512) -> None:
        self.folder, self.sequences_per_shard = folder, sequences_per_shard
        self.pending: list[Answer] = []
        path = folder / "manifest.json"
        if path.exists():
            found = json.loads(path.read_text(encoding="utf-8"))
            different = [key for key in manifest if found.get(key) != manifest[key]]
            if different:
                raise UserError(
                    f"{folder} holds a corpus made with another {', '.join(different)}; "
                    "give another --out folder or the settings it was made with"
                )
        else:
            text = json.dumps(manifest, indent=1, ensure_ascii=False)
            write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
        loaded = [load_file(shard) for shard in sorted(folder.glob("shard-*.safetensors"))]
        self.done = {int(index) for shard in loaded for index in shard["prompt_index"]}
        self.answer_tokens = sum(int(shard["answer"].sum()) for shard in loaded)

    def add(self, answer: Answer) -> None:
        """Takes one ended answer; writes a shard when enough have come together."""
        self.pending.append(answer)
        self.answer_tokens += len(answer.answer)
        self.done.add(answer.prompt_index)
        if len(self.pending) >= self.sequences_per_shard:
            self.flush()

    def flush(self) -> None:
        """Writes what is pending as one shard, whole or not at all."""
        if not self.pending:
            return
        sequences = [answer.prompt + answer.answer for answer in self.pending]
        tokens = np.concatenate([np.asarray(ids, dtype=np.int32) for ids in sequences])
        if int(tokens.max()) < 2**16:
            tokens = tokens.astype(np.uint16)
        marks = [[False] * len(answer.prompt) + [True] * len(answer.answer) for answer in self.pending]
        indices = np.array([answer.prompt_index for answer in self.pending], dtype=np.int64)
        tensors = {
            "tokens": tokens,
            "answer": np.concatenate([np.asarray(mark, dtype=bool) for mark in marks]),
            "offsets": np.cumsum([0] + [len(ids) for ids in sequences], dtype=np.int64),
            "prompt_index": indices,
            "held_out": np.array([is_held_out(int(index)) for index in indices], dtype=bool),
        }
        # Named by content, so that several processes can fill one folder.
        name = hashlib.sha256(tokens.tobytes()).hexdigest()[:12]
        path = self.folder / f"shard-{name}.safetensors"
        write_atomically(path, lambda temporary: save_file(tensors, temporary))
        self.pending = []


def is_held_out(prompt_index: int) -> bool:
    """Whether a prompt is kept away from training: one in 50, by a hash of its number, the same in every run."""
    return hashlib.sha256(str(prompt_index).encode()).digest()[0] % HELD_OUT_ONE_IN == 0


def waiting_prompts(
    encoded: Iterator[tuple[int, list[int]]], settings: CorpusSettings, done: set[int], window: int = 1024
) -> Iterator[Answer]:
    """Prompts still to answer, sorted by length within windows so that a batch holds rows of like length."""
    batch: list[Answer] = []
    for index, ids in encoded:
        if index in done or len(ids) > settings.max_prompt_tokens:
            continue
        temperature = random.Random(f"{settings.seed}:{index}").choice(settings.temperatures)
        batch.append(Answer(index, temperature, ids, []))
        if len(batch) == window:
            yield from sorted(batch, key=lambda answer: len(answer.prompt))
            batch = []
    yield from sorted(batch, key=lambda answer: len(answer.prompt))


def generate_corpus(
    model: PreTrainedModel,
    encoded: list[list[int]],
    end_tokens: frozenset[int],
    writer: CorpusWriter,
    settings: CorpusSettings,
    answer_tokens: int,
    part: tuple[int, int] = (0, 1),
) -> Iterator[Progress]:
    """Answers prompts until the corpus holds `answer_tokens` tokens of answers or the prompts run out.

    On a CPU several processes of one thread each, every one on its own part, do more than one process of many threads.

    Args:
        model: the frozen target.
        encoded: token ids of every prompt, template included, by prompt index.
        answer_tokens: when to stop, counting what this process has written and what it found.
        part: (k, n): every n-th prompt of the shuffled order, from the k-th on.

    Yields:
        Progress after every ended answer.
    """
    order = list(range(len(encoded)))
    random.Random(settings.seed).shuffle(order)
    order = order[part[0] :: part[1]]
    waiting = waiting_prompts(((index, encoded[index]) for index in order), settings, set(writer.done))
    generator = AnswerGenerator(
        model,
        end_tokens,
        batch_size=settings.batch_size,
        max_prompt_tokens=settings.max_prompt_tokens,
        max_new_tokens=settings.max_new_tokens,
        seed=settings.seed,
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


def corpus_manifest(target_id: str, fingerprint: str, prompts: list[str], settings: CorpusSettings) -> dict[str, Any]:
    """What a corpus depends on; resuming with anything else is refused."""
    described = asdict(settings) | {"temperatures": list(settings.temperatures)}
    described.pop("batch_size")
    digest = hashlib.sha256("\0".join(prompts).encode()).hexdigest()
    return {"target": target_id, "fingerprint": fingerprint, "prompts_sha256": digest, "settings": described}


def target_fingerprint(model: PreTrainedModel) -> str:
    """A short hash that tells one target from another: architecture, sizes and a slice of its embeddings."""
    embedding = model.get_input_embeddings().weight
    config = model.config.get_text_config()
    sizes = (config.model_type, config.hidden_size, config.num_hidden_layers, *embedding.shape)
    sample = embedding[:: max(1, len(embedding) // 64), :16].float().round(decimals=2)
    return hashlib.sha256(repr((sizes, sample.tolist())).encode()).hexdigest()[:16]
