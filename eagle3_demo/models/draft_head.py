"""What every draft head is made of: its sizes, its one decoder layer, and the interface that drafting and training use.

The slot rule of all of them: feature i (of the target, at position i) is paired with the embedding of token i+1, and
the output at slot i predicts token i+2. Heads differ in the features they read, in how a slot's embedding and state
become the layer's input, and in how an output becomes logits.

The pieces carry no attention of their own: drafting attends over a cache (`models/head.HeadSession`), training over a
whole sequence.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, PositiveInt
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, rotate_half

from eagle3_demo.models.fused_layers import FusedHeadLayer
from eagle3_demo.settings import Method


class DraftHeadConfig(BaseModel):
    """Sizes that every head has. Field names are those of public checkpoints.

    Attributes:
        vocab_size: the target's vocabulary.
        rope_theta: base of the *head's* rotary embedding; official EAGLE-3 heads have none and mean 10000.
    """

    model_config = ConfigDict(frozen=True)

    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt
    head_dim: PositiveInt
    vocab_size: PositiveInt
    max_position_embeddings: PositiveInt = 2048
    rms_norm_eps: float = 1e-5
    hidden_act: str = "silu"
    rope_theta: float = 10000.0
    rope_scaling: dict[str, Any] | None = None

    def layer_config(self) -> LlamaConfig:
        """The decoder layer as transformers describes it."""
        return LlamaConfig(
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            hidden_act=self.hidden_act,
            max_position_embeddings=self.max_position_embeddings,
            rope_parameters={"rope_type": "default", **(self.rope_scaling or {}), "rope_theta": self.rope_theta},
        )


class RMSNorm(nn.RMSNorm):
    """RMSNorm that keeps its input's dtype, so that mixed precision stays on torch's fused path."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] to [..., hidden]."""
        return functional.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class HeadAttention(nn.Module):
    """Projections of a head's self-attention.

    Args:
        config: the head's sizes.
        input_size: width that queries, keys and values read.
    """

    def __init__(self, config: DraftHeadConfig, input_size: int) -> None:
        super().__init__()
        width, kv_width = (
            heads * config.head_dim for heads in (config.num_attention_heads, config.num_key_value_heads)
        )
        self.q_proj = nn.Linear(input_size, width, bias=False)
        self.k_proj = nn.Linear(input_size, kv_width, bias=False)
        self.v_proj = nn.Linear(input_size, kv_width, bias=False)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=False)


class DraftHead(nn.Module):
    """The interface of a head, and what all heads compute alike.

    Args:
        config: the head's sizes.
        layer: the decoder layer, with `self_attn` (a `HeadAttention`), `post_attention_layernorm` and `mlp`.
    """

    method: Method
    """The decoding method that the head drafts for."""
    config: DraftHeadConfig
    midlayer: Any
    fused: FusedHeadLayer | None = None
    """The layer for drafting on the CPU, set by `acceleration.pack_head`."""

    def __init__(self, config: DraftHeadConfig, layer: nn.Module) -> None:
        super().__init__()
        self.config = config
        self.midlayer = layer
        self.rotary = LlamaRotaryEmbedding(config.layer_config())

    def taps(self, default: tuple[int, int, int]) -> tuple[int, ...]:
        """What the head reads of the target, as `TargetModel.session` takes it.

        Args:
            default: the target's own choice of layers, for heads that name none.
        """
        raise NotImplementedError

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        """Draft ids to target ids, any shape."""
        raise NotImplementedError

    def fuse(self, taps: Tensor) -> Tensor:
        """Target features [..., taps * target hidden] to the head's state [..., hidden]."""
        raise NotImplementedError

    def layer_input(self, embeddings: Tensor, hidden: Tensor) -> Tensor:
        """Embeddings and states, [..., hidden] each, to what the attention reads, [..., input size]."""
        raise NotImplementedError

    def residual(self, layer_input: Tensor, hidden: Tensor) -> Tensor:
        """What the layer's output is added to, [..., hidden]."""
        raise NotImplementedError

    def logits(self, output: Tensor) -> Tensor:
        """[..., hidden] to logits over the draft vocabulary [..., draft vocabulary]."""
        raise NotImplementedError

    def feedback(self, output: Tensor) -> Tensor:
        """The state that the next drafted step starts from, [..., hidden]."""
        raise NotImplementedError

    def queries(self, layer_input: Tensor, positions: Tensor) -> Tensor:
        """[batch, n, input size] and positions [batch, n] to rotated queries [batch, heads, n, head dim]."""
        return self._rotated(self.midlayer.self_attn.q_proj(layer_input), positions)

    def keys_values(self, layer_input: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Rotated keys and values, each [batch, key-value heads, n, head dim]."""
        values = self.midlayer.self_attn.v_proj(layer_input)
        keys = self._rotated(self.midlayer.self_attn.k_proj(layer_input), positions)
        return keys, values.unflatten(-1, (-1, self.config.head_dim)).transpose(1, 2)

    def finish(self, residual: Tensor, attended: Tensor) -> Tensor:
        """Output projection, residuals and MLP.

        Args:
            residual: [..., hidden], see `residual`.
            attended: [..., heads * head dim], the attention's result.

        Returns:
            [..., hidden], the layer's output, before any final norm.
        """
        layer = self.midlayer
        middle = residual + layer.self_attn.o_proj(attended)
        return middle + layer.mlp(layer.post_attention_layernorm(middle))

    def _rotated(self, projected: Tensor, positions: Tensor) -> Tensor:
        states = projected.unflatten(-1, (-1, self.config.head_dim)).transpose(1, 2)
        cosine, sine = (part.unsqueeze(1) for part in self.rotary(states, positions))
        return states * cosine + rotate_half(states) * sine
