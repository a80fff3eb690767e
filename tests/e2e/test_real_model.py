"""The whole way in a real browser with the embedded target and the bundled head."""

from __future__ import annotations

import pytest

from eagle3_demo.engine import DecodingEngine, load_engine
from tests.e2e.conftest import Serve, Visit

pytestmark = [pytest.mark.e2e, pytest.mark.real_model]


@pytest.fixture(scope="module")
def engine() -> DecodingEngine:
    return load_engine(device="cpu")


def test_chat_compare_and_trees_with_the_embedded_model(engine: DecodingEngine, serve: Serve, visit: Visit) -> None:
    visitor = visit(serve(engine))
    assert engine.target_name in visitor.text(".page-header")
    visitor.set_answer_limit(48)
    visitor.ask("What is the capital of France?")
    visitor.wait_for(".answer-note", "speculation on", patience=180)
    assert "Paris" in visitor.text("#conversation")
    visitor.ask("Count from 1 to 10.", "#race-prompt")
    visitor.wait_for_live_race(patience=180)
    assert "Identical output" in visitor.text(".badge[data-state=identical]")
    visitor.tab("Draft trees")
    visitor.wait_for(".trees h3", "Count from 1 to 10.")
    newest = visitor.text(".tree-canvas")
    visitor.move_slider(1)
    visitor.wait_for(".step-position", "Step 1 of")
    assert visitor.text(".tree-canvas") != newest
    # The root and the target's own token; how many guesses stand between them is chosen by cost.
    assert visitor.count(".tree-canvas .node") >= 2
    assert "node" in visitor.text(".step-summary")
    assert visitor.count(".tree-canvas .node.target") == 1
