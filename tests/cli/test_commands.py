"""The commands as a person types them, on a tiny random pair loaded from disk."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eagle3_demo.cli.main import main
from tests.tiny_pair import save_tiny_pair

RUN_FIELDS = {
    *("text", "token_ids", "method", "target", "head", "device", "dtype", "new_tokens", "target_forwards"),
    *("acceptance_length", "seconds_prefill", "seconds_decode", "tokens_per_second", "stop_reason", "speculation"),
    "versions",
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options that name a tiny target and head."""
    target, head = save_tiny_pair(tmp_path_factory.mktemp("pair"))
    return ["--target", str(target), "--head", str(head), "--device", "cpu"]


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """Runs a command that succeeds and returns the JSON object that is all of its stdout."""
    assert main([*arguments, "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Runs a command that fails and returns its exit code and the line it wrote."""
    code = main(arguments)
    written = capsys.readouterr()
    assert written.out == ""
    lines = [line for line in written.err.splitlines() if line.startswith("Error: ")]
    assert len(lines) == 1
    return code, lines[0]


def test_generate_tells_everything_in_json(capsys: pytest.CaptureFixture[str], pair: list[str]) -> None:
    result = run_json(capsys, "generate", "one two", *pair, "--max-new-tokens", "20", "--dtype", "float32")
    assert set(result) == RUN_FIELDS
    assert result["new_tokens"] == len(result["token_ids"]) <= 20
    assert result["speculation"]["active"] is True and result["head"] == "tiny-head"
    assert result["dtype"] == "float32" and result["method"] == "eagle3"
    assert {"torch", "transformers", "python"} <= set(result["versions"])


def test_a_run_without_a_head_says_that_it_does_not_speculate(
    capsys: pytest.CaptureFixture[str], pair: list[str]
) -> None:
    result = run_json(capsys, "generate", "one two", "--target", pair[1], "--max-new-tokens", "5")
    assert result["speculation"]["active"] is False and result["speculation"]["reason"]
    assert result["acceptance_length"] == 1.0 and result["head"] is None


def test_options_reach_the_engine(capsys: pytest.CaptureFixture[str], pair: list[str]) -> None:
    sampled = ["generate", "one two", *pair, "--max-new-tokens", "16", "--temperature", "1.5"]
    first = run_json(capsys, *sampled, "--seed", "1")
    again = run_json(capsys, *sampled, "--seed", "1", "--depth", "2", "--tree-top-k", "2", "--nodes", "4")
    other = run_json(capsys, *sampled, "--seed", "2")
    plain = run_json(capsys, *sampled, "--seed", "1", "--method", "autoregressive")
    assert first["token_ids"] == again["token_ids"] == plain["token_ids"] != other["token_ids"]
    assert plain["target_forwards"] == plain["new_tokens"] - 1
    narrow = run_json(capsys, *sampled, "--top-k", "1")
    greedy = run_json(capsys, "generate", "one two", *pair, "--max-new-tokens", "16")
    assert narrow["token_ids"] == greedy["token_ids"]


def test_stop_strings_end_the_answer(capsys: pytest.CaptureFixture[str], pair: list[str]) -> None:
    arguments = ["generate", "one two", *pair, "--max-new-tokens", "24"]
    whole = run_json(capsys, *arguments)["text"]
    stop = whole[4:6]
    cut = run_json(capsys, *arguments, "--stop", "never to be seen", "--stop", stop)
    assert cut["text"] == whole[: whole.index(stop)] and cut["stop_reason"] == "stop_string"


def test_the_answer_alone_is_on_stdout(capsys: pytest.CaptureFixture[str], pair: list[str]) -> None:
    arguments = ["generate", "one two", *pair, "--max-new-tokens", "12"]
    text = run_json(capsys, *arguments)["text"]
    assert main(arguments) == 0
    written = capsys.readouterr()
    assert written.out == text + "\n"
    assert "tokens/s" in written.err and "speculation on" in written.err


def test_loading_and_a_long_prompt_are_told_on_stderr(
    capsys: pytest.CaptureFixture[str], pair: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eagle3_demo.models.session.PREFILL_SLICE", 16)
    for method in ("eagle3", "autoregressive"):
        assert main(["generate", "one two " * 15, *pair, "--max-new-tokens", "2", "--method", method]) == 0
        told = capsys.readouterr().err
        assert "Loading the weights" in told and "Loading weights" not in told
        assert re.search(r"Reading the prompt: 16 of \d\d tokens", told)


def test_compare_finds_the_same_output(capsys: pytest.CaptureFixture[str], pair: list[str]) -> None:
    arguments = ["compare", "one two", *pair, "--max-new-tokens", "24", "--dtype", "float32"]
    result = run_json(capsys, *arguments)
    assert set(result) == {"autoregressive", "eagle3", "identical", "first_divergence", "speedup"}
    assert set(result["autoregressive"]) == set(result["eagle3"]) == RUN_FIELDS
    assert result["identical"] is True and result["first_divergence"] is None and result["speedup"] > 0
    assert result["autoregressive"]["token_ids"] == result["eagle3"]["token_ids"]
    assert main(arguments) == 0
    assert "identical output" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["generate"], "prompt"),
        (["generate", "  "], "PROMPT"),
        (["generate", "hi", "--temperature", "hot"], "--temperature"),
        (["generate", "hi", "--temperature", "nan"], "--temperature"),
        (["generate", "hi", "--temperature", "-1"], "--temperature"),
        (["generate", "hi", "--top-p", "0"], "--top-p"),
        (["generate", "hi", "--top-k", "-1"], "--top-k"),
        (["generate", "hi", "--tree-top-k", "99"], "--tree-top-k"),
        (["generate", "hi", "--nodes", "1"], "--nodes"),
        (["generate", "hi", "--depth", "0"], "--depth"),
        (["generate", "hi", "--seed", "-1"], "--seed"),
        (["generate", "hi", "--max-new-tokens", "0"], "--max-new-tokens"),
        (["generate", "hi", "--stop", ""], "--stop"),
        (["generate", "hi", "--repetition-penalty", "1.3"], "--repetition-penalty"),
        (["generate", "hi", "--method", "medusa"], "--method"),
        (["generate", "hi", "--device", "abacus"], "--device"),
        (["generate", "hi", "--dtype", "int1"], "--dtype"),
        (["generate", "hi", "--preset", "nobody"], "--preset"),
        (["generate", "hi", "--preset", "qwen3-8b", "--target", "x"], "--preset"),
        (["compare", "hi", "--method", "autoregressive"], "--method"),
        (["generate", "hi", "--nodes", "many"], "--nodes"),
        (["benchmark"], "--prompts"),
        (["benchmark", "--prompts", "x", "--methods", "eagle3,magic"], "--methods"),
        (["benchmark", "--prompts", "x", "--limit", "0"], "--limit"),
        (["juggle"], "juggle"),
    ],
)
def test_wrong_arguments_end_with_2_and_one_line_that_names_them(
    capsys: pytest.CaptureFixture[str], arguments: list[str], named: str
) -> None:
    code, line = refusal(capsys, *arguments)
    assert code == 2 and named in line and "Value error" not in line
    assert "_" not in line, "an option is named in Python's spelling"


def test_missing_and_damaged_files_end_with_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, pair: list[str]
) -> None:
    target = pair[:2]
    (tmp_path / "damaged.jsonl").write_text('{"prompt": "fine"}\n{"prompt": ', encoding="utf-8")
    for arguments, named in (
        (["benchmark", "--prompts", str(tmp_path / "missing.jsonl")], "missing.jsonl"),
        (["benchmark", "--prompts", str(tmp_path / "damaged.jsonl")], "line 2"),
        (["generate", "hi", *target, "--head", str(tmp_path / "no-head")], "no-head"),
        (["generate", "hi", "--target", str(tmp_path / "no-target")], "no-target"),
        (["train", "--corpus", str(tmp_path), "--out", str(tmp_path / "run")], str(tmp_path)),
    ):
        code, line = refusal(capsys, *arguments)
        assert code == 1 and named in line


def test_a_prompt_longer_than_the_context_is_refused(capsys: pytest.CaptureFixture[str], pair: list[str]) -> None:
    code, line = refusal(capsys, "generate", "word " * 2000, *pair)
    assert code == 1 and "at most 255" in line


def test_doctor_knows_the_machine_and_every_preset(capsys: pytest.CaptureFixture[str]) -> None:
    facts = run_json(capsys, "doctor")
    assert {"torch", "transformers"} <= set(facts["versions"])
    assert all(preset["runs"] is (preset["reason"] is None) for preset in facts["presets"])
    assert facts["presets"][0]["embedded"] is True
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert all(preset["name"] in shown and preset["target"] in shown for preset in facts["presets"])


def test_a_console_without_emoji_gets_escapes(capsys: pytest.CaptureFixture[str], pair: list[str]) -> None:
    """A random model says things that cp1252 lacks (faults B48)."""
    arguments = ["generate", "🦅", *pair, "--max-new-tokens", "60"]
    text = run_json(capsys, *arguments)["text"]
    with pytest.raises(UnicodeEncodeError):
        text.encode("cp1252")
    environment = os.environ | {"PYTHONIOENCODING": "cp1252:strict"}
    command = [sys.executable, "-m", "eagle3_demo", *arguments]
    ended = subprocess.run(command, capture_output=True, env=environment, timeout=120, check=False)
    assert ended.returncode == 0 and b"Traceback" not in ended.stderr
    assert ended.stdout.rstrip() == text.encode("cp1252", errors="backslashreplace").rstrip()


def test_a_reader_that_leaves_ends_the_command_quietly(pair: list[str]) -> None:
    command = [sys.executable, "-m", "eagle3_demo", "generate", "one two", *pair, "--max-new-tokens", "200"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    assert process.wait(timeout=120) == 1
    assert b"Traceback" not in errors and b"BrokenPipe" not in errors
