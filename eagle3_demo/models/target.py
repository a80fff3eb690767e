"""A frozen causal language model as speculation sees it: taps, an in-place cache, a forward over a tree, commit.

`TargetModel` holds the weights and nothing of any request; a `TargetSession` holds everything of one request. Sessions
of one model may run in several threads at once.
"""

from __future__ import annotations

from contextlib import nullcontext
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
    PreTrainedTokenizerBase,
)

from eagle3_demo.errors import UserError
from eagle3_demo.models.acceleration import LLAMA_LIKE, accelerate
from eagle3_demo.models.chat import end_tokens
from eagle3_demo.models.compatibility import prove_tree, refuse_config, refuse_forward
from eagle3_demo.models.gguf_blocks import BLOCKS_FILE, load_blocks
from eagle3_demo.models.loading import without_weights_bar
from eagle3_demo.models.native import native_kernels
from eagle3_demo.models.packed_linear import Blocks, PackedLinear
from eagle3_demo.models.session import FINAL_STATE, TargetSession
from eagle3_demo.progress import ProgressCallback

_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "packed16": torch.float32,
    "gguf": torch.float32,
}


@dataclass(frozen=True, eq=False)
class TargetModel:
    """A frozen causal LM, shared by all requests.

    Attributes:
        config: the text model's config.
        end_tokens: every id that ends an answer.
        max_context: positions the model was made for.
        accelerated: in words, how it is sped up.
        precision: what its linear weights are: a dtype, `packed16` or `gguf`.
    """

    name: str
    model: Any
    tokenizer: PreTrainedTokenizerBase
    config: PreTrainedConfig
    end_tokens: frozenset[int]
    accelerated: str
    precision: str
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
            dtype: `float32`, `float16`, `bfloat16`; on the CPU also float32 maths over smaller weights: `gguf` keeps
                the blocks of the GGUF file that the folder was converted from, `packed16` rounds to float16. `auto`
                is `bfloat16` on CUDA, and on the CPU `gguf` where it can be, else `packed16`.
            progress: told how far loading is.

        Raises:
            UserError: not found, cannot be tapped, or no such device or dtype.
        """
        place = _device(device)
        if dtype == "auto":
            best = "packed16" if (lacking := _gguf_obstacle(source)) else "gguf"
            dtype = {"cpu": best, "cuda": "bfloat16"}.get(place.type, "float32")
        elif dtype == "gguf" and (lacking := _gguf_obstacle(source)):
            raise UserError(f"dtype = 'gguf' is not possible because {lacking}; give packed16")
        if dtype not in _DTYPES:
            raise UserError(f"dtype = {dtype!r} is not one of auto, {', '.join(_DTYPES)}")
        tell: ProgressCallback = progress or (lambda fraction, doing: None)
        name = str(source)
        tell(0.0, f"Reading the configuration of {name}")
        try:
            refuse_config(AutoConfig.from_pretrained(source), name)
            tokenizer = AutoTokenizer.from_pretrained(source)
            tell(0.1, f"Loading the weights of {name}")
            with without_weights_bar() if progress else nullcontext():
                model = AutoModelForCausalLM.from_pretrained(source, dtype=_DTYPES[dtype])
        except (OSError, ValueError) as error:
            first = str(error).strip().split("\n")[0]
            raise UserError(
                f"target {name!r} cannot be loaded ({first}); give a hub id or a folder of a causal language model, "
                "and log in to the hub if the model is gated"
            ) from error
        tell(0.7, "Preparing the weights for this machine")
        blocks = load_blocks(Path(source), model) if dtype == "gguf" else None
        packed = dtype in ("packed16", "gguf")
        target = cls.wrap(model.to(place), tokenizer, packed=packed, blocks=blocks, name=name)
        tell(1.0, f"{name} is ready")
        return target

    @classmethod
    def wrap(
        cls, model: Any, tokenizer: PreTrainedTokenizerBase, *, packed: bool, name: str, blocks: Blocks | None = None
    ) -> TargetModel:
        """Takes over a transformers causal LM: freezes it and speeds it up in place.

        Args:
            packed, blocks: see `acceleration.accelerate`.

        Raises:
            UserError: it cannot be tapped.
        """
        refuse_config(model.config, name)
        refuse_forward(model, name)
        model.eval().requires_grad_(False)
        ends = end_tokens(model.config.get_text_config(), model.generation_config, tokenizer)
        words = accelerate(model, packed, blocks)
        precision = str(model.dtype).removeprefix("torch.")
        if any(isinstance(module, PackedLinear) for module in model.modules()):
            precision = "gguf" if blocks else "packed16"
        if model.config.model_type not in LLAMA_LIKE:
            prove_tree(model, name)
        return cls(name, model, tokenizer, model.config.get_text_config(), ends, words, precision)

    @property
    def packed(self) -> bool:
        """Whether its linear weights are packed."""
        return self.precision in ("packed16", "gguf")

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

    @torch.inference_mode()
    def lm_head(self, states: Tensor) -> Tensor:
        """The LM head alone: last hidden states after the final norm, [n, H] -> logits [n, V]."""
        return self.model.get_output_embeddings()(states)

    def session(self, capacity: int, taps: tuple[int, ...] | None = None) -> TargetSession:
        """Starts a request.

        Args:
            capacity: positions it may commit; one tree fits on top.
            taps: layers whose inputs to return, or `FINAL_STATE`; None for none.

        Raises:
            UserError: more than the model's context, or layers it does not have.
        """
        if not 0 < capacity <= self.max_context:
            raise UserError(
                f"{capacity} positions do not fit {self.name}, which has a context of {self.max_context} tokens; "
                "shorten the prompt or lower max_new_tokens"
            )
        if taps is not None and not (taps and all(t == FINAL_STATE or 0 <= t < self.layers for t in taps)):
            raise UserError(f"the head taps layers {list(taps)}, but {self.name} has layers 0 to {self.layers - 1}")
        return TargetSession(self.model, capacity, taps)


def _gguf_obstacle(source: str | Path) -> str:
    """Why the linear weights of this source cannot stay GGUF blocks; empty when they can."""
    if not (Path(source) / BLOCKS_FILE).is_file():
        return f"{source} was not converted from a GGUF file with Q4_1 or Q8_0 blocks"
    return native_kernels()[1]


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
