from __future__ import annotations

import threading

import pytest

from eagle3_demo.background_engine import BackgroundEngine
from eagle3_demo.engine import DecodingEngine
from eagle3_demo.errors import UserError
from eagle3_demo.progress import ProgressCallback
from eagle3_demo.settings import generation_settings
from tests.ui.scripted import ScriptedEngine

MESSAGES = [{"role": "user", "content": "Hi"}]


def test_calls_wait_until_the_engine_is_loaded() -> None:
    gate = threading.Event()

    def load(progress: ProgressCallback) -> DecodingEngine:
        progress(0.5, "Half way")
        assert gate.wait(30)
        return ScriptedEngine()

    engine = BackgroundEngine(load, "expected target", "expected head")
    assert (engine.target_name, engine.head_name, engine.device) == ("expected target", "expected head", "")
    engine.start()
    answers: list[list[int]] = []
    asking = threading.Thread(target=lambda: answers.append(engine.encode(MESSAGES)))
    asking.start()
    asking.join(0.2)
    assert not answers and not engine.state.ready
    gate.set()
    asking.join(30)
    assert answers == [ScriptedEngine().encode(MESSAGES)]
    assert engine.state.ready
    assert (engine.target_name, engine.device) == ("Scripted target", "none")
    assert list(engine.run(answers[0], generation_settings()))


def test_a_failure_is_told_and_every_call_says_why() -> None:
    def load(progress: ProgressCallback) -> DecodingEngine:
        raise UserError("the file is gone; fetch it")

    told: list[str] = []
    engine = BackgroundEngine(load, "t", None, failed=told.append)
    engine.start()
    with pytest.raises(UserError, match="could not be loaded: the file is gone"):
        engine.encode(MESSAGES)
    assert engine.state.error == "the file is gone; fetch it"
    assert told == ["the file is gone; fetch it"]
