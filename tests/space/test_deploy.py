"""Deployment against a stand-in for `HfApi` that records its calls; nothing is sent."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eagle3_demo.cli.main import main
from eagle3_demo.errors import UserError
from eagle3_demo.space.deploy import Plan, deploy, make_plan


class FakeHub:
    def __init__(self, stage: str = "RUNNING") -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.stage = stage

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            self.calls.append((name, arguments, options))
            return SimpleNamespace(stage=self.stage)

        return call


def test_this_repository_can_be_deployed() -> None:
    plan = make_plan()
    assert plan.problems == ()
    names = {path for path, _ in plan.files}
    assert {"app.py", "README.md", "requirements.txt", "eagle3_demo/ui/static/board.js"} <= names
    assert any(path.endswith("model.safetensors") for path in names)
    assert not any(path.startswith(("tests/", "assets/corpus")) or "__pycache__" in path for path in names)


def test_the_calls_create_fill_and_wait() -> None:
    hub = FakeHub()
    plan = Plan((("app.py", 10),), ())
    address = deploy(hub, "me/demo", plan, hardware="t4-small", private=True, variables={"EAGLE3_PRESET": "qwen3-4b"})
    assert address == "https://huggingface.co/spaces/me/demo"
    assert [name for name, _, _ in hub.calls] == [
        "create_repo",
        "add_space_variable",
        "upload_folder",
        "request_space_hardware",
        "wait_for_space",
    ]
    assert hub.calls[0][2] == {"repo_type": "space", "space_sdk": "gradio", "private": True, "exist_ok": True}
    assert hub.calls[2][2]["allow_patterns"] == ["app.py"]


def test_a_space_that_does_not_start_is_told() -> None:
    with pytest.raises(UserError, match="BUILD_ERROR"):
        deploy(FakeHub("BUILD_ERROR"), "me/demo", Plan((("app.py", 10),), ()))


def test_problems_are_found_and_stop_the_upload(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("TOKEN = 'hf_" + "a" * 34 + "'")
    (tmp_path / "README.md").write_text("---\nsdk: gradio\nsdk_version: 1.0\napp_file: gone.py\n---\n")
    plan = make_plan(tmp_path)
    told = " ".join(plan.problems)
    for expected in ("sdk_version is 1.0", "gone.py", "requirements.txt is missing", "draft head", "app.py seems"):
        assert expected in told
    hub = FakeHub()
    with pytest.raises(UserError, match="not deployed"):
        deploy(hub, "me/demo", plan)
    assert hub.calls == []


def test_a_dry_run_lists_everything_and_needs_no_token(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy-space", "me/demo", "--dry-run"]) == 0
    listed = capsys.readouterr().out
    assert "app.py" in listed
    assert "large object" in listed
    assert "files for me/demo" in listed


def test_without_a_token_the_way_is_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    assert main(["deploy-space", "me/demo"]) == 1
    assert "hf auth login" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["no-slash"], ["me/demo", "--variable", "1=2", "--dry-run"]])
def test_wrong_arguments_are_named(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert main(["deploy-space", *arguments]) == 2
