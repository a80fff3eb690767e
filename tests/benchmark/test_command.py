"""The benchmark command on a tiny random pair: all methods for real, files whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eagle3_demo.cli.main import main
from tests.tiny_pair import save_tiny_pair


def test_all_methods_agree_on_the_same_weights(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target, head = save_tiny_pair(tmp_path)
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"suite": suite, "id": f"{suite}|{n}", "prompt": f"{suite} {n}"} for suite in ("é", "b") for n in range(3)]
    prompts.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    options = ["--target", str(target), "--head", str(head), "--dtype", "float32", "--device", "cpu"]
    methods = ["--methods", "eagle3,transformers,autoregressive", "--limit", "4", "--max-new-tokens", "24"]
    out = tmp_path / "out"
    assert main(["benchmark", "--prompts", str(prompts), "--out", str(out), *options, *methods]) == 0

    assert "transformers" in capsys.readouterr().out
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))
    assert results["complete"] is True and len(results["prompts"]) == 4
    assert set(results["suites"]) == {"é", "b"}
    assert results["speculation"]["active"] is True and results["settings"]["max_new_tokens"] == 24
    for method in ("eagle3", "transformers"):
        assert results["overall"][method]["identical"] == results["overall"][method]["compared"] == 4
    for prompt in results["prompts"]:
        lengths = {name: row["new_tokens"] for name, row in prompt["methods"].items()}
        assert len(set(lengths.values())) == 1
        assert all(row["tokens_per_second"] > 0 for row in prompt["methods"].values())
        assert prompt["methods"]["autoregressive"]["target_forwards"] == lengths["autoregressive"] - 1
    report = (out / "report.md").read_text(encoding="utf-8")
    assert results["prompt_file"]["sha256"] in report and "| é |" in report
    assert sorted(path.name for path in out.iterdir()) == ["report.md", "results.json"]
