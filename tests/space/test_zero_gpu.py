"""Runs on a stand-in for ZeroGPU: a forked worker that passes pickled values back, as the real one does."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable, Generator
from typing import Any

import gradio as gr
import pytest

from eagle3_demo.decoding.events import RunStatistics
from eagle3_demo.settings import generation_settings
from eagle3_demo.space.zero_gpu import LONGEST, ZeroGpuEngine, import_spaces, seconds_needed
from eagle3_demo.ui.events import Visitors
from eagle3_demo.ui.race import DEFAULT_RACERS, RaceTab
from eagle3_demo.ui.session import Session
from tests.ui.scripted import ScriptedEngine
from tests.ui.test_tabs import CONTROLS

asked: list[int] = []


def fake_gpu(*, duration: Callable[..., int]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Like `spaces.GPU` for generators: arguments and every value cross a process boundary."""
    fork = multiprocessing.get_context("fork")

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Generator[Any, None, None]:
            asked.append(duration(*arguments))
            ours, theirs = fork.Pipe()

            def work() -> None:
                for value in function(*pickle.loads(theirs.recv_bytes())):
                    theirs.send_bytes(pickle.dumps(value))
                    if theirs.recv_bytes() == b"stop":
                        return
                theirs.send_bytes(b"")

            worker = fork.Process(target=work, daemon=True)
            worker.start()
            ours.send_bytes(pickle.dumps(arguments))
            try:
                while content := ours.recv_bytes():
                    yield pickle.loads(content)
                    ours.send_bytes(b"next")
            finally:
                if worker.is_alive():
                    ours.send_bytes(b"stop")
                worker.join(10)

        return call

    return decorate


@pytest.fixture
def engine() -> ZeroGpuEngine:
    asked.clear()
    return ZeroGpuEngine(ScriptedEngine(), fake_gpu)


def test_a_run_gives_the_events_of_the_engine_behind_it(engine: ZeroGpuEngine) -> None:
    prompt_ids = engine.encode([{"role": "user", "content": "Hi"}])
    events = list(engine.run(prompt_ids, generation_settings()))
    assert events == list(ScriptedEngine().run(prompt_ids, generation_settings()))


def test_stop_ends_a_run_though_no_flag_crosses(engine: ZeroGpuEngine) -> None:
    prompt_ids = engine.encode([{"role": "user", "content": "word " * 100}])
    seen = 0

    def cancelled() -> bool:
        return seen >= 3

    statistics = RunStatistics()
    for event in engine.run(prompt_ids, generation_settings(), cancelled):
        seen += 1
        statistics.add(event)
    assert statistics.stop_reason == "cancelled"
    assert seen <= 5


def test_a_race_borrows_one_gpu_once(engine: ZeroGpuEngine) -> None:
    board, _ = list(
        RaceTab(engine, Visitors()).race("Hi", *DEFAULT_RACERS, Session(), gr.Request(session_hash="x"), *CONTROLS)
    )[-1]
    assert board["verdict"]["state"] == "identical"
    assert len(asked) == 1


def test_what_is_asked_for_grows_with_the_answer_and_has_an_end() -> None:
    one = seconds_needed([1] * 10, {"only": generation_settings(max_new_tokens=64)})
    two = seconds_needed([1] * 10, {side: generation_settings(max_new_tokens=64) for side in ("left", "right")})
    most = seconds_needed([1] * 10, {"only": generation_settings(max_new_tokens=8000)})
    assert one < two <= most == LONGEST


def test_elsewhere_the_package_is_not_needed() -> None:
    assert import_spaces() is None or hasattr(import_spaces(), "GPU")
