"""Whole-or-absent files."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors import SafetensorError

from eagle3_demo.errors import UserError
from eagle3_demo.files import write_atomically


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.txt"
    write_atomically(path, lambda temporary: temporary.write_text("old"))

    def fail(temporary: Path) -> None:
        temporary.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, fail)
    assert path.read_text() == "old"
    assert [child.name for child in path.parent.iterdir()] == ["file.txt"]


def test_a_full_disk_is_told_to_the_person(tmp_path: Path) -> None:
    """As the system says it, and as safetensors words it."""
    (tmp_path / "file").write_text("old")

    def fill(temporary: Path) -> None:
        Path("/dev/full").write_text("x")

    def serialize(temporary: Path) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    for write in (fill, serialize) if Path("/dev/full").exists() else (serialize,):
        with pytest.raises(UserError, match="no space left on the disk"):
            write_atomically(tmp_path / "file", write)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_files_have_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "usual").write_text("")
    write_atomically(tmp_path / "ours", lambda temporary: temporary.write_text(""))
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "usual").stat().st_mode
