"""Which models cannot be targets, and why: what the taps or the in-place cache could not serve exactly."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from eagle3_demo.errors import UserError
from eagle3_demo.models.session import TargetSession

MIN_LAYERS = 6


def refuse_config(config: PreTrainedConfig, name: str) -> None:
    """Refuses, by name, what its config already rules out.

    Raises:
        UserError: with the reason.
    """
    text = config.get_text_config()
    layers = getattr(text, "num_hidden_layers", 0)
    window = getattr(text, "sliding_window", None)
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"]) - {"full_attention"}
    rope = getattr(text, "rope_parameters", None) or {}
    if config.is_encoder_decoder:
        reason = "is an encoder-decoder; EAGLE-3 needs a decoder-only model"
    elif layers < MIN_LAYERS:
        reason = f"has {layers} layers; taps at layers 2, L//2 and L-3 need at least {MIN_LAYERS}"
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


def refuse_forward(model: PreTrainedModel, name: str) -> None:
    """Refuses a model whose forward cannot be told positions, a mask and a cache.

    Raises:
        UserError: with what is missing.
    """
    missing = {"position_ids", "attention_mask", "cache"} - set(inspect.signature(model.forward).parameters)
    if missing:
        raise UserError(
            f"target {name!r} ({type(model).__name__}) cannot be used: its forward takes no "
            f"{', '.join(sorted(missing))}; choose another target"
        )


@torch.inference_mode()
def prove_tree(model: Any, name: str) -> None:
    """Runs a small tree and compares it with the model's own forward: for families that nobody has looked at.

    Raises:
        UserError: the tree fails or gives other logits.
    """
    ids = torch.arange(3, 11, device=model.device) % model.config.get_text_config().vocab_size
    # After a prompt of four tokens the chain 4-5-6, and before 6 a sibling of it that it must not see.
    nodes = torch.tensor([4, 5, 7, 6], device=model.device)
    depths = torch.tensor([0, 1, 2, 2], device=model.device)
    mask = torch.ones(4, 4, dtype=torch.bool, device=model.device).tril()
    mask[3, 2] = False
    expected = model(input_ids=ids[None, :7], use_cache=False).logits[0, -1].float()
    session = TargetSession(model, capacity=8, taps=(2,))
    try:
        session.prefill(ids[:4].tolist())
        difference = session.verify(ids[nodes], depths, mask).logits[3] - expected
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(
            f"target {name!r} ({model.config.model_type}) cannot be used: it does not run over a tree "
            f"({type(error).__name__}: {error}); choose another target"
        ) from error
    if not difference.abs().mean() <= 0.05 * expected.std():
        raise UserError(
            f"target {name!r} ({model.config.model_type}) cannot be used: over a tree its logits differ from those of "
            "the same tokens in a row; choose another target"
        )
