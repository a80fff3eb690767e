from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import app
from eagle3_demo.errors import UserError


@pytest.mark.parametrize(("value", "port"), [("", None), ("8080", 8080)])
def test_the_port_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, value: str, port: int | None) -> None:
    monkeypatch.setenv("PORT", value)
    assert app.chosen_port() == port


@pytest.mark.parametrize("value", ["abc", "0", "65536", "-1", "80.5"])
def test_a_bad_port_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("PORT", value)
    with pytest.raises(UserError, match="PORT"):
        app.chosen_port()


@pytest.mark.parametrize("name", ["EAGLE3_QUEUE", "EAGLE3_MAX_NEW_TOKENS", "EAGLE3_PRESET"])
def test_a_bad_variable_ends_the_start_by_name(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "nonsense")
    with pytest.raises(SystemExit, match="nonsense"):
        app.main()


def test_the_page_starts_without_torch() -> None:
    code = "import sys, app; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    root = Path(__file__).resolve().parent.parent
    assert subprocess.run([sys.executable, "-c", code], cwd=root, timeout=120, check=False).returncode == 0


def test_a_bad_port_ends_the_start_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "abc")
    monkeypatch.setattr(app, "load_engine", lambda **_: pytest.fail("the engine was loaded"))
    with pytest.raises(SystemExit, match="PORT = 'abc'"):
        app.main()
