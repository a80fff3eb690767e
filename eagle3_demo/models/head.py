"""The EAGLE-3 draft head: fusion of three target features, one decoder layer, a reduced draft vocabulary.

Shapes and rules are those of eagle3_reference.md section 1. The slot rule: feature i (the target's hidden states at
position i) is paired with the embedding of token i+1, and the output at slot i predicts token i+2.

The pieces (`fuse`, `attention_inputs`, `finish`, `logits`) carry no attention of their own: training attends over
simulated steps (training/training_time_test.py), drafting over a cache (`HeadSession`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, PositiveInt
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRotaryEmbedding, rotate_half

from eagle3_demo.models.fused_layers import FusedHeadLayer


class Eagle3Config(BaseModel):
    """Sizes and variants of a head. Field names are those of public checkpoints (eagle3_reference.md 1.3, 2).

    Attributes:
        vocab_size: the target's vocabulary.
        target_hidden_size: the target's width where it differs from `hidden_size`.
        rope_theta: base of the *head's* rotary embedding; official heads have none and mean 10000.
        norm_before_residual: the residual is `hidden_norm(h)` instead of `h`.
        norm_before_fc: one RMSNorm over the three concatenated taps.
        fc_norm: one RMSNorm for each tap (EAGLE-3.1).
        norm_output: the post-norm output is fed back instead of the pre-norm one (EAGLE-3.1).
        taps: layers whose inputs are tapped; None means the default (2, L // 2, L - 3).
    """

    model_config = ConfigDict(frozen=True)

    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt
    head_dim: PositiveInt
    vocab_size: PositiveInt
    draft_vocab_size: PositiveInt
    max_position_embeddings: PositiveInt = 2048
    rms_norm_eps: float = 1e-5
    hidden_act: str = "silu"
    rope_theta: float = 10000.0
    rope_scaling: dict[str, Any] | None = None
    target_hidden_size: PositiveInt | None = None
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    taps: tuple[int, int, int] | None = None

    @property
    def tapped_size(self) -> int:
        """Width of one tap."""
        return self.target_hidden_size or self.hidden_size

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
    """Projections of the head's self-attention; queries, keys and values read the doubled input width."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        width, kv_width = (
            heads * config.head_dim for heads in (config.num_attention_heads, config.num_key_value_heads)
        )
        self.q_proj = nn.Linear(2 * config.hidden_size, width, bias=False)
        self.k_proj = nn.Linear(2 * config.hidden_size, kv_width, bias=False)
        self.v_proj = nn.Linear(2 * config.hidden_size, kv_width, bias=False)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=False)


class HeadLayer(nn.Module):
    """The one decoder layer, named as in public checkpoints."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = HeadAttention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = LlamaMLP(config.layer_config())


class Eagle3Head(nn.Module):
    """The draft head. Token embeddings are the target's, frozen, and are passed in unless the head brings its own.

    Buffers: `d2t` int64 [draft vocabulary], offsets (`target id = j + d2t[j]`); `t2d` bool [target vocabulary].
    """

    d2t: Tensor
    t2d: Tensor
    fused: FusedHeadLayer | None = None
    """The layer for drafting on the CPU, set by `acceleration.pack_head`."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.config = config
        taps_width = 3 * config.tapped_size
        self.fc = nn.Linear(taps_width, config.hidden_size, bias=False)
        self.midlayer = HeadLayer(config)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        if config.norm_before_fc:
            self.input_norm = RMSNorm(taps_width, config.rms_norm_eps)
        if config.fc_norm:
            self.fc_norm = nn.ModuleList(RMSNorm(config.tapped_size, config.rms_norm_eps) for _ in range(3))
        if config.target_hidden_size not in (None, config.hidden_size):
            self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.long))
        self.register_buffer("t2d", torch.zeros(config.vocab_size, dtype=torch.bool))
        self.rotary = LlamaRotaryEmbedding(config.layer_config())

    def set_draft_vocabulary(self, ids: Tensor) -> None:
        """Sets `d2t` and `t2d` from ascending target ids, int64 [draft vocabulary]."""
        self.d2t.copy_(ids - torch.arange(len(ids), device=ids.device))
        self.t2d.zero_()
        self.t2d[ids] = True

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        """Draft ids to target ids, any shape."""
        return draft_ids + self.d2t[draft_ids]

    def fuse(self, taps: Tensor) -> Tensor:
        """Target features [..., 3 * target hidden] to the head's hidden state [..., hidden]."""
        if self.config.fc_norm:
            parts = taps.chunk(3, dim=-1)
            taps = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        if self.config.norm_before_fc:
            taps = self.input_norm(taps)
        return self.fc(taps)

    def layer_input(self, embeddings: Tensor, hidden: Tensor) -> Tensor:
        """[..., hidden] twice to the attention's input [..., 2 * hidden]: embedding first."""
        return torch.cat([self.midlayer.input_layernorm(embeddings), self.midlayer.hidden_norm(hidden)], dim=-1)

    def queries(self, layer_input: Tensor, positions: Tensor) -> Tensor:
        """[batch, n, 2 * hidden] and positions [batch, n] to rotated queries [batch, heads, n, head dim]."""
        return self._rotated(self.midlayer.self_attn.q_proj(layer_input), positions)

    def keys_values(self, layer_input: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Rotated keys and values, each [batch, key-value heads, n, head dim]."""
        values = self.midlayer.self_attn.v_proj(layer_input)
        keys = self._rotated(self.midlayer.self_attn.k_proj(layer_input), positions)
        return keys, values.unflatten(-1, (-1, self.config.head_dim)).transpose(1, 2)

    def _rotated(self, projected: Tensor, positions: Tensor) -> Tensor:
        states = projected.unflatten(-1, (-1, self.config.head_dim)).transpose(1, 2)
        cosine, sine = (part.unsqueeze(1) for part in self.rotary(states, positions))
        return states * cosine + rotate_half(states) * sine

    def residual(self, layer_input: Tensor, hidden: Tensor) -> Tensor:
        """What the layer's output is added to: the raw state; with `norm_before_residual` the normed one."""
        return self.midlayer.hidden_norm(hidden) if self.config.norm_before_residual else hidden

    def finish(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """Output projection, residuals and MLP.

        Args:
            hidden: [..., hidden], the layer's raw input state.
            attended: [..., heads * head dim], the attention's result.

        Returns:
            [..., hidden], before the final norm.
        """
        layer = self.midlayer
        residual = layer.hidden_norm(hidden) if self.config.norm_before_residual else hidden
        middle = residual + layer.self_attn.o_proj(attended)
        return middle + layer.mlp(layer.post_attention_layernorm(middle))

    def logits(self, output: Tensor) -> Tensor:
        """[..., hidden] to logits over the draft vocabulary [..., draft vocabulary]."""
        return self.lm_head(self.norm(output))

    def feedback(self, output: Tensor) -> Tensor:
        """The state that the next drafted step starts from: pre-norm, or post-norm in EAGLE-3.1."""
        return self.norm(output) if self.config.norm_output else output


class HeadSession:
    """One request's draft cache. Rows made from real target features stay; rows of drafted nodes are overwritten.

    Args:
        head: the shared head, in evaluation mode.
        capacity: positions to hold, one full tree included.

    Attributes:
        length: positions made from real target features.
    """

    def __init__(self, head: Eagle3Head, capacity: int) -> None:
        self.head = head
        config = head.config
        weight = head.norm.weight
        shape = (1, config.num_key_value_heads, capacity, config.head_dim)
        self._keys = torch.zeros(shape, dtype=weight.dtype, device=weight.device)
        self._values = torch.zeros_like(self._keys)
        self._groups = config.num_attention_heads // config.num_key_value_heads
        self.length = 0

    def extend(self, embeddings: Tensor, taps: Tensor) -> Tensor:
        """Takes accepted tokens with their real target features into the cache.

        Args:
            embeddings: [n, hidden], of the tokens one position *after* each feature.
            taps: [n, 3 * target hidden].

        Returns:
            [hidden], the output at the last slot, before the final norm: the state that drafts the next token.
        """
        n = len(taps)
        hidden = self.head.fuse(taps.to(self._keys.dtype))
        causal = torch.ones(n, n, dtype=torch.bool, device=taps.device).tril()
        positions = torch.arange(self.length, self.length + n, device=taps.device)
        output = self._forward(embeddings, hidden, positions, causal, offset=0, last_only=True)
        self.length += n
        return output[0]

    def expand(self, embeddings: Tensor, hidden: Tensor, depth: int, mask: Tensor, offset: int) -> Tensor:
        """Runs drafted nodes of one level.

        Args:
            embeddings: [n, hidden], of the nodes' tokens.
            hidden: [n, hidden], the fed-back state of each node's parent.
            depth: level of the nodes below the root, from 0: all share one position.
            mask: bool [n, offset + n], which drafted rows each node sees, itself included.
            offset: drafted rows already in the cache after `length`.

        Returns:
            [n, hidden], before the final norm.
        """
        positions = torch.full((len(hidden),), self.length + depth, device=hidden.device)
        return self._forward(embeddings, hidden, positions, mask, offset)

    def reset(self) -> None:
        """Forgets everything; the buffers stay."""
        self.length = 0

    def _forward(
        self, embeddings: Tensor, hidden: Tensor, positions: Tensor, mask: Tensor, offset: int, last_only: bool = False
    ) -> Tensor:
        layer_input = self.head.layer_input(embeddings.to(hidden.dtype), hidden)[None]
        fused = self.head.fused
        if fused is not None and fused.attention.takes(len(hidden)):
            residual = self.head.residual(layer_input[0], hidden)
            visible = mask if mask.numel() > 1 else None
            cache = (self._keys, self._values)
            return fused(layer_input[0], residual, positions, cache, visible, self.length, last_only)
        start = self.length + offset
        end = start + hidden.shape[0]
        keys, values = self.head.keys_values(layer_input, positions[None])
        self._keys[:, :, start:end] = keys
        self._values[:, :, start:end] = values
        if last_only:
            layer_input, hidden, positions, mask = layer_input[:, -1:], hidden[-1:], positions[-1:], mask[-1:]
        attended = self._attend(self.head.queries(layer_input, positions[None]), mask, end)
        return self.head.finish(hidden, attended)

    def _attend(self, queries: Tensor, mask: Tensor, end: int) -> Tensor:
        """Grouped attention without expanding keys: queries of one group are more rows of one key-value head."""
        _, heads, n, head_dim = queries.shape
        visible = torch.ones(n, end, dtype=torch.bool, device=mask.device)
        visible[:, end - mask.shape[1] :] = mask
        rows = queries.reshape(1, heads // self._groups, self._groups * n, head_dim)
        attended = functional.scaled_dot_product_attention(
            rows, self._keys[:, :, :end], self._values[:, :, :end], attn_mask=visible.repeat(self._groups, 1)
        )
        return attended.reshape(heads, n, head_dim).transpose(0, 1).reshape(n, heads * head_dim)


def sorted_draft_ids(counts: Tensor, size: int, always: Sequence[int] = ()) -> Tensor:
    """The draft vocabulary: the most frequent tokens, `always` included, ascending (eagle3_reference.md 3.4).

    Args:
        counts: int64 [target vocabulary], how often each token occurs in answers.
        size: draft vocabulary; filled with the smallest unused ids when fewer tokens occur.
        always: ids that must be in, such as the end-of-turn token.

    Returns:
        int64 [size].
    """
    ranked = counts.clone().double()
    ranked[list(always)] = float("inf")
    ranked -= torch.arange(len(counts)) * 1e-9
    return ranked.topk(size).indices.sort().values
