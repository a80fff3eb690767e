"""`scaling` from a tiny corpus to its figure, resumed; and what it refuses before any long work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eagle3_demo.cli.main import main
from tests.tiny_pair import save_tiny_pair
from tests.tiny_target import byte_level_tokenizer, tiny_model


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Folders of a tiny target and of a corpus of its answers, and a prompt file."""
    folder = tmp_path_factory.mktemp("scaling")
    target, _ = save_tiny_pair(folder)
    prompts = folder / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"prompt": f"count to {n}"}) for n in range(120)), encoding="utf-8")
    corpus = ["corpus", "--prompts", str(prompts), "--out", str(folder / "corpus"), "--target", str(target)]
    assert main([*corpus, "--device", "cpu", "--max-new-tokens", "12", "--batch-size", "16", "--tokens", "900"]) == 0
    return target, folder / "corpus", prompts


def command(material: tuple[Path, Path, Path], out: Path, *more: str) -> list[str]:
    target, corpus, prompts = material
    options = ["--target", str(target), "--prompts", str(prompts), "--limit", "2", "--device", "cpu"]
    options += ["--steps-ahead", "2", "--draft-vocab", "64", "--block-positions", "256", "--max-new-tokens", "12"]
    return ["scaling", "--corpus", str(corpus), "--out", str(out), *options, *more]


def test_every_fraction_gets_both_heads_and_a_resumed_run_adds_to_them(
    capsys: pytest.CaptureFixture[str], material: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    assert main(command(material, out, "--fractions", "0.5", "--tokens", "400")) == 0
    first = json.loads((out / "scaling.json").read_text())
    assert [point["method"] for point in first["points"]] == ["eagle3", "eagle2"]
    written = (out / "eagle3-0.5" / "head" / "model.safetensors").stat().st_mtime_ns
    capsys.readouterr()

    assert main(command(material, out, "--fractions", "0.5,1", "--tokens", "400")) == 1
    assert "--resume" in capsys.readouterr().err
    assert main(command(material, out, "--fractions", "0.5,1", "--tokens", "500", "--resume")) == 1
    assert "another training" in capsys.readouterr().err
    assert main(command(material, out, "--fractions", "1,0.5", "--tokens", "400", "--resume")) == 0
    assert "same number of token-passes" in capsys.readouterr().out.replace("\n", " ")

    results = json.loads((out / "scaling.json").read_text())
    assert results["complete"] is True and results["rule"]
    assert results["points"][:2] == first["points"]
    assert (out / "eagle3-0.5" / "head" / "model.safetensors").stat().st_mtime_ns == written
    assert [point["fraction"] for point in results["points"]] == [0.5, 0.5, 1.0, 1.0]
    for point in results["points"]:
        assert point["identical"] == point["compared"] == 2
        assert point["acceptance_length"] >= 1 and point["token_passes"] >= 400
        assert not (out / f"{point['method']}-{point['fraction']:g}" / "state.pt").exists()
    small, large = (results["points"][number]["answer_tokens"] for number in (0, 2))
    assert small < large
    curves = json.loads((out / "curve.json").read_text())
    assert len(curves["curves"]) == 4
    assert json.loads((out / "figure.json").read_text())["data"]
    assert "plotly" in (out / "figure.html").read_text(encoding="utf-8").lower()


@pytest.mark.parametrize("fractions", ["0", "1.5", "-0.5,1", "half", "", "nan"])
def test_fractions_out_of_range_are_refused(
    capsys: pytest.CaptureFixture[str], material: tuple[Path, Path, Path], tmp_path: Path, fractions: str
) -> None:
    assert main(command(material, tmp_path / "run", "--fractions", fractions)) == 2
    assert "--fractions" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_unknown_heads_are_refused(
    capsys: pytest.CaptureFixture[str], material: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    assert main(command(material, tmp_path / "run", "--heads", "eagle3,medusa")) == 2
    assert "--heads" in capsys.readouterr().err


def test_one_kind_of_head_may_be_trained_alone(material: tuple[Path, Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert main(command(material, out, "--fractions", "1", "--tokens", "200", "--heads", "eagle2")) == 0
    results = json.loads((out / "scaling.json").read_text())
    assert [point["method"] for point in results["points"]] == ["eagle2"] and results["complete"] is True
    assert (out / "eagle2-1" / "head" / "config.json").is_file()


def test_wrong_folders_are_refused_before_anything_is_made(
    capsys: pytest.CaptureFixture[str], material: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    target, corpus, prompts = material
    out = tmp_path / "run"
    assert main(command((target, tmp_path / "none", prompts), out)) == 1
    assert "is not a corpus" in capsys.readouterr().err
    tiny_model(seed=9).save_pretrained(tmp_path / "other")
    byte_level_tokenizer().save_pretrained(tmp_path / "other")
    assert main(command((tmp_path / "other", corpus, prompts), out)) == 1
    assert "is another target" in capsys.readouterr().err
    assert main(command((target, corpus, tmp_path / "none.jsonl"), out)) == 1
    assert "none.jsonl" in capsys.readouterr().err
    assert not out.exists()
    assert main(command(material, tmp_path / "new", "--resume")) == 1
    assert "nothing to resume" in capsys.readouterr().err
    assert main(command(material, corpus)) == 1
    assert "something else" in capsys.readouterr().err
