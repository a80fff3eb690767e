from __future__ import annotations

import copy

import pytest

from eagle3_demo.errors import UserError
from eagle3_demo.ui.session import Exchange, Session, encode_conversation
from tests.ui.scripted import ScriptedEngine

OLD = [Exchange("first question", "first answer"), Exchange("second question", "second answer")]


@pytest.mark.parametrize("prompt", ["", "   ", "\n\t", "\u200b", "\u200b \u2060"])
def test_a_prompt_without_a_visible_character_is_refused(prompt: str) -> None:
    with pytest.raises(UserError, match="empty"):
        encode_conversation(ScriptedEngine(), (), prompt, room=10)


def test_the_whole_conversation_is_sent_while_it_fits() -> None:
    prompt_ids, dropped = encode_conversation(ScriptedEngine(), OLD, "third", room=10)
    assert (prompt_ids[0], dropped) == (5, 0)


def test_oldest_exchanges_go_first_when_the_answer_would_not_fit() -> None:
    prompt_ids, dropped = encode_conversation(ScriptedEngine(max_context=50), OLD, "third", room=46)
    assert dropped == 2
    assert prompt_ids[0] == 1
    prompt_ids, dropped = encode_conversation(ScriptedEngine(max_context=50), OLD, "third", room=10)
    assert (prompt_ids[0], dropped) == (3, 1)


def test_a_question_too_long_by_itself_is_refused() -> None:
    with pytest.raises(UserError, match="context holds 50"):
        encode_conversation(ScriptedEngine(max_context=50), OLD, "x" * 51, room=10)


def test_sessions_start_as_separate_copies() -> None:
    template = Session()
    one, other = copy.deepcopy(template), copy.deepcopy(template)
    one.exchanges.append(Exchange("mine"))
    assert other.exchanges == []
