"""The head against a plain forward written from eagle3_reference.md 1.2, and its cache against a fresh one."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from eagle3_demo.models.draft_head import DraftHead
from eagle3_demo.models.head import Eagle3Head, HeadSession, sorted_draft_ids
from tests.tiny_head import tiny_head

VARIANTS: list[dict[str, object]] = [
    {},
    {"norm_before_residual": True},
    {"norm_before_fc": True},
    {"fc_norm": True, "norm_output": True},
    {"target_hidden_size": 24},
    {"rope_theta": 500000.0},
]


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rotated(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """x [n, heads, d]: pairs (i, i + d/2) turned by position * theta^(-2i/d)."""
    half = x.shape[-1] // 2
    angles = positions[:, None].double() * theta ** (-torch.arange(half).double() / half)
    cosine, sine = angles.cos().float()[:, None], angles.sin().float()[:, None]
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


def plain_layer(head: DraftHead, x: Tensor, residual: Tensor) -> Tensor:
    """Attention over all slots at once, head by head, and the MLP; [n, input size] and [n, hidden] to [n, hidden]."""
    config, state = head.config, head.state_dict()
    n, d = len(x), config.head_dim
    positions = torch.arange(n)
    attention = "midlayer.self_attn."
    query = rotated((x @ state[attention + "q_proj.weight"].T).view(n, -1, d), positions, config.rope_theta)
    key = rotated((x @ state[attention + "k_proj.weight"].T).view(n, -1, d), positions, config.rope_theta)
    value = (x @ state[attention + "v_proj.weight"].T).view(n, -1, d)
    group = config.num_attention_heads // config.num_key_value_heads
    outputs = []
    for number in range(config.num_attention_heads):
        scores = query[:, number] @ key[:, number // group].T / math.sqrt(d)
        scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), float("-inf"))
        outputs.append(torch.softmax(scores, -1) @ value[:, number // group])
    middle = residual + torch.cat(outputs, -1) @ state[attention + "o_proj.weight"].T
    y = normed(middle, state["midlayer.post_attention_layernorm.weight"], config.rms_norm_eps)
    gate, up = (y @ state[f"midlayer.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
    return middle + (torch.nn.functional.silu(gate) * up) @ state["midlayer.mlp.down_proj.weight"].T


def plain_forward(head: Eagle3Head, embeddings: Tensor, taps: Tensor) -> Tensor:
    """All slots at once with a causal mask, head by head, from the reference's pseudo-code; [n, hidden]."""
    config, state = head.config, head.state_dict()
    eps = config.rms_norm_eps
    if config.fc_norm:
        parts = taps.chunk(3, -1)
        taps = torch.cat([normed(p, state[f"fc_norm.{i}.weight"], eps) for i, p in enumerate(parts)], -1)
    if config.norm_before_fc:
        taps = normed(taps, state["input_norm.weight"], eps)
    hidden = taps @ state["fc.weight"].T
    lead = "midlayer."
    normed_hidden = normed(hidden, state[lead + "hidden_norm.weight"], eps)
    x = torch.cat([normed(embeddings, state[lead + "input_layernorm.weight"], eps), normed_hidden], -1)
    residual = normed_hidden if config.norm_before_residual else hidden
    return plain_layer(head, x, residual)


@pytest.mark.parametrize("flags", VARIANTS)
def test_extend_equals_the_reference_forward(flags: dict[str, object]) -> None:
    head = tiny_head(**flags)
    embeddings, taps = torch.randn(9, 32), torch.randn(9, 3 * head.config.tapped_size)
    expected = plain_forward(head, embeddings, taps)
    session = HeadSession(head, 16)
    for start, end in ((0, 4), (4, 5), (5, 9)):
        state = session.extend(embeddings[start:end], taps[start:end])
        torch.testing.assert_close(state, expected[end - 1], atol=1e-5, rtol=1e-4)
    logits = normed(expected[-1], head.norm.weight, head.config.rms_norm_eps) @ head.lm_head.weight.T
    torch.testing.assert_close(head.logits(state), logits, atol=1e-4, rtol=1e-4)


def test_drafted_rows_are_forgotten() -> None:
    head = tiny_head()
    embeddings, taps = torch.randn(8, 32), torch.randn(8, 96)
    fresh, used = HeadSession(head, 20), HeadSession(head, 20)
    fresh.extend(embeddings[:5], taps[:5])
    state = used.extend(embeddings[:5], taps[:5])
    used.expand(torch.randn(3, 32), state.expand(3, -1), 0, torch.eye(3, dtype=torch.bool), 0)
    torch.testing.assert_close(used.extend(embeddings[5:], taps[5:]), fresh.extend(embeddings[5:], taps[5:]))


def test_siblings_do_not_see_each_other() -> None:
    head = tiny_head()
    session = HeadSession(head, 20)
    state = session.extend(torch.randn(5, 32), torch.randn(5, 96))
    siblings = torch.randn(3, 32)
    together = session.expand(siblings, state.expand(3, -1), 0, torch.eye(3, dtype=torch.bool), 0)
    for row, embedding in enumerate(siblings):
        alone = session.expand(embedding[None], state[None], 0, torch.ones(1, 1, dtype=torch.bool), 0)
        torch.testing.assert_close(alone[0], together[row])


def test_feedback_is_before_the_norm_unless_told() -> None:
    output = torch.randn(2, 32)
    assert tiny_head().feedback(output) is output
    later = tiny_head(norm_output=True)
    torch.testing.assert_close(later.feedback(output), later.norm(output))


def test_a_head_of_another_width_brings_its_own_embeddings() -> None:
    assert "embed_tokens.weight" in tiny_head(target_hidden_size=24).state_dict()
    assert "embed_tokens.weight" not in tiny_head(target_hidden_size=32).state_dict()


def test_offsets_map_draft_ids() -> None:
    head = tiny_head()
    assert head.target_ids(torch.arange(20)).tolist() == list(range(0, 40, 2))
    assert head.t2d.nonzero().flatten().tolist() == list(range(0, 40, 2))


def test_draft_vocabulary_holds_the_frequent_and_the_forced() -> None:
    counts = torch.tensor([5, 0, 9, 0, 1, 7])
    assert sorted_draft_ids(counts, 3).tolist() == [0, 2, 5]
    assert sorted_draft_ids(counts, 3, always=[3]).tolist() == [2, 3, 5]
    assert sorted_draft_ids(torch.tensor([0, 0, 4, 0]), 3).tolist() == [0, 1, 2]
