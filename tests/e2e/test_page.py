"""The page in a real browser, with the scripted engine: mechanics, safety, several visitors."""

from __future__ import annotations

import time

import pytest
from selenium.webdriver.common.keys import Keys

from tests.e2e.conftest import Serve, Visit
from tests.e2e.visitor import PATIENCE
from tests.ui.scripted import ScriptedEngine

pytestmark = pytest.mark.e2e

NASTY = (
    "<apple> <img src=x onerror=\"window.ran='img'\"> <style>*{display:none}</style> "
    "<script>window.ran='script'</script> "
    "costs $5 and $6 $$x$$ ${window.ran='template'} {{value}} C:\\new\\x41 `code <b>` ![pixel](x.png)"
)
NASTY_VISIBLE = (
    "<apple>",
    "<img src=x onerror=\"window.ran='img'\">",
    "<style>*{display:none}</style>",
    "<script>window.ran='script'</script>",
    "costs $5 and $6 $$x$$",
    "${window.ran='template'} {{value}} C:\\new\\x41",
)


def wait_until_free(engine: ScriptedEngine) -> None:
    deadline = time.monotonic() + PATIENCE
    while engine.open_runs:
        assert time.monotonic() < deadline, "the engine is still busy"
        time.sleep(0.05)


def test_ask_then_walk_through_the_draft_trees(serve: Serve, visit: Visit) -> None:
    visitor = visit(serve(ScriptedEngine(seconds_per_step=0.005)))
    visitor.ask("word " * 150)
    visitor.wait_for(".answer-note", "speculation on: the draft head guesses trees of auto nodes")
    assert "acceptance length 2." in visitor.text(".answer-note")
    assert visitor.count(".answer .token.drafted") > 50
    visitor.click(".answer .trees-button")
    visitor.wait_for(".step-position", "Step")
    last = visitor.text(".tree-canvas")
    visitor.move_slider(1)
    visitor.wait_for(".step-position", "Step 1 of")
    visitor.wait_for(".tree-canvas .node.accepted", "✓")
    assert visitor.text(".tree-canvas") != last
    assert visitor.text(".answer-so-far").startswith("Answer 1. You")
    assert visitor.count(".answer-so-far .current") == 3
    visitor.press("body", "]")
    visitor.click(".trees .step-button[aria-label='Next step']")
    visitor.wait_for(".step-position", "Step 2 of")
    visitor.move_slider(0)
    visitor.wait_for(".step-summary", "read the prompt")
    bars = visitor.browser.execute_script("return document.querySelector('.step-strip path').getAttribute('d')")
    assert f"Step 0 of {bars.count('z')}" == visitor.text(".step-position"), "a bar for each step after the prompt's"
    assert visitor.count(".step-strip .prompt") == 1


def test_the_tree_can_be_walked_with_the_keyboard(serve: Serve, visit: Visit) -> None:
    visitor = visit(serve(ScriptedEngine()))
    visitor.ask("Hello")
    visitor.wait_for(".answer-note")
    visitor.tab("Draft trees")
    visitor.wait_for(".step-position")
    visitor.move_slider(1)
    visitor.wait_for(".tree-canvas .node.accepted")
    visitor.press(".node[tabindex='0']", Keys.HOME)
    root = visitor.text(".node-detail")
    visitor.press(".node.root", Keys.ARROW_RIGHT)
    assert visitor.text(".node-detail") != root
    assert "depth 1, draft probability 61%: accepted" in visitor.text(".node-detail")
    visitor.press(".node[tabindex='0']", Keys.ARROW_DOWN)
    assert "rejected" in visitor.text(".node-detail")
    visitor.press(".node[tabindex='0']", Keys.ARROW_LEFT)
    assert visitor.text(".node-detail") == root
    visitor.press(".node[tabindex='0']", "]")
    visitor.wait_for(".step-position", "Step 2 of")
    assert visitor.count(".tree-canvas .node[tabindex='0']") == 1


def test_a_long_prompt_shows_how_far_it_is_read(serve: Serve, visit: Visit) -> None:
    engine = ScriptedEngine(seconds_per_step=2.0)
    visitor = visit(serve(engine))
    visitor.ask("word " * 500)
    visitor.wait_for("#chat-queue", "Reading the prompt: 512 of 2,501 tokens")
    engine.seconds_per_step = 0.0
    visitor.wait_for(".answer-note")


@pytest.mark.parametrize(("differ", "state"), [(False, "identical"), (True, "different")])
def test_compare_says_whether_the_outputs_are_the_same(serve: Serve, visit: Visit, differ: bool, state: str) -> None:
    visitor = visit(serve(ScriptedEngine(differ=differ)))
    visitor.ask("Hello", "#race-prompt")
    visitor.wait_for(f".badge[data-state={state}]")
    assert "×" in visitor.text(".result .figure-value")
    assert "You wrote:" in visitor.text(".pane.left .token-text")
    assert visitor.count(".pane.left .drafted") == 0
    assert visitor.count(".pane.right .drafted") > 0
    assert "take turns" in visitor.text(".board .fine-print")
    visitor.wait_for("#race-prompt .submit-button", "Race live")


def test_stop_ends_the_answer_and_the_next_question_works(serve: Serve, visit: Visit) -> None:
    engine = ScriptedEngine(seconds_per_step=0.3)
    visitor = visit(serve(engine))
    visitor.ask("word " * 300)
    visitor.wait_for(".answer .token-text .token")
    visitor.click("#chat-prompt .stop-button")
    visitor.wait_for(".answer-note", "stopped by you")
    wait_until_free(engine)
    assert engine.steps_taken < 60
    visitor.wait_for("#chat-prompt .submit-button")
    engine.seconds_per_step = 0.0
    visitor.ask("after the stop")
    visitor.wait_for("#conversation", "You wrote: after the stop")


def test_stop_ends_a_comparison(serve: Serve, visit: Visit) -> None:
    engine = ScriptedEngine(seconds_per_step=0.2)
    visitor = visit(serve(engine))
    visitor.ask("word " * 300, "#race-prompt")
    visitor.wait_for(".pane.right .token-text .token")
    visitor.click("#race-prompt .stop-button")
    visitor.wait_for(".badge[data-state=stopped]")
    wait_until_free(engine)


def test_closing_the_page_frees_the_engine(serve: Serve, visit: Visit) -> None:
    engine = ScriptedEngine(seconds_per_step=0.3)
    visitor = visit(serve(engine))
    visitor.ask("word " * 300)
    visitor.wait_for(".answer .token-text .token")
    visitor.close_tab()
    wait_until_free(engine)
    assert engine.steps_taken < 60


def test_nothing_typed_or_generated_runs_or_vanishes(serve: Serve, visit: Visit) -> None:
    address = serve(ScriptedEngine())
    visitor = visit(address)
    visitor.ask(NASTY)
    visitor.wait_for(".answer-note")
    visitor.ask(NASTY, "#race-prompt")
    visitor.wait_for_live_race()
    visitor.tab("Draft trees")
    visitor.wait_for(".answer-so-far .token")
    for place in ("#conversation", ".answer .token-text", ".pane.right .token-text", ".answer-so-far"):
        shown = visitor.text(place)
        assert [part for part in NASTY_VISIBLE if part not in shown] == [], place
    assert visitor.browser.execute_script("return window.ran ?? null") is None
    assert visitor.count("#conversation img, .drawing img, .katex") == 0
    assert visitor.find(".tree-canvas").is_displayed()


def test_an_empty_prompt_and_a_failing_engine_give_messages(serve: Serve, visit: Visit) -> None:
    engine = ScriptedEngine(fail_at_step=2)
    visitor = visit(serve(engine))
    visitor.ask("   ")
    visitor.wait_for(".toast-body", "The prompt is empty")
    assert visitor.find("#conversation .placeholder").is_displayed()
    assert not any(
        box.is_displayed()
        for box in visitor.browser.find_elements("css selector", "[data-testid=status-tracker] .error")
    )
    visitor.close_message()
    visitor.ask("fail please")
    visitor.wait_for(".toast-body", "told to fail")
    visitor.close_message()
    engine.fail_at_step = None
    visitor.wait_for("#chat-prompt .submit-button")
    visitor.ask("work again")
    visitor.wait_for("#conversation", "You wrote: work again")
    visitor.expect_console_errors("told to fail")


def test_two_visitors_get_their_own_answers(serve: Serve, visit: Visit) -> None:
    engine = ScriptedEngine(seconds_per_step=1.0)
    address = serve(engine)
    first, second = visit(address), visit(address)
    first.ask("I am the first visitor " * 20)
    first.wait_for(".answer .token-text .token")
    second.ask("I am the second visitor " * 20)
    second.wait_for("#chat-queue", "queue: 1/1")
    engine.seconds_per_step = 0.0
    for visitor, own, other in ((first, "first", "second"), (second, "second", "first")):
        visitor.wait_for(".answer-note")
        assert f"the {own} visitor" in visitor.text("#conversation")
        assert f"the {other} visitor" not in visitor.text("body")
        visitor.tab("Draft trees")
        visitor.wait_for(".trees h3", f"the {own} visitor")


def test_a_full_queue_is_told_and_the_page_goes_on(serve: Serve, visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eagle3_demo.ui.app.QUEUE_LENGTH", 1)
    engine = ScriptedEngine(seconds_per_step=1.0)
    address = serve(engine)
    first, second, third = visit(address), visit(address), visit(address)
    first.ask("word " * 300)
    first.wait_for(".answer .token-text .token")
    second.ask("I wait")
    second.wait_for("#chat-queue", "queue: 1/1")
    third.ask("I am too many")
    third.wait_for(".toast-body", "currently busy")
    engine.seconds_per_step = 0.0
    second.wait_for(".answer-note")
    third.wait_for("#chat-prompt .submit-button")
    third.ask("I come again")
    third.wait_for("#conversation", "You wrote: I come again")
    third.expect_console_errors("503")


def test_a_new_conversation_forgets_the_old_one(serve: Serve, visit: Visit) -> None:
    visitor = visit(serve(ScriptedEngine()))
    visitor.ask("one")
    visitor.wait_for(".answer-note")
    visitor.ask("two")
    visitor.wait_for("#conversation", "Answer 2. You wrote: two")
    visitor.click("#new-conversation")
    visitor.wait_for("#conversation", "Ask the model something")
    visitor.ask("three")
    visitor.wait_for("#conversation", "Answer 1. You wrote: three")


def test_a_gallery_prompt_starts_at_once(serve: Serve, visit: Visit) -> None:
    visitor = visit(serve(ScriptedEngine()))
    visitor.tab("Chat")
    visitor.click("#chat-gallery button")
    visitor.wait_for("#conversation", "You wrote: Count from 1 to 30")


@pytest.mark.parametrize("dark", [False, True])
def test_a_narrow_screen_never_scrolls_sideways(serve: Serve, visit: Visit, dark: bool) -> None:
    visitor = visit(serve(ScriptedEngine()), width=360, height=740, dark=dark)
    visitor.ask("A question with averyveryveryveryveryveryveryveryverylongwordthatcannotbreakanywhere")
    visitor.wait_for(".answer-note")
    for tab in ("Chat", "Draft trees", "Race"):
        visitor.tab(tab)
        assert visitor.browser.execute_script("return document.documentElement.scrollWidth") <= 360, tab
