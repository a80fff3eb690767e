"""The command line on the real pair that comes along."""

from __future__ import annotations

import json

import pytest

from eagle3_demo.cli.main import main


@pytest.mark.real_model
def test_the_embedded_pair_speculates_and_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compare", "Write one sentence about the sea.", "--max-new-tokens", "48", "--json"]
    assert main([*arguments, "--preset", "smollm2-135m-instruct", "--dtype", "float32", "--device", "cpu"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["identical"] is True
    assert result["eagle3"]["speculation"]["active"] is True
    assert result["eagle3"]["acceptance_length"] > 1.2
    assert result["eagle3"]["target_forwards"] < result["autoregressive"]["target_forwards"]
