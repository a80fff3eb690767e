"""Ways to decode, measured by the clock on the wall: our engine's, and transformers as a user would run it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.generation.streamers import BaseStreamer

from eagle3_demo.engine import DecodingEngine
from eagle3_demo.models.chat import end_tokens
from eagle3_demo.models.loading import without_weights_bar
from eagle3_demo.settings import GenerationSettings


@dataclass(frozen=True, slots=True)
class Measurement:
    """One answer and what it took.

    Attributes:
        token_ids: every token emitted.
        target_forwards: forwards of the target after the prefill.
        decode_tokens: tokens emitted after the prefill.
        seconds_prefill: until the first token, by the clock on the wall.
        seconds_decode: from the first token to the last.
        stop_reason: why it ended; None where the method does not tell.
    """

    token_ids: tuple[int, ...]
    target_forwards: int
    decode_tokens: int
    seconds_prefill: float
    seconds_decode: float
    stop_reason: str | None = None

    @property
    def tokens_per_second(self) -> float:
        """Decode speed, the prefill and its token left out; 0 when nothing was decoded after it."""
        return self.decode_tokens / self.seconds_decode if self.seconds_decode and self.decode_tokens else 0.0

    @property
    def acceptance_length(self) -> float:
        """Tokens per target forward after the prefill; 1 before any."""
        return self.decode_tokens / self.target_forwards if self.target_forwards else 1.0


Runner = Callable[[Sequence[int], GenerationSettings], Measurement]
"""Answers a prompt of token ids and measures it."""


def engine_runner(engine: DecodingEngine, method: str) -> Runner:
    """Decodes with our engine by `method`."""

    def measure(prompt_ids: Sequence[int], settings: GenerationSettings) -> Measurement:
        token_ids: list[int] = []
        forwards = decode_tokens = 0
        stop_reason: str | None = None
        start = first = last = time.perf_counter()
        for event in engine.run(prompt_ids, settings.model_copy(update={"method": method})):
            last = time.perf_counter()
            token_ids += [token.id for token in event.tokens]
            stop_reason = event.stop_reason
            if event.index == 0:
                first = last
            else:
                forwards += 1
                decode_tokens += len(event.tokens)
        return Measurement(tuple(token_ids), forwards, decode_tokens, first - start, last - first, stop_reason)

    return measure


class TransformersRunner:
    """`generate` of transformers with the same weights: its defaults, its own cache, float32 on a CPU.

    Args:
        source: hub id or folder of the target.
        device: where to run.
        dtype: name of the floating type; float32 on a CPU, where 16-bit arithmetic is slower.
    """

    def __init__(self, source: str | Path, device: str, dtype: str) -> None:
        floating = torch.float32 if device == "cpu" else getattr(torch, dtype)
        with without_weights_bar():
            self.model = AutoModelForCausalLM.from_pretrained(source, dtype=floating).to(device).eval()
        tokenizer = AutoTokenizer.from_pretrained(source)
        self.ends = sorted(end_tokens(self.model.config, self.model.generation_config, tokenizer))

    def __call__(self, prompt_ids: Sequence[int], settings: GenerationSettings) -> Measurement:
        """Answers a prompt of token ids."""
        clock = _TokenClock()
        ids = torch.tensor([list(prompt_ids)], device=self.model.device)
        with torch.random.fork_rng():
            torch.manual_seed(settings.sampling.seed)
            clock.times.append(time.perf_counter())
            output = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=settings.max_new_tokens,
                eos_token_id=self.ends,
                pad_token_id=self.ends[0],
                use_cache=True,
                streamer=clock,
                **_sampling_options(settings),
            )
        new = tuple(output[0, ids.shape[1] :].tolist())
        start, first, last = clock.times[0], clock.times[2], clock.times[-1]
        return Measurement(new, len(new) - 1, len(new) - 1, first - start, last - first)


class _TokenClock(BaseStreamer):
    """Notes when each token comes; `generate` hands over the prompt first."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: object) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Nothing to do: the last token has been noted."""


def _sampling_options(settings: GenerationSettings) -> dict[str, object]:
    sampling = settings.sampling
    if sampling.greedy:
        return {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
    return {
        "do_sample": True,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
    }
