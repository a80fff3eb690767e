"""The compiled products say why when they cannot be had."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from eagle3_demo.models import native
from eagle3_demo.models.native import native_kernels


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Another cache directory, and nothing remembered before or after."""
    monkeypatch.setenv("EAGLE3_CACHE", str(tmp_path))
    native_kernels.cache_clear()
    yield
    native_kernels.cache_clear()


def test_they_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLE3_NATIVE", "off")
    assert native_kernels() == (None, "EAGLE3_NATIVE is off")


def test_without_a_compiler_the_reason_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    assert native_kernels() == (None, "there is no C compiler (install gcc or clang)")


def test_a_compiler_that_fails_is_named_and_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = tmp_path / "broken"
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] || { echo "no such option" >&2; exit 1; }\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    product, reason = native_kernels()
    assert product is None
    assert str(compiler) in reason and "no such option" in reason
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".so", ".o")]


def test_a_library_is_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert native_kernels()[0] is not None
    (library,) = (tmp_path / "native").iterdir()
    monkeypatch.setattr(native, "_compile", None)
    native_kernels.cache_clear()
    assert native_kernels()[0] is not None and library.exists()
