"""Tree invariants, growth against a brute-force expand and rerank, and the verdict's walk."""

from __future__ import annotations

import itertools

import pytest
import torch

from eagle3_demo.decoding.drafting import Growth, draft_tree
from eagle3_demo.decoding.tree import DraftTree
from eagle3_demo.decoding.verification import accept, node_statuses
from eagle3_demo.models.head import Eagle3Head, HeadSession
from eagle3_demo.settings import SamplingSettings, TreeSettings
from tests.tiny_head import tiny_head

TREE = DraftTree((9, 1, 2, 3, 4, 5), (-1, 0, 0, 1, 1, 3), (0.0, -0.1, -2.0, -0.2, -1.0, -0.3))


def test_depths_and_mask_are_ancestry() -> None:
    assert TREE.depths() == [0, 1, 1, 2, 2, 3]
    for node, row in enumerate(TREE.mask().tolist()):
        ancestors, current = set(), node
        while current >= 0:
            ancestors.add(current)
            current = TREE.parents[current]
        assert {index for index, seen in enumerate(row) if seen} == ancestors


def grow(head: Eagle3Head, settings: TreeSettings, seed: int = 3) -> tuple[DraftTree, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    embeddings, taps = torch.randn(6, 32, generator=generator), torch.randn(6, 96, generator=generator)
    table = torch.randn(50, 32, generator=generator)
    session = HeadSession(head, 128)
    state = session.extend(embeddings, taps)
    growth = Growth(head, session, lambda ids: table[ids], state, settings.top_k)
    return draft_tree(growth, 7, settings, settings.depth), embeddings, taps


@pytest.mark.parametrize("nodes,depth,top_k", [(2, 1, 1), (6, 4, 3), (12, 4, 3), (30, 5, 4), (60, 8, 10), (5, 4, 1)])
def test_trees_are_closed_ordered_and_sized(nodes: int, depth: int, top_k: int) -> None:
    tree, *_ = grow(tiny_head(), TreeSettings(nodes=nodes, depth=depth, top_k=top_k))
    pool = top_k + (depth - 1) * top_k**2
    assert len(tree) == min(nodes, pool + 1)
    assert tree.tokens[0] == 7 and tree.parents[0] == -1
    assert all(0 <= parent < node for node, parent in enumerate(tree.parents) if node)
    assert max(tree.depths()) <= depth
    siblings = list(zip(tree.parents, tree.tokens, strict=True))
    assert len(set(siblings)) == len(siblings)
    assert all(tiny_head().t2d[token] for token in tree.tokens[1:])


def test_growth_equals_running_every_path_afresh() -> None:
    """Expand and rerank from its definition: each candidate's score by a fresh cache over its whole path."""
    head, settings = tiny_head(), TreeSettings(nodes=14, depth=4, top_k=3)
    tree, embeddings, taps = grow(head, settings)
    table = torch.randn(50, 32, generator=_after(embeddings, taps))

    def next_log_probabilities(path: tuple[int, ...]) -> torch.Tensor:
        session = HeadSession(head, 128)
        state = session.extend(embeddings, taps)
        for level, token in enumerate(path):
            chain = torch.ones(1, level + 1, dtype=torch.bool)
            state = session.expand(table[token][None], head.feedback(state)[None], level, chain, level)[0]
        return torch.log_softmax(head.logits(state), -1)

    pool: dict[tuple[int, ...], float] = {}
    frontier: list[tuple[int, ...]] = [()]
    for _ in range(settings.depth):
        level: dict[tuple[int, ...], float] = {}
        for path in frontier:
            best = next_log_probabilities(path).topk(settings.top_k)
            for index, value in zip(best.indices, best.values.tolist(), strict=True):
                level[(*path, int(head.target_ids(index)))] = pool.get(path, 0.0) + value
        pool |= level
        frontier = sorted(level, key=lambda path: -level[path])[: settings.top_k]
    expected = set(sorted(pool, key=lambda path: -pool[path])[: settings.nodes - 1])
    paths: list[tuple[int, ...]] = [()]
    for node in range(1, len(tree)):
        paths.append((*paths[tree.parents[node]], tree.tokens[node]))
        total = sum(tree.log_probabilities[n] for n in _ancestry(tree, node))
        assert total == pytest.approx(pool[paths[node]], abs=1e-4)
    assert set(paths[1:]) == expected


def _ancestry(tree: DraftTree, node: int) -> list[int]:
    nodes = []
    while node > 0:
        nodes.append(node)
        node = tree.parents[node]
    return nodes


def _after(*drawn: torch.Tensor) -> torch.Generator:
    """The generator of `grow` after it has drawn these."""
    generator = torch.Generator().manual_seed(3)
    for tensor in drawn:
        torch.randn(tensor.shape, generator=generator)
    return generator


def logits_choosing(tree: DraftTree, choices: dict[int, int], vocabulary: int = 12) -> torch.Tensor:
    logits = torch.zeros(len(tree), vocabulary)
    for node, token in choices.items():
        logits[node, token] = 5.0
    return logits


@pytest.mark.parametrize(
    "choices,path,token",
    [
        ({0: 1, 1: 3, 3: 5, 5: 8}, (1, 3, 5), 8),
        ({0: 1, 1: 4, 4: 0}, (1, 4), 0),
        ({0: 2, 2: 6}, (2,), 6),
        ({0: 11}, (), 11),
    ],
)
def test_greedy_walk(choices: dict[int, int], path: tuple[int, ...], token: int) -> None:
    verdict = accept(TREE, logits_choosing(TREE, choices), 20, SamplingSettings())
    assert (verdict.path, verdict.target_token) == (path, token)


def test_statuses() -> None:
    assert node_statuses(TREE, (1, 4)) == ("root", "accepted", "rejected", "rejected", "accepted", "unreached")


def test_walk_emits_what_plain_sampling_emits_whatever_the_tree() -> None:
    """Every emitted token is the draw that plain decoding makes at that position from that node's logits."""
    from eagle3_demo.decoding.sampling import pick

    generator = torch.Generator().manual_seed(0)
    for seed, position in itertools.product(range(20), (5, 6)):
        sampling = SamplingSettings(temperature=1.0, seed=seed)
        logits = torch.randn(len(TREE), 6, generator=generator)
        verdict = accept(TREE, logits, position, sampling)
        emitted = [*TREE.tokens_along(verdict.path), verdict.target_token]
        for step, (node, token) in enumerate(zip((0, *verdict.path), emitted, strict=True)):
            assert token == pick(logits[node], position + step + 1, sampling)
