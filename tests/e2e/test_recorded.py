"""Recorded races in a real browser: on the page before a model is loaded, and in the exported file without a server."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from eagle3_demo.background_engine import BackgroundEngine
from eagle3_demo.engine import DecodingEngine
from eagle3_demo.progress import ProgressCallback
from eagle3_demo.traces import save_trace
from eagle3_demo.ui.export import viewer_page
from tests.e2e.conftest import Serve, Visit
from tests.e2e.test_page import NASTY, NASTY_VISIBLE
from tests.ui.examples import scripted_examples, scripted_trace
from tests.ui.scripted import ScriptedEngine

pytestmark = pytest.mark.e2e


def test_a_recorded_race_plays_while_the_model_is_still_loading(serve: Serve, visit: Visit) -> None:
    gate = threading.Event()

    def load(progress: ProgressCallback) -> DecodingEngine:
        progress(0.4, "Loading the weights")
        gate.wait(60)
        return ScriptedEngine()

    engine = BackgroundEngine(load, "Expected target", None)
    address = serve(engine, scripted_examples())
    engine.start()
    visitor = visit(address)
    visitor.wait_for(".load-state", "Loading the weights")
    visitor.wait_for(".board .badge[data-state=identical]", "Identical output")
    assert "Recorded" not in visitor.text(".badge") and visitor.count(".origin-mark.recorded") >= 1
    assert visitor.text(".board .origin").startswith("recorded run20")
    assert "tokens from" in visitor.text(".pane.left .facts")
    assert "Divided, that is" in visitor.text(".why")
    gate.set()
    visitor.wait_until_gone(".load-state")
    assert "Scripted target" in visitor.text(".page-header")


def test_replay_scrub_and_open_a_tokens_tree(serve: Serve, visit: Visit) -> None:
    visitor = visit(serve(ScriptedEngine(), scripted_examples()))
    visitor.wait_for(".board .badge[data-state=identical]")
    whole = visitor.text(".pane.right .token-text")
    visitor.press(".board .time-slider", Keys.HOME)
    visitor.wait_for(".board .badge[data-state=running]", "The same so far: 0 tokens")
    visitor.click(".board .player .step-button[aria-label='One step on']")
    visitor.click(".board .player .step-button[aria-label='One step on']")
    visitor.wait_for(".pane.right .token-text .token")
    assert visitor.text(".pane.right .token-text") != whole
    visitor.press(".board .time-slider", Keys.END)
    visitor.wait_for(".board .badge[data-state=identical]")
    assert visitor.text(".pane.right .token-text") == whole
    visitor.click(".pane.right .token-text [data-step='2']")
    visitor.wait_for(".step-position", "Step 2 of")
    visitor.wait_for(".trees .origin", "recorded run")


def test_the_inspector_says_why_a_guess_fell(serve: Serve, visit: Visit) -> None:
    visitor = visit(serve(ScriptedEngine(), scripted_examples()) + "?example=story&tab=trees&step=1")
    visitor.wait_for(".step-position", "Step 1 of")
    visitor.wait_for(".trees h3", "Tell a story")
    assert "rejected" in visitor.text(".inspector .node-detail")
    assert "the target took" in visitor.text(".inspector .reason")
    visitor.press(".node[tabindex='0']", Keys.HOME)
    assert "Every tree grows from" in visitor.text(".inspector .reason")
    visitor.click(".check input")
    visitor.wait_for(".answer-so-far .fallen")
    visitor.press(".trees .step-slider", "]")
    visitor.wait_for(".step-position", "Step 2 of")
    visitor.press(".node[tabindex='0']", " ")
    visitor.wait_for(".trees .player-play", "Pause")
    visitor.wait_for(".step-position", "Step 4 of")
    visitor.click(".trees .player-play")


def test_the_tour_walks_through_its_stops_and_opens_its_tree(serve: Serve, visit: Visit) -> None:
    visitor = visit(serve(ScriptedEngine(), scripted_examples()))
    visitor.tab("Learn")
    visitor.wait_for(".tour-place", "Stop 1 of 5")
    for stop in range(2, 6):
        visitor.click(".tour-next")
        visitor.wait_for(".tour-place", f"Stop {stop} of 5")
    assert "Both sides wrote the same tokens" in visitor.text(".tour-text")
    visitor.click(".tour .actions button:last-child")
    visitor.wait_for(".step-position", "Step")


@pytest.mark.parametrize("dark", [False, True])
def test_no_tab_scrolls_sideways_on_a_phone(serve: Serve, visit: Visit, dark: bool) -> None:
    address = serve(ScriptedEngine(), scripted_examples())
    visitor = visit(address, width=360, height=740, dark=dark)
    for tab, shown in (("race", ".pane"), ("trees", ".node"), ("chat", "#chat-prompt"), ("learn", ".tour")):
        visitor.browser.get(f"{address}?tab={tab}&example=story")
        visitor.wait_for(shown)
        assert visitor.browser.execute_script("return document.documentElement.scrollWidth") <= 360, tab


def test_the_exported_page_needs_no_server_and_runs_nothing(visit: Visit, tmp_path: Path) -> None:
    save_trace(scripted_trace("code", prompt=NASTY), tmp_path / "traces")
    save_trace(scripted_trace("story"), tmp_path / "traces")
    page = tmp_path / "viewer.html"
    page.write_text(viewer_page(tmp_path / "traces"), encoding="utf-8")
    visitor = visit(page.as_uri())
    visitor.wait_for(".board .badge[data-state=identical]")
    for place in ("#example-prompt", ".pane.left .token-text", ".pane.right .token-text"):
        shown = visitor.text(place)
        assert [part for part in NASTY_VISIBLE if part not in shown] == [], place
    visitor.click(".pane.right .token-text [data-step='3']")
    visitor.wait_for(".step-position", "Step 3 of")
    visitor.click("#examples button:nth-child(2)")
    visitor.wait_for(".trees h3", "Count to ten")
    assert visitor.browser.execute_script("return window.ran ?? null") is None
    assert visitor.count("main img") == 0
