"""What the target thought of a tree is told as it was, and only to those who ask."""

from __future__ import annotations

import math

import pytest
import torch

from eagle3_demo.decoding.autoregressive import decode_autoregressive
from eagle3_demo.decoding.insight import likeliest, target_log_probabilities
from eagle3_demo.decoding.speculative import decode_speculatively
from eagle3_demo.decoding.tree import DraftTree
from eagle3_demo.models.target import TargetModel
from eagle3_demo.settings import generation_settings
from tests.tiny_head import tiny_head

PROMPT = [5, 17, 3, 29, 11]


def test_each_nodes_probability_is_its_parents_row() -> None:
    tree = DraftTree((7, 1, 2, 3), (-1, 0, 0, 1), (0.0, -0.1, -0.2, -0.3))
    logits = torch.randn(4, 10, generator=torch.Generator().manual_seed(0))
    table = logits.log_softmax(-1)
    found = target_log_probabilities(tree, 9, (1,), logits)
    expected = [0.0, table[0, 1], table[0, 2], table[1, 3], table[1, 9]]
    assert found == pytest.approx([float(value) for value in expected], abs=1e-5)
    tops = likeliest((1,), logits, 4)
    assert [token for token, _ in tops[1]] == table[1].topk(5).indices.tolist()


def test_greedy_steps_take_the_first_of_the_targets_list(target: TargetModel) -> None:
    head = tiny_head(target.vocabulary_size, target.vocabulary_size // 2, target.hidden_size, seed=4)
    settings = generation_settings(max_new_tokens=20, explain=True)
    for events in (
        decode_speculatively(target, head, PROMPT, settings),
        decode_autoregressive(target, PROMPT, settings),
    ):
        for event in events:
            tree = event.tree
            taken = [tree.texts[node] for node in tree.path] + [tree.target_text]
            assert [top[0][0] for top in tree.target_tops] == taken[: len(tree.target_tops)]
            assert len(tree.target_tops) == len(tree.path) + 1
            assert len(tree.target_log_probabilities) == len(tree.tokens) + 1
            assert all(math.exp(value) <= 1 for value in tree.target_log_probabilities)


def test_nobody_pays_who_does_not_ask(target: TargetModel) -> None:
    event = next(decode_autoregressive(target, PROMPT, generation_settings(max_new_tokens=4)))
    assert event.tree.target_tops == () == event.tree.target_log_probabilities
