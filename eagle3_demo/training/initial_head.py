"""A head's first weights: as near to the target as its shape allows.

The fusion starts as the identity on the high tap, the decoder layer as the target's last layer reading the hidden half
of its doubled input, the LM head and the norms as the target's own. Training starts from there.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from eagle3_demo.models.head import Eagle3Config, Eagle3Head


def head_config(model: PreTrainedModel, draft_vocabulary: int, taps: tuple[int, int, int] | None) -> Eagle3Config:
    """A head of the target's own width, with the target's rotary base."""
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    return Eagle3Config(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_attention_heads=heads,
        num_key_value_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        vocab_size=config.vocab_size,
        draft_vocab_size=draft_vocabulary,
        max_position_embeddings=config.max_position_embeddings,
        rms_norm_eps=config.rms_norm_eps,
        rope_theta=config.rope_parameters["rope_theta"],
        taps=taps,
    )


@torch.no_grad()
def initial_head(model: PreTrainedModel, config: Eagle3Config, draft_ids: Tensor) -> Eagle3Head:
    """A new head in float32.

    Args:
        model: the target, a Llama-type model.
        draft_ids: int64 [draft vocabulary], ascending target ids.
    """
    head = Eagle3Head(config).to(model.device)
    head.set_draft_vocabulary(draft_ids.to(model.device))
    width = config.hidden_size
    torch.nn.init.normal_(head.fc.weight, std=0.002)
    head.fc.weight[:, 2 * width :] += torch.eye(width, device=model.device)
    last = model.base_model.layers[-1]
    layer = head.midlayer
    for name in ("q_proj", "k_proj", "v_proj"):
        weight = getattr(layer.self_attn, name).weight
        torch.nn.init.normal_(weight, std=0.002)
        weight[:, width:] += getattr(last.self_attn, name).weight.float()
    layer.self_attn.o_proj.weight.copy_(last.self_attn.o_proj.weight)
    for name in ("gate_proj", "up_proj", "down_proj"):
        getattr(layer.mlp, name).weight.copy_(getattr(last.mlp, name).weight)
    layer.hidden_norm.weight.copy_(last.input_layernorm.weight)
    layer.post_attention_layernorm.weight.copy_(last.post_attention_layernorm.weight)
    head.norm.weight.copy_(model.base_model.norm.weight)
    head.lm_head.weight.copy_(model.get_output_embeddings().weight[head.target_ids(torch.arange(len(draft_ids)))])
    return head
