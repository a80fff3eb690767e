"""A head's first weights: from nothing, with the target's LM head, or as near to the target as its shape allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from eagle3_demo.errors import UserError
from eagle3_demo.models.checkpoint import load_head
from eagle3_demo.models.head import Eagle3Config, Eagle3Head, sorted_draft_ids

Start = Literal["plain", "lm-head", "full"]


@dataclass(frozen=True, slots=True)
class HeadChoice:
    """Which head a training begins with.

    Attributes:
        draft_vocabulary: tokens that it can propose.
        taps: layers whose inputs it reads; None for the default ones.
        start: its first weights.
        folder: an existing head to go on from; the others are then its own.
    """

    draft_vocabulary: int
    taps: tuple[int, ...] | None = None
    start: Start = "full"
    folder: Path | None = None


def first_head(model: PreTrainedModel, choice: HeadChoice, counts: Tensor, always: Sequence[int]) -> Eagle3Head:
    """The head that a training begins with, on the target's device.

    Args:
        counts: int64 [target vocabulary], how often each token occurs in answers.
        always: ids that the draft vocabulary must hold, such as the end-of-turn token.

    Raises:
        UserError: the choice does not fit the target.
    """
    if choice.folder:
        return head_to_continue(choice.folder, model)
    vocabulary = model.config.get_text_config().vocab_size
    if choice.draft_vocabulary > vocabulary:
        raise UserError(
            f"a draft vocabulary of {choice.draft_vocabulary} is larger than the target's {vocabulary} tokens; "
            f"give --draft-vocab {vocabulary} or less"
        )
    config = head_config(model, choice.draft_vocabulary, checked_taps(model, choice.taps) if choice.taps else None)
    return initial_head(model, config, sorted_draft_ids(counts, choice.draft_vocabulary, always), choice.start)


def head_config(model: PreTrainedModel, draft_vocabulary: int, taps: tuple[int, int, int] | None) -> Eagle3Config:
    """A head of the target's own width, with the target's rotary base."""
    return Eagle3Config(**target_sizes(model), draft_vocab_size=draft_vocabulary, taps=taps)


def target_sizes(model: PreTrainedModel) -> dict[str, Any]:
    """The fields of `DraftHeadConfig` for a head of the target's own width, with the target's rotary base."""
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    return {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": heads,
        "num_key_value_heads": getattr(config, "num_key_value_heads", None) or heads,
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // heads,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_parameters["rope_theta"],
    }


def default_taps(model: PreTrainedModel) -> tuple[int, int, int]:
    """The layers whose inputs a head reads unless it says otherwise: 2, L // 2, L - 3."""
    layers = model.config.get_text_config().num_hidden_layers
    return 2, layers // 2, layers - 3


def checked_taps(model: PreTrainedModel, taps: tuple[int, ...]) -> tuple[int, int, int] | None:
    """Three layers for a head's config; None where they are the default ones, as public checkpoints have it.

    Raises:
        UserError: they are not three of the target's layers in ascending order.
    """
    layers = model.config.get_text_config().num_hidden_layers
    if len(taps) != 3 or sorted(set(taps)) != list(taps) or not 0 <= taps[0] <= taps[2] < layers:
        raise UserError(
            f"taps {','.join(map(str, taps))} cannot be read: give three layers in ascending order, "
            f"from 0 to {layers - 1} for this target"
        )
    low, middle, high = taps
    return None if (low, middle, high) == default_taps(model) else (low, middle, high)


def initial_head(model: PreTrainedModel, config: Eagle3Config, draft_ids: Tensor, start: Start = "full") -> Eagle3Head:
    """A new head in float32.

    Args:
        draft_ids: int64 [draft vocabulary], ascending target ids.
        start: `plain`: random as torch initialises layers; `lm-head`: the LM head and the norm before it are the
            target's; `full`: besides, the fusion is the identity on the high tap and the decoder layer the target's
            last one, reading the hidden half of its doubled input.

    Raises:
        UserError: `full`, and the target's layers are not built like a head's.
    """
    head = Eagle3Head(config).to(model.device)
    head.set_draft_vocabulary(draft_ids.to(model.device))
    if start == "plain":
        return head
    try:
        _copy_lm_head(head, model, draft_ids.to(model.device))
        if start == "full":
            _copy_last_layer(head, model)
    except (AttributeError, RuntimeError) as error:
        raise UserError(
            f"a {model.config.model_type} target has no weights that a head could start from with --start {start} "
            f"({error}); take --start plain"
        ) from error
    return head


def head_to_continue(folder: Path, model: PreTrainedModel) -> Eagle3Head:
    """An existing head with its draft vocabulary and taps, in float32, ready to be trained on.

    Raises:
        UserError: it is damaged or does not fit the target.
    """
    config = model.config.get_text_config()
    head = load_head(folder, vocabulary_size=config.vocab_size, hidden_size=config.hidden_size)
    if head.config.taps and max(head.config.taps) >= config.num_hidden_layers:
        raise UserError(f"head {folder} taps layer {max(head.config.taps)}, the target has {config.num_hidden_layers}")
    return head.to(model.device).requires_grad_(True)


@torch.no_grad()
def _copy_lm_head(head: Eagle3Head, model: PreTrainedModel, draft_ids: Tensor) -> None:
    head.norm.weight.copy_(model.base_model.norm.weight)
    head.lm_head.weight.copy_(model.get_output_embeddings().weight[draft_ids])


@torch.no_grad()
def _copy_last_layer(head: Eagle3Head, model: PreTrainedModel) -> None:
    width = head.config.hidden_size
    torch.nn.init.normal_(head.fc.weight, std=0.002)
    head.fc.weight[:, 2 * width :] += torch.eye(width, device=model.device)
    last, layer = model.base_model.layers[-1], head.midlayer
    for name in ("q_proj", "k_proj", "v_proj"):
        weight = getattr(layer.self_attn, name).weight
        torch.nn.init.normal_(weight, std=0.002)
        weight[:, width:] += getattr(last.self_attn, name).weight.float()
    layer.self_attn.o_proj.weight.copy_(last.self_attn.o_proj.weight)
    for name in ("gate_proj", "up_proj", "down_proj"):
        getattr(layer.mlp, name).weight.copy_(getattr(last.mlp, name).weight)
    layer.hidden_norm.weight.copy_(last.input_layernorm.weight)
    layer.post_attention_layernorm.weight.copy_(last.post_attention_layernorm.weight)
