from __future__ import annotations

import pytest

from eagle3_demo.ui.markdown import literal_markdown


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("<apple> & <b>", "&lt;apple> &amp; &lt;b>"),
        ("<img src=x onerror=alert(1)>", "&lt;img src=x onerror=alert(1)>"),
        ("&lt;b&gt;", "&amp;lt;b&amp;gt;"),
        ("![a](https://example.org/x.png)", "!\\[a](https://example.org/x.png)"),
        ("costs $5 and $6", "costs $5 and $6"),
        ("> quoted **bold**\n- item", "> quoted **bold**\n- item"),
        (r"a \< b", "a &lt; b"),
        (r"a \\< b", r"a \\&lt; b"),
    ],
)
def test_prose_shows_the_characters_that_were_typed(typed: str, shown: str) -> None:
    assert literal_markdown(typed) == shown


@pytest.mark.parametrize(
    "code",
    [
        "`a<b & c`",
        "``a ` <b>``",
        "```html\n<img src=x>\n```",
        "```\n<unclosed fence & more",
        "~~~\n<b>\n~~~",
        "- list\n  ```c\n  #include <stdio.h>\n  ```",
    ],
)
def test_code_is_left_alone(code: str) -> None:
    assert literal_markdown(code) == code


def test_text_after_a_closed_fence_is_prose_again() -> None:
    assert literal_markdown("```\n<a>\n```\n<b>") == "```\n<a>\n```\n&lt;b>"


def test_a_longer_fence_is_not_closed_by_a_shorter_one() -> None:
    text = "````\n```\n<a>\n````"
    assert literal_markdown(text) == text


def test_a_lone_backtick_makes_no_code_across_an_empty_line() -> None:
    assert literal_markdown("a ` b\n\n<c> ` d") == "a ` b\n\n&lt;c> ` d"


def test_indented_text_never_opens_a_tag() -> None:
    shown = literal_markdown("Intro:\n\n    if a <b> c")
    assert "<b" not in shown
    assert shown.replace("\u200b", "") == "Intro:\n\n    if a <b> c"


def test_a_megabyte_is_shown_as_it_is() -> None:
    """Faults B43."""
    assert literal_markdown("a" * 1_000_000) == "a" * 1_000_000
    assert literal_markdown("a < b\n" * 50_000) == "a &lt; b\n" * 50_000


def test_diagrams_are_not_drawn() -> None:
    assert literal_markdown("```mermaid\ngraph TD\n```") == "```text\ngraph TD\n```"
