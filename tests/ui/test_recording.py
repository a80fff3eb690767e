from __future__ import annotations

import json

from eagle3_demo.settings import generation_settings
from eagle3_demo.ui.recording import WINDOW, Recording
from eagle3_demo.ui.steps import step_view, visible
from tests.ui.scripted import ScriptedEngine, scripted_step

WORDS = ["One", " two", " three", "\n\nfour", " five"]


def recorded(question: str = "Hi", method: str = "eagle3") -> Recording:
    engine, settings = ScriptedEngine(), generation_settings(method=method)
    recording = Recording(question, settings, engine.speculation(settings))
    for event in engine.run(engine.encode([{"role": "user", "content": question}]), settings):
        recording.add(event)
    return recording


def test_a_step_shows_every_node_and_the_targets_own_token_last() -> None:
    view = step_view(scripted_step(3, WORDS, 1, 4, drafts=True, reason=None))
    assert view["texts"][0] == "One"
    assert view["texts"][-1] == "⏎⏎four"
    assert view["statuses"][0] == "root"
    assert view["statuses"][-1] == "target"
    accepted = [node for node, status in enumerate(view["statuses"]) if status == "accepted"]
    assert [view["texts"][node] for node in accepted] == ["␣two", "␣three"]
    assert view["parents"][-1] == accepted[-1]
    assert len({*zip(view["columns"], view["rows"], strict=True)}) == len(view["texts"])


def test_probabilities_belong_to_drafted_nodes_only() -> None:
    view = step_view(scripted_step(3, WORDS, 1, 3, drafts=True, reason=None))
    assert view["probabilities"][0] is None
    assert view["probabilities"][-1] is None
    assert all(0 < value <= 1 for value in view["probabilities"][1:-1])


def test_a_rejected_first_guess_puts_the_targets_token_under_the_root() -> None:
    view = step_view(scripted_step(2, WORDS, 1, 2, drafts=True, reason=None))
    assert view["parents"][-1] == 0
    assert view["summary"].startswith("0 of ")


def test_prefill_and_plain_steps_say_that_nothing_was_drafted() -> None:
    assert "read the prompt" in step_view(scripted_step(0, WORDS, 0, 1, drafts=False, reason=None))["summary"]
    assert "Nothing was drafted" in step_view(scripted_step(4, WORDS, 1, 2, drafts=False, reason=None))["summary"]


def test_white_space_is_visible() -> None:
    assert visible(" a\tb\r\n") == "␣a⇥b␍⏎"
    assert visible("") == "(no text)"


def test_tokens_join_to_the_answer_and_carry_their_step() -> None:
    recording = recorded("a <b> $5")
    assert "".join(str(text) for text, _, _ in recording.tokens) == recording.statistics.text
    assert "a <b> $5" in recording.statistics.text
    assert [step for _, _, step in recording.tokens] == sorted(step for _, _, step in recording.tokens)
    marked = [text for text, drafted, _ in recording.tokens if drafted]
    assert len(marked) == recording.statistics.accepted_tokens > 0


def test_a_long_run_is_sent_in_windows_that_cover_it() -> None:
    recording = recorded("many words " * 100)
    count = len(recording.steps)
    assert count > 2 * WINDOW
    for wanted in (0, 1, WINDOW, count // 2, count - 1):
        view = recording.tree_view(wanted)
        assert str(wanted) in view["steps"]
        assert len(view["steps"]) == WINDOW
    assert str(count - 1) in recording.tree_view()["steps"]


def test_a_window_outside_the_run_is_moved_inside() -> None:
    recording = recorded()
    assert recording.tree_view(10**9)["steps"] == recording.tree_view(-5)["steps"] == recording.tree_view()["steps"]


def test_views_are_fresh_json_data() -> None:
    recording = recorded()
    answer, tree = recording.answer_view(), recording.tree_view()
    json.dumps([answer, tree], allow_nan=False)
    answer["tokens"].clear()
    tree["steps"].clear()
    assert recording.answer_view()["tokens"]
    assert recording.tree_view()["steps"]


def test_the_summary_says_whether_speculation_was_on_and_why() -> None:
    assert "speculation on: the draft head guesses" in recorded().summary()
    plain = recorded(method="autoregressive")
    assert "speculation off: plain decoding was chosen" in plain.summary()
    assert "acceptance length 1.00" in plain.summary()


def test_steps_that_went_on_plainly_are_told() -> None:
    recording = recorded()
    assert "plainly" not in recording.summary()
    recording.statistics.plain_steps = 2
    assert f"; 2 of {recording.statistics.target_forwards} steps plainly" in recording.summary()


def test_nothing_measured_is_a_dash_not_a_zero() -> None:
    recording = Recording("Hi", generation_settings(), ScriptedEngine().speculation(generation_settings()))
    assert recording.numbers()["tokens_per_second"] == "–"
    assert recording.numbers()["acceptance_length"] == "–"
