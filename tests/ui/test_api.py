"""The named endpoints, called as a script calls them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError

from eagle3_demo.ui.app import build
from tests.ui.examples import scripted_examples
from tests.ui.scripted import ScriptedEngine


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    page = build(ScriptedEngine(), scripted_examples())
    yield Client(page.launch(), verbose=False)
    page.blocks.close(verbose=False)


def test_only_the_four_endpoints_are_named_and_each_is_described(client: Client) -> None:
    described: Any = client.view_api(return_format="dict")
    assert set(described["named_endpoints"]) == {"/generate", "/chat", "/compare", "/trace"}
    assert all(endpoint["description"] for endpoint in described["named_endpoints"].values())


def test_generate_answers(client: Client) -> None:
    result = client.predict("Hello", max_new_tokens=8, api_name="/generate")
    assert result["text"].startswith("Answer 1. You wrote: Hello")
    assert result["new_tokens"] == 8
    assert result["speculation"]["active"] is True


def test_chat_remembers(client: Client) -> None:
    first = client.predict("one", api_name="/chat")
    second = client.predict("two", first["history"], api_name="/chat")
    assert second["text"].startswith("Answer 2. You wrote: two")
    assert [message["role"] for message in second["history"]] == ["user", "assistant"] * 2


def test_compare_says_whether_both_are_the_same(client: Client) -> None:
    result = client.predict("Hello", api_name="/compare")
    assert result["identical"] is True
    assert result["speedup"] > 1
    assert result["eagle3"]["acceptance_length"] > result["autoregressive"]["acceptance_length"]


def test_trace_gives_every_step_live_and_recorded(client: Client) -> None:
    for prompt in ("Hello", "code"):
        result = client.predict(prompt, api_name="/trace")
        assert [step["index"] for step in result["steps"]] == list(range(len(result["steps"])))
        assert any(step["tree"]["path"] for step in result["steps"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"prompt": "  "}, "empty"),
        ({"prompt": "x", "method": "magic"}, "method"),
        ({"prompt": "x", "max_new_tokens": 5000}, "1024"),
        ({"prompt": "x", "temperature": -1}, "temperature"),
    ],
)
def test_mistakes_are_named(client: Client, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(AppError, match=said):
        client.predict(**arguments, api_name="/generate")
