"""`corpus` then `train` then `generate` with the new head: the whole way, on a tiny random target."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eagle3_demo.cli.main import main
from tests.tiny_pair import save_tiny_pair


def test_a_head_is_trained_on_the_targets_own_answers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target, _ = save_tiny_pair(tmp_path)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"prompt": f"count to {n}"}) for n in range(120)), encoding="utf-8")
    out, run = tmp_path / "corpus", tmp_path / "run"
    corpus = ["corpus", "--prompts", str(prompts), "--out", str(out), "--target", str(target), "--device", "cpu"]
    corpus += ["--max-new-tokens", "12", "--batch-size", "16"]
    assert main([*corpus, "--tokens", "300"]) == 0
    assert main([*corpus, "--tokens", "900"]) == 0
    assert "answer tokens" in capsys.readouterr().err

    train = ["train", "--corpus", str(out), "--out", str(run), "--target", str(target), "--device", "cpu"]
    train += ["--epochs", "1", "--steps-ahead", "2", "--draft-vocab", "64", "--block-positions", "256"]
    assert main(train) == 0
    assert (run / "head" / "model.safetensors").is_file()
    capsys.readouterr()

    assert main(train) == 1
    assert "--resume" in capsys.readouterr().err
    assert main([*train, "--epochs", "2", "--resume"]) == 0
    capsys.readouterr()

    used = ["--target", str(target), "--head", str(run / "head"), "--device", "cpu", "--max-new-tokens", "8", "--json"]
    assert main(["generate", "count to 3", *used]) == 0
    assert json.loads(capsys.readouterr().out)["speculation"]["active"] is True


def test_a_corpus_of_another_target_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target, _ = save_tiny_pair(tmp_path)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"prompt": f"count to {n}"}) for n in range(20)), encoding="utf-8")
    out = tmp_path / "corpus"
    corpus = ["corpus", "--prompts", str(prompts), "--out", str(out), "--target", str(target), "--tokens", "50"]
    assert main([*corpus, "--max-new-tokens", "8", "--device", "cpu"]) == 0
    target.rename(tmp_path / "moved")
    train = ["train", "--corpus", str(out), "--out", str(tmp_path / "run"), "--target", str(tmp_path / "moved")]
    capsys.readouterr()
    assert main(train) == 1
    assert str(target) in capsys.readouterr().err
