"""The sampling chain: transformers' order, exact distribution, noise that depends on seed and position alone."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, TopPLogitsWarper

from eagle3_demo.decoding import sampling as sampling_module
from eagle3_demo.decoding.sampling import pick, processed_log_probabilities
from eagle3_demo.settings import SamplingSettings

DRAWS = 8000
LOGITS = torch.tensor([2.0, 1.0, 0.5, -1.0, 0.9])
CHAINS = [
    SamplingSettings(temperature=temperature, top_p=top_p, top_k=top_k)
    for temperature, top_p, top_k in itertools.product((0.1, 0.7, 1.0, 2.0), (0.1, 0.9, 1.0), (0, 1, 50))
]


def chance(drawn: Iterable[int], probabilities: Tensor) -> float:
    """Chi-square test: how likely fair draws are to stray at least as far. Fixed seeds, so no test here is flaky."""
    counts, expected = Counter(drawn), probabilities.double()
    total = sum(counts.values())
    kept = [token for token in range(len(expected)) if expected[token] > 0]
    assert set(counts) <= set(kept)
    mean = {token: total * float(expected[token]) for token in kept}
    statistic = sum((counts[token] - mean[token]) ** 2 / mean[token] for token in kept)
    half = torch.tensor([len(kept) - 1, statistic], dtype=torch.double) / 2
    return float(torch.special.gammaincc(half[0], half[1]))


@pytest.mark.parametrize(
    "chain", [{"temperature": 1.0}, {"temperature": 0.6, "top_k": 4}, {"temperature": 1.5, "top_p": 0.8}]
)
def test_draws_follow_the_distribution(chain: dict[str, float]) -> None:
    sampling = SamplingSettings(**chain, seed=11)
    probabilities = processed_log_probabilities(LOGITS, sampling).exp()
    assert chance((pick(LOGITS, position, sampling) for position in range(DRAWS)), probabilities) > 1e-4
    seeds = (sampling.model_copy(update={"seed": seed}) for seed in range(DRAWS))
    assert chance((pick(LOGITS, 7, one) for one in seeds), probabilities) > 1e-4


def test_neighbouring_positions_and_seeds_are_independent() -> None:
    """Pairs of draws at positions p and p + 1, and of seeds s and s + 1, follow the product distribution."""
    sampling = SamplingSettings(temperature=1.0, seed=5)
    product = torch.softmax(LOGITS, -1)[:, None] * torch.softmax(LOGITS, -1)
    along = [pick(LOGITS, position, sampling) for position in range(DRAWS)]
    across = [pick(LOGITS, 3, SamplingSettings(temperature=1.0, seed=seed)) for seed in range(DRAWS)]
    for drawn in (along, across):
        pairs = zip(drawn[::2], drawn[1::2], strict=True)
        assert chance((5 * first + second for first, second in pairs), product.view(-1)) > 1e-4


@pytest.mark.parametrize("chain", CHAINS)
def test_one_chain_with_transformers(reference: PreTrainedModel, chain: SamplingSettings) -> None:
    """Same warpers, same order as `generate`: the order changes which tokens stay."""
    config = GenerationConfig(do_sample=True, temperature=chain.temperature, top_k=chain.top_k, top_p=chain.top_p)
    processors = reference._get_logits_processor(config)
    logits = 4 * torch.randn(6, 300, generator=torch.Generator().manual_seed(1))
    theirs = torch.log_softmax(processors(None, logits.clone()), -1)
    torch.testing.assert_close(processed_log_probabilities(logits, chain), theirs)


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.99, 0.9999])
@pytest.mark.parametrize("spread", [0.2, 3.0])
def test_the_shortlist_gives_the_whole_vocabularys_nucleus(top_p: float, spread: float) -> None:
    logits = spread * torch.randn(1, 20_000, generator=torch.Generator().manual_seed(2))
    chain = SamplingSettings(temperature=1.0, top_p=top_p)
    theirs = torch.log_softmax(TopPLogitsWarper(top_p)(None, logits), -1)
    ours = processed_log_probabilities(logits, chain)
    differing = torch.isfinite(ours) != torch.isfinite(theirs)
    # One token may sit on the border, where the order of summation decides.
    assert differing.sum() <= 1
    assert ours[~differing & torch.isfinite(ours)].sub(theirs[~differing & torch.isfinite(ours)]).abs().max() < 1e-3


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_every_combination_takes_rows_of_both_shapes(chain: SamplingSettings, dtype: torch.dtype) -> None:
    logits = LOGITS.to(dtype)
    token = pick(logits, 3, chain)
    assert token == pick(logits[None], 3, chain)
    flat, rows = processed_log_probabilities(logits, chain), processed_log_probabilities(logits[None], chain)
    assert (flat.shape, rows.shape) == ((5,), (1, 5))
    assert torch.equal(flat, rows[0])
    assert torch.isfinite(flat[token])
    assert float(flat.exp().sum()) == pytest.approx(1.0)


@pytest.mark.parametrize("temperature", [0.0, 1e-30, 1e-6, 9e-6, 1e-5, 1e-4])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_tiny_temperatures_equal_greedy(temperature: float, dtype: torch.dtype) -> None:
    logits = (1000 * torch.randn(4, 200, generator=torch.Generator().manual_seed(0))).to(dtype)
    for top_p, top_k in itertools.product((0.1, 1.0), (0, 50)):
        chain = SamplingSettings(temperature=temperature, top_p=top_p, top_k=top_k)
        assert [pick(row, 9, chain) for row in logits] == logits.argmax(-1).tolist()
        assert processed_log_probabilities(logits, chain).argmax(-1).tolist() == logits.argmax(-1).tolist()


@given(seed=st.integers(0, 2**63 - 1), position=st.integers(0, 2**31))
def test_a_draw_depends_on_seed_and_position_alone(seed: int, position: int) -> None:
    sampling = SamplingSettings(temperature=1.0, seed=seed)
    flat = torch.zeros(500)
    token = pick(flat, position, sampling)
    assert pick(torch.zeros(3), position + 1, sampling) in range(3)
    np.random.seed(0)
    torch.manual_seed(0)
    assert pick(flat.clone(), position, sampling) == token


def test_other_seeds_and_positions_draw_otherwise() -> None:
    flat = torch.zeros(50_000)
    drawn = [
        pick(flat, position, SamplingSettings(temperature=1.0, seed=seed)) for seed in range(8) for position in range(8)
    ]
    assert len(set(drawn)) > 60


def test_masked_tokens_are_never_drawn_whatever_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where the noise of the only allowed token is minus infinity."""
    monkeypatch.setattr(sampling_module, "_gumbel", lambda seed, position, size: np.full(size, -np.inf))
    assert pick(LOGITS, 0, SamplingSettings(temperature=1.0, top_k=1)) == 0
