from __future__ import annotations

import pytest

from eagle3_demo.decoding.autoregressive import decode_autoregressive
from eagle3_demo.decoding.events import RunStatistics
from eagle3_demo.decoding.speculative import decode_speculatively
from eagle3_demo.decoding.spoiling import spoil
from eagle3_demo.decoding.tree import DraftTree
from eagle3_demo.models.target import TargetModel
from eagle3_demo.settings import generation_settings
from tests.tiny_head import tiny_head

TREE = DraftTree((9, 0, 1, 2, 5, 6), (-1, 0, 0, 0, 1, 1), (0.0, -0.1, -0.2, -0.3, -0.1, -0.2))


def test_nothing_is_changed_unless_asked() -> None:
    assert spoil(TREE, 0.0, 7) is TREE


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_siblings_stay_different_and_the_root_stays(share: float) -> None:
    for position in range(50):
        tokens = spoil(TREE, share, position).tokens
        assert tokens[0] == 9
        assert len(set(tokens[1:4])) == 3 and len(set(tokens[4:])) == 2
        assert min(tokens) >= 0
        if share == 1.0:
            assert all(new != old for new, old in zip(tokens[1:], TREE.tokens[1:], strict=True))


def test_a_spoiled_head_changes_the_speed_and_not_the_answer(target: TargetModel) -> None:
    head = tiny_head(target.vocabulary_size, target.vocabulary_size // 2, target.hidden_size, seed=4)
    whole = generation_settings(max_new_tokens=40, nodes=12, depth=3, tree_top_k=8)
    bad = whole.model_copy(update={"tree": whole.tree.model_copy(update={"spoiled": 1.0})})
    prompt = [5, 17, 3, 29, 11]
    plain = RunStatistics.of(decode_autoregressive(target, prompt, whole))
    spoiled = RunStatistics.of(decode_speculatively(target, head, prompt, bad))
    assert spoiled.token_ids == plain.token_ids
