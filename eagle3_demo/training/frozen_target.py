"""The frozen target as transformers runs it: what answers prompts and lends its states to training."""

from __future__ import annotations

from typing import Literal

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from eagle3_demo.errors import UserError

Precision = Literal["no", "bf16"]


def load_frozen_target(
    source: str, device: torch.device | str, precision: Precision
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A target in evaluation mode without gradients, float32 or bfloat16, and its tokenizer.

    Args:
        source: hub id or folder.

    Raises:
        UserError: it cannot be loaded.
    """
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    try:
        model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype).to(device).eval().requires_grad_(False)
        return model, AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"target {source} cannot be loaded ({reason}); give a hub id or a local folder") from error
