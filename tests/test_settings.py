"""What settings refuse, and how they say it: nothing that decoding would silently ignore gets in."""

from __future__ import annotations

import pytest

from eagle3_demo.errors import UserError
from eagle3_demo.settings import SettingError, generation_settings


@pytest.mark.parametrize("temperature", [float("nan"), float("inf"), float("-inf"), -1, -1e-9, 5.1, None, "hot"])
def test_a_temperature_that_is_none_is_refused(temperature: object) -> None:
    """Faults B14."""
    with pytest.raises(UserError, match="temperature = "):
        generation_settings(temperature=temperature)


@pytest.mark.parametrize("name", ["min_p", "repetition_penalty", "logit_bias", "bad_words_ids", "num_beams"])
def test_what_decoding_would_ignore_is_refused_by_name(name: str) -> None:
    """Faults B11 and B12: no ban and no penalty is accepted that verification would not apply at every position."""
    with pytest.raises(SettingError, match=f"{name} = .* is not valid") as refused:
        generation_settings(**{name: 1.3})
    assert refused.value.name == name


@pytest.mark.parametrize(
    ("values", "name"),
    [({"top_k": -1}, "top_k"), ({"tree_top_k": 99}, "tree_top_k"), ({"depth": 0}, "depth"), ({"stop": ("",)}, "stop")],
)
def test_a_refusal_names_the_flat_setting(values: dict[str, object], name: str) -> None:
    with pytest.raises(SettingError) as refused:
        generation_settings(**values)
    assert refused.value.name == name and name not in refused.value.problem
