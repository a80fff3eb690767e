"""The EAGLE-3 draft head: fusion of three target features, one decoder layer, a reduced draft vocabulary.

Shapes and rules are those of eagle3_reference.md section 1. `HeadSession` is the draft cache of any head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.llama.modeling_llama import LlamaMLP

from eagle3_demo.models.draft_head import DraftHead, DraftHeadConfig, HeadAttention, RMSNorm


class Eagle3Config(DraftHeadConfig):
    """Sizes and variants of a head. Field names are those of public checkpoints (eagle3_reference.md 1.3, 2).

    Attributes:
        target_hidden_size: the target's width where it differs from `hidden_size`.
        norm_before_residual: the residual is `hidden_norm(h)` instead of `h`.
        norm_before_fc: one RMSNorm over the three concatenated taps.
        fc_norm: one RMSNorm for each tap (EAGLE-3.1).
        norm_output: the post-norm output is fed back instead of the pre-norm one (EAGLE-3.1).
        taps: layers whose inputs are tapped; None means the default (2, L // 2, L - 3).
    """

    draft_vocab_size: PositiveInt
    target_hidden_size: PositiveInt | None = None
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    taps: tuple[NonNegativeInt, NonNegativeInt, NonNegativeInt] | None = None

    @property
    def tapped_size(self) -> int:
        """Width of one tap."""
        return self.target_hidden_size or self.hidden_size


class HeadLayer(nn.Module):
    """The one decoder layer, named as in public checkpoints; its attention reads the doubled width."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = HeadAttention(config, 2 * config.hidden_size)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = LlamaMLP(config.layer_config())


class Eagle3Head(DraftHead):
    """The draft head. Token embeddings are the target's, frozen, and are passed in unless the head brings its own.

    Buffers: `d2t` int64 [draft vocabulary], offsets (`target id = j + d2t[j]`); `t2d` bool [target vocabulary].
    """

    method = "eagle3"
    config: Eagle3Config
    d2t: Tensor
    t2d: Tensor

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__(config, HeadLayer(config))
        taps_width = 3 * config.tapped_size
        self.fc = nn.Linear(taps_width, config.hidden_size, bias=False)
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

    def taps(self, default: tuple[int, int, int]) -> tuple[int, ...]:
        """Three layers whose inputs are read."""
        return self.config.taps or default

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

    def residual(self, layer_input: Tensor, hidden: Tensor) -> Tensor:
        """The raw state; with `norm_before_residual` the normed one."""
        return self.midlayer.hidden_norm(hidden) if self.config.norm_before_residual else hidden

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

    def __init__(self, head: DraftHead, capacity: int) -> None:
        self.head = head
        config = head.config
        weight = head.midlayer.post_attention_layernorm.weight
        shape = (1, config.num_key_value_heads, capacity, config.head_dim)
        self._keys = torch.zeros(shape, dtype=weight.dtype, device=weight.device)
        self._values = torch.zeros_like(self._keys)
        self._groups = config.num_attention_heads // config.num_key_value_heads
        self.length = 0

    def extend(self, embeddings: Tensor, taps: Tensor) -> Tensor:
        """Takes accepted tokens with their real target features into the cache.

        Args:
            embeddings: [n, hidden], of the tokens one position *after* each feature.
            taps: [n, taps * target hidden].

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
        if fused is not None and fused.takes(len(hidden)):
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
        return self.head.finish(self.head.residual(layer_input[0], hidden), attended)

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
