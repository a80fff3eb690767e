"""Decoding with an EAGLE-2 head emits what plain decoding emits, and the engine finds the right head for a method."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3_demo.decoding.autoregressive import decode_autoregressive
from eagle3_demo.decoding.events import RunStatistics
from eagle3_demo.decoding.local_engine import LocalEngine
from eagle3_demo.decoding.speculative import decode_speculatively
from eagle3_demo.models.checkpoint import save_head
from eagle3_demo.models.target import TargetModel
from eagle3_demo.settings import generation_settings
from tests.tiny_eagle2 import tiny_eagle2_head
from tests.tiny_pair import save_tiny_pair

PROMPT = [5, 17, 3, 29, 11]


@pytest.mark.parametrize("shape", [(6, 4, 3), (12, 3, 8), (40, 6, 6), (5, 4, 1)])
@pytest.mark.parametrize("chain", [{}, {"temperature": 0.7, "top_p": 0.9}, {"temperature": 1.2, "top_k": 12}])
def test_tokens_equal_plain_decoding(target: TargetModel, shape: tuple[int, int, int], chain: dict[str, float]) -> None:
    nodes, depth, top_k = shape
    values = {"max_new_tokens": 40, "nodes": nodes, "depth": depth, "tree_top_k": top_k, "seed": 3, **chain}
    request = generation_settings(**values)
    head = tiny_eagle2_head(target.lm_head)
    plain = RunStatistics.of(decode_autoregressive(target, PROMPT, request))
    events = list(decode_speculatively(target, head, PROMPT, request))
    assert RunStatistics.of(events).token_ids == plain.token_ids
    assert any(len(event.tree.tokens) > 1 for event in events)


def test_each_method_gets_its_own_head(target: TargetModel, tmp_path: Path) -> None:
    folder, eagle3 = save_tiny_pair(tmp_path)
    eagle2 = tmp_path / "tiny-eagle2"
    save_head(tiny_eagle2_head(target.lm_head), eagle2)
    options = {"device": "cpu", "dtype": "auto", "progress": None}
    engine = LocalEngine.load(None, str(folder), str(eagle2), **options)
    assert engine.head_name == "tiny-eagle2"
    ids = engine.encode([{"role": "user", "content": "one two"}])
    outputs = {}
    for method in ("eagle3", "eagle2", "autoregressive"):
        request = generation_settings(method=method, max_new_tokens=20)
        speculation = engine.speculation(request)
        assert speculation.active is (method == "eagle2")
        assert speculation.head == ("tiny-eagle2" if method == "eagle2" else None)
        outputs[method] = RunStatistics.of(engine.run(ids, request)).token_ids
    assert outputs["eagle2"] == outputs["eagle3"] == outputs["autoregressive"]
    assert "no EAGLE-3 head" in engine.speculation(generation_settings()).reason
    other = LocalEngine.load(None, str(folder), str(eagle3), **options)
    assert "no EAGLE-2 head" in other.speculation(generation_settings(method="eagle2")).reason
