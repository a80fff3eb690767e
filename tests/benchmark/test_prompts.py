"""Prompt files: what is read, what is refused, and how a limit treats the suites."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eagle3_demo.benchmark.prompts import read_prompt_file
from eagle3_demo.errors import UserError


def write(path: Path, *records: object) -> Path:
    """A JSONL file."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def test_turns_and_prompt_are_read_alike(tmp_path: Path) -> None:
    path = write(
        tmp_path / "p.jsonl", {"suite": "a", "id": 7, "turns": ["first", "second"]}, {"prompt": "alone\u2028same line"}
    )
    file = read_prompt_file(path)
    assert [(prompt.suite, prompt.id, prompt.text) for prompt in file.prompts] == [
        ("a", "7", "first"),
        ("all", "2", "alone\u2028same line"),
    ]
    assert file.name == "p.jsonl" and len(file.sha256) == 64


def test_a_limit_takes_turns_over_the_suites(tmp_path: Path) -> None:
    records = [{"suite": suite, "id": f"{suite}{n}", "prompt": "x"} for suite in "ab" for n in range(3)]
    path = write(tmp_path / "p.jsonl", *records, {"suite": "c", "id": "c0", "prompt": "x"})
    assert [prompt.id for prompt in read_prompt_file(path, 5).prompts] == ["a0", "b0", "c0", "a1", "b1"]
    assert len(read_prompt_file(path, 100).prompts) == 7


@pytest.mark.parametrize("line", ["[]", "3", "{}", '{"turns": []}', '{"prompt": 3}', '{"prompt": " "}', "{", "nothing"])
def test_a_line_that_is_no_prompt_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "fine"}\n\n' + line, encoding="utf-8")
    with pytest.raises(UserError, match="line 3"):
        read_prompt_file(path)


def test_files_that_hold_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "empty").write_bytes(b"\n")
    for name, message in (("binary", "not UTF-8"), ("empty", "is empty"), ("missing", "cannot be read")):
        with pytest.raises(UserError, match=message):
            read_prompt_file(tmp_path / name)
