"""What the tabs do with an engine, without a browser."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest

from eagle3_demo.settings import generation_settings
from eagle3_demo.ui.app import QUEUE_LENGTH, LinkOpener, build
from eagle3_demo.ui.chat import ChatTab, show_conversation
from eagle3_demo.ui.controls import NAMES, read_controls
from eagle3_demo.ui.events import Visitors
from eagle3_demo.ui.race import DEFAULT_RACERS, RaceTab
from eagle3_demo.ui.session import Exchange, Session
from eagle3_demo.ui.trees import TreesTab
from tests.ui.examples import scripted_examples
from tests.ui.scripted import ScriptedEngine

CONTROLS: tuple[Any, ...] = ("eagle3", 0.0, 1.0, 0, 192, 0, 4, 3, "auto")
REQUEST = gr.Request(session_hash="visitor")


def controls_with(**changes: Any) -> list[Any]:
    return [changes.get(name, value) for name, value in zip(NAMES, CONTROLS, strict=True)]


def ask(tab: ChatTab, session: Session, question: str, *controls: Any) -> None:
    tab.accept(question, session, *(controls or CONTROLS))
    list(tab.answer(session, REQUEST))


def texts(session: Session) -> list[str]:
    messages = show_conversation(session)
    return [m["content"] if isinstance(m["content"], str) else "\n".join(m["content"]) for m in messages]


def test_controls_mean_the_default_settings() -> None:
    assert read_controls(CONTROLS) == generation_settings(max_new_tokens=192)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_new_tokens", 10**9),
        ("max_new_tokens", -1),
        ("max_new_tokens", "abc"),
        ("temperature", -3),
        ("temperature", float("nan")),
        ("top_p", 0),
        ("depth", 10**6),
        ("tree_top_k", 0),
        ("nodes", 1),
        ("seed", None),
        ("seed", 2.5),
        ("method", "magic"),
    ],
)
def test_a_bad_value_is_refused_by_name_and_leaves_the_page_usable(name: str, value: Any) -> None:
    tab, session = ChatTab(ScriptedEngine(), Visitors()), Session()
    with pytest.raises(gr.Error, match=name):
        tab.accept("Hello", session, *controls_with(**{name: value}))
    assert session.waiting is None
    ask(tab, session, "Hello")
    assert "You wrote: Hello" in session.exchanges[-1].answer


def test_a_second_question_sees_the_first_exchange() -> None:
    tab, session = ChatTab(ScriptedEngine(), Visitors()), Session()
    ask(tab, session, "one")
    ask(tab, session, "two")
    assert session.exchanges[0].answer.startswith("Answer 1. You wrote: one")
    assert session.exchanges[1].answer.startswith("Answer 2. You wrote: two")


def test_questions_that_no_longer_fit_are_left_out_and_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults B25: 30 long turns in a small context; the newest question is answered each time."""
    told: list[str] = []
    monkeypatch.setattr(gr, "Info", told.append)
    tab, session = ChatTab(ScriptedEngine(max_context=2000), Visitors()), Session()
    for turn in range(30):
        ask(tab, session, f"turn {turn} " + "x" * 100)
        assert f"You wrote: turn {turn} " in session.exchanges[-1].answer
    assert told and "left out" in told[-1]
    with pytest.raises(gr.Error, match="context holds 2000"):
        tab.accept("x" * 20_000, session, *CONTROLS)


def test_what_the_model_reads_is_unescaped_and_what_the_page_shows_is_escaped() -> None:
    tab, session = ChatTab(ScriptedEngine(), Visitors()), Session()
    ask(tab, session, "<img src=x onerror=alert(1)> & $5 and $6")
    assert "<img src=x onerror=alert(1)> & $5 and $6" in session.exchanges[0].answer
    assert all("&lt;img src=x" in text and "<img" not in text for text in texts(session))


def test_the_line_under_an_answer_cannot_be_forged_by_the_answer() -> None:
    session = Session(exchanges=[Exchange("q", "```\nunclosed <b>", "1 token · <b>")])
    answer = show_conversation(session)[1]["content"]
    assert answer == ["```\nunclosed <b>", '<small class="answer-note">1 token · &lt;b&gt;</small>']


def test_a_question_during_an_answer_is_refused() -> None:
    tab, session = ChatTab(ScriptedEngine(), Visitors()), Session()
    tab.accept("one", session, *CONTROLS)
    running = tab.answer(session, REQUEST)
    next(running)
    with pytest.raises(gr.Error, match="still being answered"):
        tab.accept("two", session, *CONTROLS)
    list(running)
    ask(tab, session, "two")


def test_stop_ends_within_one_step_and_keeps_the_partial_answer() -> None:
    engine, visitors = ScriptedEngine(), Visitors()
    tab, session = ChatTab(engine, visitors), Session()
    tab.accept("one " * 100, session, *CONTROLS)
    running = tab.answer(session, REQUEST)
    next(running)
    session.stop_chat()
    taken = engine.steps_taken
    list(running)
    assert engine.steps_taken <= taken + 1
    assert (engine.open_runs, visitors.running, session.running) == (0, {}, None)
    assert session.exchanges[0].answer
    assert "stopped by you" in session.exchanges[0].note


def test_stop_before_the_first_step_ends_a_waiting_question() -> None:
    engine = ScriptedEngine()
    tab, session = ChatTab(engine, Visitors()), Session()
    tab.accept("one " * 100, session, *CONTROLS)
    session.stop_chat()
    list(tab.answer(session, REQUEST))
    assert engine.steps_taken <= 1
    ask(tab, session, "two")
    assert "You wrote: two" in session.exchanges[-1].answer


def test_a_closed_stream_frees_the_engine() -> None:
    engine, visitors = ScriptedEngine(), Visitors()
    tab, session = ChatTab(engine, visitors), Session()
    tab.accept("one " * 100, session, *CONTROLS)
    running = tab.answer(session, REQUEST)
    next(running)
    running.close()
    assert (engine.open_runs, visitors.running, session.running) == (0, {}, None)
    ask(tab, session, "two")


def test_leaving_the_page_stops_the_visitors_own_run_only() -> None:
    engine, visitors = ScriptedEngine(), Visitors()
    tab, one, other = ChatTab(engine, visitors), Session(), Session()
    tab.accept("one " * 100, one, *CONTROLS)
    tab.accept("two " * 100, other, *CONTROLS)
    runs = [tab.answer(one, gr.Request(session_hash="a")), tab.answer(other, gr.Request(session_hash="b"))]
    for run in runs:
        next(run)
    visitors.leave(gr.Request(session_hash="a"))
    for run in runs:
        list(run)
    assert "stopped by you" in one.exchanges[0].note
    assert "stopped by you" not in other.exchanges[0].note


def test_an_engine_failure_reaches_the_page_and_the_next_question_works() -> None:
    engine = ScriptedEngine(fail_at_step=2)
    tab, session = ChatTab(engine, Visitors()), Session()
    with pytest.raises(RuntimeError, match="told to fail"):
        ask(tab, session, "one")
    assert (engine.open_runs, session.running) == (0, None)
    engine.fail_at_step = None
    ask(tab, session, "two")
    assert "You wrote: two" in session.exchanges[-1].answer


def test_clear_during_an_answer_leaves_an_empty_page() -> None:
    tab, session = ChatTab(ScriptedEngine(), Visitors()), Session()
    tab.accept("one " * 100, session, *CONTROLS)
    running = tab.answer(session, REQUEST)
    next(running)
    tab.clear(session)
    rest = list(running)
    assert all(view[0] == [] for view in rest)
    assert show_conversation(session) == []


def test_a_comparison_runs_both_methods_whatever_the_chat_setting() -> None:
    engine = ScriptedEngine()
    tab, session = RaceTab(engine, Visitors()), Session()
    board, tree = list(tab.race("Hi", *DEFAULT_RACERS, session, REQUEST, *controls_with(method="autoregressive")))[-1]
    assert board["verdict"]["state"] == "identical"
    assert board["speedup"] > 1
    assert not board["sides"]["left"]["drafts"]
    assert tree["about"].startswith("EAGLE-3")
    assert engine.open_runs == 0


def test_a_stopped_comparison_stops_both_sides() -> None:
    engine = ScriptedEngine()
    tab, session = RaceTab(engine, Visitors()), Session()
    running = tab.race("one " * 100, *DEFAULT_RACERS, session, REQUEST, *CONTROLS)
    next(running)
    session.stop_comparison()
    board, _ = list(running)[-1]
    assert board["verdict"]["state"] == "stopped"
    assert engine.open_runs == 0


def test_a_comparison_stopped_while_it_waits_ends_before_it_starts() -> None:
    engine = ScriptedEngine()
    tab, session = RaceTab(engine, Visitors()), Session()
    tab.prepare(session)
    session.stop_comparison()
    list(tab.race("one " * 100, *DEFAULT_RACERS, session, REQUEST, *CONTROLS))
    assert engine.steps_taken <= 2
    tab.prepare(session)
    board, _ = list(tab.race("two", *DEFAULT_RACERS, session, REQUEST, *CONTROLS))[-1]
    assert board["verdict"]["state"] == "identical"


def test_an_empty_comparison_is_refused() -> None:
    with pytest.raises(gr.Error, match="empty"):
        next(RaceTab(ScriptedEngine(), Visitors()).race("  ", *DEFAULT_RACERS, Session(), REQUEST, *CONTROLS))


@pytest.mark.parametrize("asked", [{"index": 0}, {"index": 10**9}, {"index": "x"}, {}, None])
def test_any_request_for_steps_gets_steps(asked: Any) -> None:
    tab, session = ChatTab(ScriptedEngine(), Visitors()), Session()
    assert TreesTab().fetch_steps(session, gr.EventData(None, asked)) == {}
    ask(tab, session, "one")
    assert TreesTab().fetch_steps(session, gr.EventData(None, asked))["steps"]


def test_everything_that_decodes_shares_one_place_and_the_queue_has_an_end() -> None:
    blocks = build(ScriptedEngine(), {}).blocks
    decoding = [function for function in blocks.fns.values() if function.concurrency_id == "model"]
    assert len(decoding) >= 6
    assert all(function.concurrency_limit == 1 for function in decoding)
    assert blocks._queue.max_size == QUEUE_LENGTH


def test_names_of_a_model_are_escaped_in_the_header() -> None:
    engine = ScriptedEngine()
    engine.target_name = "<script>alert(1)</script>"
    headers = [b.value for b in build(engine, {}).blocks.blocks.values() if getattr(b, "elem_id", "") == "header"]
    assert "<script>" not in headers[0]
    assert "&lt;script&gt;" in headers[0]


def test_any_two_ways_to_decode_can_race() -> None:
    tab = RaceTab(ScriptedEngine(), Visitors())
    board, _ = list(tab.race("Hi", "one-guess", "bush", Session(), REQUEST, *CONTROLS))[-1]
    assert board["sides"]["left"]["label"] == "EAGLE-3 · 2 nodes, depth 1"
    assert board["sides"]["right"]["label"] == "EAGLE-3 · 48 nodes, depth 6"
    assert board["why"] is None
    with pytest.raises(gr.Error, match="magic"):
        next(tab.race("Hi", "magic", "bush", Session(), REQUEST, *CONTROLS))


def test_sampling_says_what_is_guaranteed() -> None:
    tab, session = RaceTab(ScriptedEngine(), Visitors()), Session()
    board, _ = list(tab.race("Hi", *DEFAULT_RACERS, session, REQUEST, *controls_with(temperature=0.7)))[-1]
    assert "same tokens" in board["verdict"]["detail"]
    assert "Temperature 0.7" in board["verdict"]["detail"]


def test_a_prompt_of_the_gallery_plays_its_recorded_race() -> None:
    examples = scripted_examples()
    tab, session = RaceTab(ScriptedEngine(), Visitors(), examples), Session()
    board, tree = tab.show_example("Tell a story", session)
    assert (board["example"], board["autoplay"], board["finished"]) == ("story", True, True)
    assert tree["origin"].startswith("Recorded")
    tree, _ = tab.open_step(session, gr.EventData(None, {"side": "left", "index": 3}))
    assert tree["focus"] == 3 and "3" in tree["steps"]
    assert tree["run"] == examples["story"].comparison.left.number


def test_a_visitors_own_prompt_leaves_the_board_alone() -> None:
    tab, session = RaceTab(ScriptedEngine(), Visitors(), scripted_examples()), Session()
    tab.show_example("My own", session)
    assert session.race is None


@pytest.mark.parametrize(
    ("query", "example", "step"),
    [
        ({"example": "story", "step": "2", "tab": "trees"}, "story", 2),
        ({"example": "story", "step": "9999999"}, "story", None),
        ({"example": "story", "step": "-1"}, "story", None),
        ({"example": "<script>"}, None, None),
        ({}, None, None),
    ],
)
def test_a_link_opens_the_same_example_and_step(query: dict[str, str], example: str | None, step: int | None) -> None:
    session = Session()
    opener = LinkOpener(scripted_examples())
    _, tree, _, _ = opener.open(session, SimpleNamespace(query_params=query))
    assert (session.recording.example if session.recording else None) == example
    if step is not None:
        assert tree["focus"] == step


def test_retry_asks_the_last_question_again_and_edit_takes_it_back() -> None:
    tab, session = ChatTab(ScriptedEngine(), Visitors()), Session()
    with pytest.raises(gr.Error, match="no question yet"):
        tab.retry(session, *CONTROLS)
    ask(tab, session, "one")
    ask(tab, session, "two")
    tab.retry(session, *CONTROLS)
    list(tab.answer(session, REQUEST))
    assert [exchange.question for exchange in session.exchanges] == ["one", "two"]
    assert session.exchanges[1].answer.startswith("Answer 2. You wrote: two")
    shown, panel, question = tab.edit(session)
    assert question == "two" and len(shown) == 2
    assert panel["run"] == session.exchanges[0].recording.number


def test_an_earlier_answer_opens_its_own_trees() -> None:
    tab, session = ChatTab(ScriptedEngine(), Visitors()), Session()
    ask(tab, session, "one")
    ask(tab, session, "two")
    first = session.exchanges[0].recording
    assert tab.show_answer(session, gr.EventData(None, {"run": first.number}))["run"] == first.number
    tree, _ = tab.open_step(session, gr.EventData(None, {"run": first.number, "index": 1}))
    assert (tree["run"], tree["focus"], tree["prompt"]) == (first.number, 1, "one")


def test_while_a_run_streams_only_its_newest_trees_are_sent() -> None:
    tab, session = RaceTab(ScriptedEngine(), Visitors()), Session()
    running = tab.race("many words " * 60, *DEFAULT_RACERS, session, REQUEST, *CONTROLS)
    _, tree = next(running)
    assert len(tree["steps"]) <= 2
    *_, (_, last) = running
    assert len(last["steps"]) > 2


def test_a_page_without_recorded_races_still_works() -> None:
    assert build(ScriptedEngine(), {}).blocks
    assert build(ScriptedEngine(), scripted_examples()).blocks
