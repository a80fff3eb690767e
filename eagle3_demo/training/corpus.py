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
import torch
from safetensors.numpy import load_file, save_file
from torch import Tensor
from transformers import Cache, PreTrainedModel

from eagle3_demo.errors import UserError
from eagle3_demo.files import write_atomically

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


@dataclass(slots=True)
class _Answer:
    """One sequence in flight or ended."""

    prompt_index: int
    temperature: float
    prompt: list[int]
    answer: list[int]


class SlotCache(Cache):
    """Keys and values of many sequences, each row at its own length, written in place.

    Buffers are [slots, key-value heads, capacity, head dim] per layer. A forward over new prompts (`fill`) attends only
    within itself and scatters its rows; a decode forward writes one position per row and attends over all rows.
    """

    def __init__(self, model: PreTrainedModel, slots: int, capacity: int) -> None:
        super().__init__(layers=[])
        config = model.config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (slots, heads, capacity, head_dim)
        kind = {"dtype": model.dtype, "device": model.device}
        self.keys = [torch.zeros(shape, **kind) for _ in range(config.num_hidden_layers)]
        self.values = [torch.zeros(shape, **kind) for _ in range(config.num_hidden_layers)]
        self.lengths = torch.zeros(slots, dtype=torch.long, device=model.device)
        self.filling: list[tuple[int, int]] | None = None
        self.span = 0

    def fill(self, rows: list[tuple[int, int]]) -> None:
        """The next forward is a left-padded prefill; rows are (slot, real length)."""
        self.filling = rows
        for slot, length in rows:
            self.lengths[slot] = length

    def decode(self, span: int) -> None:
        """The next forward decodes one token in every slot, attending over the first `span` positions."""
        self.filling, self.span = None, span

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Writes one layer's new rows; returns what the forward attends to."""
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        if self.filling is not None:
            for row, (slot, length) in enumerate(self.filling):
                keys[slot, :, :length] = key_states[row, :, -length:]
                values[slot, :, :length] = value_states[row, :, -length:]
            return key_states, value_states
        rows = torch.arange(len(self.lengths), device=keys.device)
        keys[rows, :, self.lengths] = key_states[:, :, 0]
        values[rows, :, self.lengths] = value_states[:, :, 0]
        return keys[:, :, : self.span], values[:, :, : self.span]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0 if self.filling is not None else self.span - 1


def read_prompts(paths: list[Path]) -> list[str]:
    """First turns of prompt files: JSONL with `prompt` or `turns`, or plain text with a prompt a line.

    Raises:
        UserError: a file is missing, empty, or has a line that is neither.
    """
    prompts: list[str] = []
    for path in paths:
        if not path.is_file():
            raise UserError(f"prompt file {path} does not exist; give a JSONL or text file")
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
            if not line.strip():
                continue
            prompts.append(_prompt_of(line, path, number) if path.suffix == ".jsonl" else line.strip())
    prompts = list(dict.fromkeys(prompt for prompt in prompts if prompt.strip()))
    if not prompts:
        raise UserError(f"no prompts in {', '.join(map(str, paths))}; each line needs a `prompt` or `turns` field")
    return prompts


def _prompt_of(line: str, path: Path, number: int) -> str:
    try:
        record = json.loads(line)
        prompt = record["prompt"] if "prompt" in record else record["turns"][0]
    except (json.JSONDecodeError, KeyError, IndexError, TypeError) as error:
        raise UserError(f"{path} line {number} is no JSON object with `prompt` or `turns`") from error
    if not isinstance(prompt, str):
        raise UserError(f"{path} line {number}: the prompt is a {type(prompt).__name__}, not text")
    return prompt


def sample_rows(logits: Tensor, temperatures: Tensor, generator: torch.Generator) -> Tensor:
    """One token a row: argmax where the temperature is 0, else a draw by inverse cumulative distribution.

    Args:
        logits: float [rows, vocabulary].
        temperatures: float [rows].

    Returns:
        int64 [rows].
    """
    tokens = logits.argmax(-1)
    warm = (temperatures > 0).nonzero().squeeze(1)
    if len(warm):
        cumulative = torch.softmax(logits[warm].float() / temperatures[warm, None], -1).cumsum(-1)
        draw = torch.rand(len(warm), 1, generator=generator, device=logits.device) * cumulative[:, -1:]
        tokens[warm] = torch.searchsorted(cumulative, draw).squeeze(1).clamp_max(logits.shape[-1] - 1)
    return tokens


class AnswerGenerator:
    """Generates answers in a batch whose rows are refilled as answers end.

    Args:
        model: a frozen causal LM.
        end_tokens: ids that end an answer.
    """

    def __init__(self, model: PreTrainedModel, end_tokens: set[int], settings: CorpusSettings) -> None:
        self.model, self.end_tokens, self.settings = model, end_tokens, settings
        self.capacity = settings.max_prompt_tokens + settings.max_new_tokens + 1
        self.cache = SlotCache(model, settings.batch_size, self.capacity)
        self.generator = torch.Generator(device=model.device).manual_seed(settings.seed)
        self.rows: list[_Answer | None] = [None] * settings.batch_size
        self.last = torch.zeros(settings.batch_size, dtype=torch.long, device=model.device)
        self.temperatures = torch.zeros(settings.batch_size, device=model.device)

    @torch.inference_mode()
    def run(self, waiting: Iterator[_Answer]) -> Iterator[_Answer]:
        """Yields each answer as it ends, in no fixed order."""
        exhausted = False
        while True:
            free = [slot for slot, row in enumerate(self.rows) if row is None]
            if not exhausted and len(free) >= min(8, len(self.rows)):
                batch = []
                for slot in free[:16]:
                    answer = next(waiting, None)
                    if answer is None:
                        exhausted = True
                        break
                    batch.append((slot, answer))
                if batch:
                    yield from self._prefill(batch)
                    continue
            if all(row is None for row in self.rows):
                return
            yield from self._decode()

    def _prefill(self, batch: list[tuple[int, _Answer]]) -> Iterator[_Answer]:
        width = max(len(answer.prompt) for _, answer in batch)
        ids = torch.zeros(len(batch), width, dtype=torch.long)
        real = torch.zeros(len(batch), width, dtype=torch.bool)
        for row, (_, answer) in enumerate(batch):
            ids[row, width - len(answer.prompt) :] = torch.tensor(answer.prompt)
            real[row, width - len(answer.prompt) :] = True
        causal = torch.ones(width, width, dtype=torch.bool).tril()
        # A padding row must see something: softmax over nothing is NaN and would spread through the values.
        mask = (causal & real[:, None, :]) | torch.eye(width, dtype=torch.bool)
        positions = (real.long().cumsum(-1) - 1).clamp_min(0)
        self.cache.fill([(slot, len(answer.prompt)) for slot, answer in batch])
        slots = torch.tensor([slot for slot, _ in batch])
        self.temperatures[slots] = torch.tensor([answer.temperature for _, answer in batch])
        logits = self._forward(ids, mask[:, None], positions)
        for slot, answer in batch:
            self.rows[slot] = answer
        yield from self._take(slots, sample_rows(logits, self.temperatures[slots], self.generator))

    def _decode(self) -> Iterator[_Answer]:
        span = int(self.cache.lengths.max()) + 1
        self.cache.decode(span)
        mask = torch.arange(span, device=self.last.device) <= self.cache.lengths[:, None]
        logits = self._forward(self.last[:, None], mask[:, None, None], self.cache.lengths[:, None])
        self.cache.lengths += 1
        tokens = sample_rows(logits, self.temperatures, self.generator)
        live = torch.tensor([slot for slot, row in enumerate(self.rows) if row is not None])
        yield from self._take(live, tokens[live])
        empty = [slot for slot, row in enumerate(self.rows) if row is None]
        self.cache.lengths[empty] = 0

    def _forward(self, ids: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
        output = self.model(
            input_ids=ids.to(self.model.device),
            attention_mask=torch.zeros(mask.shape, dtype=self.model.dtype).masked_fill(~mask, float("-inf")),
            position_ids=positions,
            cache=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1]

    def _take(self, slots: Tensor, tokens: Tensor) -> Iterator[_Answer]:
        self.last[slots] = tokens
        for slot, token in zip(slots.tolist(), tokens.tolist(), strict=True):
            row = self.rows[slot]
            assert row is not None
            row.answer.append(token)
            if token in self.end_tokens or len(row.answer) >= self.settings.max_new_tokens:
                self.rows[slot] = None
                yield row


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
        self.pending: list[_Answer] = []
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

    def add(self, answer: _Answer) -> None:
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
) -> Iterator[_Answer]:
    """Prompts still to answer, sorted by length within windows so that a batch holds rows of like length."""
    batch: list[_Answer] = []
    for index, ids in encoded:
        if index in done or len(ids) > settings.max_prompt_tokens:
            continue
        temperature = random.Random(f"{settings.seed}:{index}").choice(settings.temperatures)
        batch.append(_Answer(index, temperature, ids, []))
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
    before, start = writer.answer_tokens, time.perf_counter()
    try:
        for answer in AnswerGenerator(model, set(end_tokens), settings).run(waiting):
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
