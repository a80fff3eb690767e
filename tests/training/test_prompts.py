"""Prompt lists: what is read, what is refused, what goes on."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from eagle3_demo.errors import UserError
from eagle3_demo.training.prompts import FOLLOW_UPS, prompts_digest, read_prompts, with_follow_ups


def test_prompt_files(tmp_path: Path) -> None:
    lines = '{"prompt": "a\u2028b"}\n\n{"turns": ["second", "third"]}\n{"prompt": "a\u2028b"}\n{"prompt": "second"}\n'
    (tmp_path / "p.jsonl").write_text(lines, encoding="utf-8")
    (tmp_path / "p.txt").write_text("plain\n", encoding="utf-8")
    expected = [("a\u2028b",), ("second", "third"), ("plain",)]
    assert read_prompts([tmp_path / "p.jsonl", tmp_path / "p.txt"]) == expected


@pytest.mark.parametrize(
    "text",
    [
        "{broken",
        '{"question": "x"}',
        '{"turns": []}',
        '{"turns": "x"}',
        '{"turns": ["a", 1]}',
        '{"turns": ["a", " "]}',
        '{"prompt": 3}',
        '{"prompt": " "}',
        "",
        "[1]",
    ],
)
def test_malformed_prompt_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(text)
    with pytest.raises(UserError, match=r"p\.jsonl"):
        read_prompts([path])


def test_prompt_files_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    for path, reason in ((tmp_path / "binary.jsonl", "not UTF-8"), (tmp_path, "cannot be read")):
        with pytest.raises(UserError, match=reason):
            read_prompts([path])


def test_a_share_of_the_single_turns_goes_on() -> None:
    prompts = [(f"p{n}",) for n in range(2000)] + [("two", "turns")]
    longer = with_follow_ups(prompts, 0.25, seed=3)
    assert [turns[0] for turns in longer] == [turns[0] for turns in prompts]
    assert longer[-1] == ("two", "turns")
    added = [turns[1] for turns in longer[:-1] if len(turns) == 2]
    assert len(added) == pytest.approx(500, abs=80) and set(added) == set(FOLLOW_UPS)
    assert with_follow_ups(prompts, 0.25, seed=3) == longer != with_follow_ups(prompts, 0.25, seed=4)
    assert with_follow_ups(prompts, 0.0, seed=3) == prompts


def test_the_digest_of_single_turns_is_the_one_of_older_corpora() -> None:
    assert prompts_digest([("a",), ("b",)]) == hashlib.sha256(b"a\0b").hexdigest()
    assert prompts_digest([("a", "b")]) != prompts_digest([("a",), ("b",)])
