"""What training tests share."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel


@pytest.fixture(scope="session")
def answered(reference: PreTrainedModel) -> tuple[np.ndarray, np.ndarray]:
    """Twelve prompts of five tokens with the reference's own ten after them, and the mask of those."""
    ids = torch.randint(3, 200, (12, 5), generator=torch.Generator().manual_seed(5))
    whole = reference.generate(ids, max_new_tokens=10, do_sample=False, eos_token_id=None, pad_token_id=2).numpy()
    answer = np.ones(whole.shape, dtype=bool)
    answer[:, :5] = False
    return whole, answer
