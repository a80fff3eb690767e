"""A frozen causal language model as speculation sees it: taps, an in-place cache, a forward over a tree, commit.

`TargetModel` holds the weights and nothing of any request; `TargetSession` holds everything of one request. Sessions
of one model may run in several threads at once.

A session's life: `prefill` the prompt, then again and again `verify` a tree whose rows are written right after the
committed ones, and `commit` the rows that are kept.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from eagle3_demo.errors import UserError
from eagle3_demo.models.acceleration import LLAMA_LIKE, PackedLinear, accelerate, grouped_mask
from eagle3_demo.models.cache import InPlaceCache
from eagle3_demo.models.chat import end_tokens
from eagle3_demo.progress import ProgressCallback

MIN_LAYERS = 6
TREE_ROWS = 128
"""Rows a session keeps beyond its capacity for one uncommitted tree."""
PREFILL_SLICE = 512

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "packed16": torch.float32}


@dataclass(frozen=True, slots=True)
class TargetOutput:
    """What a forward gives.

    Attributes:
        logits: float32 [rows, V].
        taps: the residual stream that enters each tapped layer, low to high, side by side: [n, taps * H] in the
            model's dtype. None when the session has no taps.
    """

    logits: Tensor
    taps: Tensor | None


@dataclass(frozen=True, eq=False)
class TargetModel:
    """A frozen causal LM, shared by all requests.

    Attributes:
        config: the text model's config.
        end_tokens: every id that ends an answer.
        max_context: positions the model was made for.
        accelerated: in words, how it is sped up.
        packed: whether its linear weights are packed float16.
    """

    name: str
    model: Any
    tokenizer: PreTrainedTokenizerBase
    config: PreTrainedConfig
    end_tokens: frozenset[int]
    accelerated: str
    packed: bool
    _token_texts: dict[int, str] = field(default_factory=dict, repr=False)

    @classmethod
    def load(
        cls,
        source: str | Path,
        *,
        device: str = "auto",
        dtype: str = "auto",
        progress: ProgressCallback | None = None,
    ) -> TargetModel:
        """Loads a model from the hub or from a folder.

        Args:
            source: hub id or local folder.
            device: `auto` takes CUDA when there is some.
            dtype: `float32`, `float16`, `bfloat16`, or `packed16`: float32 maths over packed float16 weights (CPU).
                `auto` is `packed16` on the CPU and `bfloat16` on CUDA.
            progress: told how far loading is.

        Raises:
            UserError: not found, cannot be tapped, or no such device or dtype.
        """
        place = _device(device)
        if dtype == "auto":
            dtype = {"cpu": "packed16", "cuda": "bfloat16"}.get(place.type, "float32")
        if dtype not in _DTYPES:
            raise UserError(f"dtype = {dtype!r} is not one of auto, {', '.join(_DTYPES)}")
        tell: ProgressCallback = progress or (lambda fraction, doing: None)
        name = str(source)
        tell(0.0, f"Reading the configuration of {name}")
        try:
            _refuse_untappable(AutoConfig.from_pretrained(source), name)
            tokenizer = AutoTokenizer.from_pretrained(source)
            tell(0.1, f"Loading the weights of {name}")
            model = AutoModelForCausalLM.from_pretrained(source, dtype=_DTYPES[dtype])
        except (OSError, ValueError) as error:
            first = str(error).strip().split("\n")[0]
            raise UserError(
                f"target {name!r} cannot be loaded ({first}); give a hub id or a folder of a causal language model, "
                "and log in to the hub if the model is gated"
            ) from error
        tell(0.7, "Preparing the weights for this machine")
        target = cls.wrap(model.to(place), tokenizer, packed=dtype == "packed16", name=name)
        tell(1.0, f"{name} is ready")
        return target

    @classmethod
    def wrap(cls, model: Any, tokenizer: PreTrainedTokenizerBase, *, packed: bool, name: str) -> TargetModel:
        """Takes over a transformers causal LM: freezes it and speeds it up in place.

        Raises:
            UserError: it cannot be tapped.
        """
        _refuse_untappable(model.config, name)
        _refuse_forward(model, name)
        model.eval().requires_grad_(False)
        ends = end_tokens(model.config.get_text_config(), model.generation_config, tokenizer)
        words = accelerate(model, packed)
        packed = any(isinstance(module, PackedLinear) for module in model.modules())
        return cls(name, model, tokenizer, model.config.get_text_config(), ends, words, packed)

    @property
    def hidden_size(self) -> int:
        return self.config.hidden_size

    @property
    def vocabulary_size(self) -> int:
        return self.config.vocab_size

    @property
    def layers(self) -> int:
        return self.config.num_hidden_layers

    @property
    def max_context(self) -> int:
        return self.config.max_position_embeddings

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    @property
    def default_taps(self) -> tuple[int, int, int]:
        """Layers whose inputs are tapped when the head's config names none."""
        return 2, self.layers // 2, self.layers - 3

    def token_text(self, token: int) -> str:
        """One token as people read it; a token that is no whole character shows its vocabulary piece."""
        text = self._token_texts.get(token)
        if text is None:
            text = self.tokenizer.decode([token], clean_up_tokenization_spaces=False)
            if "\ufffd" in text or not text:
                text = str(self.tokenizer.convert_ids_to_tokens(token))
            self._token_texts[token] = text
        return text

    @torch.inference_mode()
    def embed(self, ids: Tensor) -> Tensor:
        """Token embeddings: int64 [n] -> [n, H]."""
        return self.model.get_input_embeddings()(ids)

    def session(self, capacity: int, taps: tuple[int, ...] | None = None) -> TargetSession:
        """Starts a request.

        Args:
            capacity: positions it may commit; one tree fits on top.
            taps: layers whose inputs to return; None for none.

        Raises:
            UserError: more than the model's context, or layers it does not have.
        """
        if not 0 < capacity <= self.max_context:
            raise UserError(
                f"{capacity} positions do not fit {self.name}, which has a context of {self.max_context} tokens; "
                "shorten the prompt or lower max_new_tokens"
            )
        if taps is not None and not (taps and all(0 <= layer < self.layers for layer in taps)):
            raise UserError(f"the head taps layers {list(taps)}, but {self.name} has layers 0 to {self.layers - 1}")
        return TargetSession(self, capacity, taps)


class TargetSession:
    """One request: its cache and what is committed in it. Made by `TargetModel.session`; for one thread at a time."""

    def __init__(self, target: TargetModel, capacity: int, taps: tuple[int, ...] | None) -> None:
        self._target, self._taps = target, taps
        self._cache = InPlaceCache(target.layers, capacity + TREE_ROWS)
        config = target.config
        self._groups = config.num_attention_heads // (
            getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        )

    @property
    def length(self) -> int:
        """Committed positions."""
        return self._cache.length

    @torch.inference_mode()
    def prefill(self, ids: Sequence[int]) -> TargetOutput:
        """Runs over tokens and commits them all, in slices so that memory stays bounded.

        Args:
            ids: at least one token, placed right after what is committed.

        Returns:
            Logits of the last token only, [1, V]; taps of all of them.
        """
        if not ids:
            raise ValueError("nothing to prefill")
        tokens = torch.tensor(ids, device=self._target.device)
        outputs = []
        for slice_ in tokens.split(PREFILL_SLICE):
            count = len(slice_)
            order = torch.arange(count, device=tokens.device)
            causal = order[:, None] >= order if count > 1 else None
            outputs.append(self._forward(slice_, order, causal, last_only=True))
            self._cache.commit(range(count))
        taps = [output.taps for output in outputs if output.taps is not None]
        return TargetOutput(outputs[-1].logits, torch.cat(taps) if taps else None)

    @torch.inference_mode()
    def verify(self, tokens: Tensor, depths: Tensor, mask: Tensor | None) -> TargetOutput:
        """Runs over the nodes of a tree, written right after what is committed; commits nothing.

        Args:
            tokens: int64 [n], the root first.
            depths: int64 [n]; node i stands at position `length + depths[i]`.
            mask: bool [n, n]; `mask[i, j]` says that node i sees node j. None for a single node.

        Returns:
            Logits and taps of all n nodes.
        """
        return self._forward(tokens, depths, mask, last_only=False)

    @torch.inference_mode()
    def commit(self, path: Sequence[int]) -> None:
        """Keeps nodes of the last verified tree.

        Args:
            path: node indices, root first; each is committed at the next position.

        Raises:
            IndexError: a node that was not verified.
        """
        self._cache.commit(path)

    def reset(self) -> None:
        """Forgets everything committed."""
        self._cache.reset()

    def close(self) -> None:
        """Frees the cache; the session is over."""
        self._cache.free()

    def _forward(self, tokens: Tensor, depths: Tensor, visible: Tensor | None, last_only: bool) -> TargetOutput:
        if visible is None and len(tokens) > 1:
            raise ValueError(f"{len(tokens)} nodes need a mask")
        self._cache.open(len(tokens))
        mask = None if visible is None else self._additive_mask(visible)
        positions = depths[None] + self.length
        run = _run_layers if self._target.model.config.model_type in LLAMA_LIKE else _run_model
        if mask is not None and run is _run_layers:
            mask = grouped_mask(mask, self._groups)
        return run(self._target.model, tokens[None], positions, mask, self._cache, self._taps, last_only)

    def _additive_mask(self, visible: Tensor) -> Tensor:
        """[1, 1, n, length + n]: every row sees what is committed, and of the new rows those that `visible` says."""
        count = len(visible)
        mask = torch.zeros(1, 1, count, self.length + count, dtype=self._target.dtype, device=visible.device)
        mask[..., self.length :].masked_fill_(~visible, float("-inf"))
        return mask


def _run_layers(
    model: Any,
    ids: Tensor,
    positions: Tensor,
    mask: Tensor | None,
    cache: InPlaceCache,
    taps: tuple[int, ...] | None,
    last_only: bool,
) -> TargetOutput:
    """Walks a Llama-like model layer by layer: transformers' own modules without its bookkeeping around them."""
    decoder = model.model
    hidden = decoder.embed_tokens(ids)
    rotary = decoder.rotary_emb(hidden, positions)
    inputs = []
    for layer in decoder.layers:
        inputs.append(hidden)
        hidden = layer(
            hidden, attention_mask=mask, position_ids=positions, cache=cache, use_cache=True, position_embeddings=rotary
        )
    hidden = decoder.norm(hidden[:, -1:] if last_only else hidden)
    return TargetOutput(model.lm_head(hidden)[0].float(), _join(inputs, taps))


def _run_model(
    model: Any,
    ids: Tensor,
    positions: Tensor,
    mask: Tensor | None,
    cache: InPlaceCache,
    taps: tuple[int, ...] | None,
    last_only: bool,
) -> TargetOutput:
    """Runs any causal LM through its own forward."""
    if mask is None:
        mask = torch.zeros(1, 1, 1, cache.length + 1, dtype=model.dtype, device=ids.device)
    output = model(
        input_ids=ids,
        position_ids=positions,
        attention_mask=mask,
        cache=cache,
        use_cache=True,
        output_hidden_states=taps is not None,
    )
    logits = output.logits[0, -1:] if last_only else output.logits[0]
    return TargetOutput(logits.float(), _join(output.hidden_states, taps))


def _join(hidden_states: Sequence[Tensor], taps: tuple[int, ...] | None) -> Tensor | None:
    return None if taps is None else torch.cat([hidden_states[layer][0] for layer in taps], -1)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"device = {name!r} is not known to PyTorch; give auto, cpu or cuda") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device = {name!r}, but PyTorch finds no CUDA here; give cpu")
    return device


def _refuse_untappable(config: PreTrainedConfig, name: str) -> None:
    """Refuses, by name, what the taps or the in-place cache cannot serve exactly."""
    text = config.get_text_config()
    layers = getattr(text, "num_hidden_layers", 0)
    window = getattr(text, "sliding_window", None)
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"]) - {"full_attention"}
    rope = getattr(text, "rope_parameters", None) or {}
    if config.is_encoder_decoder:
        reason = "is an encoder-decoder; EAGLE-3 needs a decoder-only model"
    elif layers < MIN_LAYERS:
        reason = f"has {layers} layers; three distinct taps need at least {MIN_LAYERS}"
    elif kinds:
        reason = f"mixes in {', '.join(sorted(kinds)).replace('_', ' ')} layers, which a tree cannot be verified with"
    elif window is not None and window < (getattr(text, "max_position_embeddings", None) or 0):
        reason = f"attends through a sliding window of {window} tokens, which a tree cannot be verified with"
    elif rope.get("rope_type") in ("dynamic", "longrope"):
        reason = f"changes its rotary frequencies with the length ({rope['rope_type']}), so cached keys would not fit"
    elif not getattr(text, "max_position_embeddings", None):
        reason = "does not say how long its context is (max_position_embeddings)"
    else:
        return
    raise UserError(f"target {name!r} ({text.model_type}) cannot be used: it {reason}; choose another target")


def _refuse_forward(model: PreTrainedModel, name: str) -> None:
    missing = {"position_ids", "attention_mask", "cache"} - set(inspect.signature(model.forward).parameters)
    if missing:
        raise UserError(
            f"target {name!r} ({type(model).__name__}) cannot be used: its forward takes no "
            f"{', '.join(sorted(missing))}; choose another target"
        )
