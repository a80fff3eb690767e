"""Trees chosen by cost: what pays is taken, what does not is left, and choosing changes no output."""

from __future__ import annotations

import itertools
import math

import pytest

from eagle3_demo.decoding.autoregressive import decode_autoregressive
from eagle3_demo.decoding.events import RunStatistics
from eagle3_demo.decoding.speculative import decode_speculatively
from eagle3_demo.decoding.tree import DraftTree
from eagle3_demo.decoding.tree_choice import Acceptance, Knowledge, TreeChooser
from eagle3_demo.decoding.tree_costs import TreeCosts, measure_costs
from eagle3_demo.settings import GenerationSettings, SamplingSettings, TreeSettings
from tests.tiny_head import tiny_head
from tests.tiny_target import tiny_target

CHEAP = {1: 10.0, 2: 10.1, 4: 10.3, 8: 11.0, 16: 20.0}
DEAR = {1: 10.0, 2: 25.0, 4: 60.0}


def chooser(verify: dict[int, float], level: float = 0.5) -> TreeChooser:
    return TreeChooser(Knowledge(TreeCosts(verify, level)), greedy=True)


def test_times_between_the_measured_widths_lie_on_a_line_and_never_fall() -> None:
    costs = TreeCosts({1: 10.0, 2: 9.0, 4: 12.0}, 1.0)
    assert [costs.verify(nodes) for nodes in range(1, 5)] == [10.0, 10.0, 10.5, 12.0]
    assert costs.verify_step(2) == 0.5
    assert costs.verify(99) == 12.0
    falling = TreeCosts({1: 10.0, 4: 4.0, 5: 11.0}, 1.0)
    assert [falling.verify(nodes) for nodes in range(1, 6)] == [10.0, 10.0, 10.0, 10.0, 11.0]


def test_served_rounds_stretch_all_times_and_a_stall_hardly_does() -> None:
    costs = TreeCosts(CHEAP, 1.0)
    for _ in range(200):
        costs.served(4, 20.6)
    assert costs.verify(1) == pytest.approx(20.0, rel=0.02)
    before = costs.verify(1)
    costs.served(1, 10_000.0)
    assert costs.verify(1) <= 1.026 * before


def test_chances_follow_what_was_accepted() -> None:
    acceptance = Acceptance()
    sure = math.log(0.8)
    assert 0.7 < acceptance.chance(1, sure) < 0.8
    assert acceptance.chance(3, sure) < acceptance.chance(1, sure)
    for _ in range(300):
        acceptance.learn(1, sure, False)
    assert acceptance.chance(1, sure) < 0.05
    assert acceptance.chance(1, math.log(0.2)) > 0.1


@pytest.mark.parametrize("verify,chances,expected", [
    (CHEAP, [0.8, 0.5, 0.3, 0.2, 0.1], 5),
    (CHEAP, [0.8, 0.005, 0.004], 1),
    (DEAR, [0.8, 0.6], 0),
    (CHEAP, [], 0),
])  # fmt: skip
def test_a_node_is_verified_when_it_is_worth_its_time(
    verify: dict[int, float], chances: list[float], expected: int
) -> None:
    choice = chooser(verify)
    assert choice.worth_verifying(chances) == expected
    assert choice.reason.startswith(f"{expected + 1} node")


def test_steps_in_cost_are_seen_as_a_whole() -> None:
    """The ninth node is dear, those after it are cheap: all together pay, though the ninth alone does not."""
    stairs = {**dict.fromkeys(range(1, 9), 10.0), **dict.fromkeys(range(9, 33), 14.0)}
    assert chooser(stairs).worth_verifying([0.3] * 20) == 20
    assert chooser(stairs).worth_verifying([0.3] * 8) == 7


def test_a_level_is_drafted_only_if_it_pays_for_its_draft() -> None:
    assert chooser(CHEAP).worth_expanding([0, 1], [0.9, 0.4], 2) == [0, 1]
    assert chooser(CHEAP).worth_expanding([0, 1], [0.9, 0.001], 2) == [0]
    assert chooser(CHEAP, level=50.0).worth_expanding([0], [0.9], 2) == []


def test_speculation_that_loses_rests_and_is_tried_again() -> None:
    choice = chooser(CHEAP)
    tree = DraftTree((5, 6), (-1, 0), (0.0, -0.2))
    rounds = itertools.takewhile(lambda _: not choice.rests(), itertools.count())
    spent = sum(1 for _ in rounds if choice.served(tree, (), True, 5.0, 10.1) is None)
    assert 1 < spent < 40
    assert choice.reason.startswith("plain decoding: the last trees gave")
    rest = 0
    while choice.rests():
        choice.served(DraftTree.root(5), (), False, 0.0, 10.0)
        rest += 1
    assert 10 < rest < 500


def test_speculation_that_wins_never_rests() -> None:
    choice = chooser(CHEAP)
    tree = DraftTree((5, 6), (-1, 0), (0.0, -0.2))
    for _ in range(100):
        choice.served(tree, (1,), True, 1.0, 10.1)
        assert not choice.rests()
    assert choice.price == pytest.approx(2 / 11.1, rel=0.01)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_output_is_plain_decodings_whatever_is_chosen(temperature: float) -> None:
    target = tiny_target()
    head = tiny_head(280, 140)
    sampling = SamplingSettings(temperature=temperature, seed=3)
    auto = GenerationSettings(max_new_tokens=60, sampling=sampling, tree=TreeSettings(nodes="auto", depth=4))
    plain = RunStatistics.of(decode_autoregressive(target, [5, 17, 60], auto))
    for verify in (CHEAP, DEAR):
        knowledge = Knowledge(TreeCosts(verify, 0.01))
        events = list(decode_speculatively(target, head, [5, 17, 60], auto, knowledge=knowledge))
        assert RunStatistics.of(events).token_ids == plain.token_ids
        assert all(event.choice for event in events[1:])
        sizes = {len(event.tree.tokens) for event in events[1:]}
        assert max(sizes) > 2 if verify is CHEAP else sizes == {1}


def test_costs_are_measured_as_target_and_head_are_served() -> None:
    target = tiny_target()
    costs = measure_costs(target, tiny_head(280, 140))
    assert costs.level > 0
    assert 0 < costs.verify(1) <= costs.verify(8) <= costs.verify(32)
