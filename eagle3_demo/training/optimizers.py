"""Which parameters of a head are trained, by which optimiser, at which rate."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn
from torch.nn import Parameter

from eagle3_demo.errors import UserError

OptimizerName = Literal["muon", "adamw"]


def make_optimizers(
    head: nn.Module, name: OptimizerName, learning_rate: float, muon_learning_rate: float
) -> list[torch.optim.Optimizer]:
    """`muon`: Muon for the matrices within the layer, AdamW for LM head and norms; `adamw`: AdamW for all.

    Raises:
        UserError: this torch has no Muon.
    """
    matrices, rest = _split_parameters(head)
    if name == "adamw":
        return [_adamw([*matrices, *rest], learning_rate)]
    if not hasattr(torch.optim, "Muon"):
        raise UserError(f"torch {torch.__version__} has no Muon; take --optimizer adamw, or torch 2.9 or newer")
    muon = torch.optim.Muon(matrices, lr=muon_learning_rate, weight_decay=0.01, momentum=0.95)
    return [muon, _adamw(rest, learning_rate)]


def scheduled_share(progress: float, warmup: float, decay: float) -> float:
    """The share of the peak rate after `progress` (0 to 1) of the budget: up, level, and down to zero at the end."""
    rising = (progress + 1e-4) / max(warmup, 1e-9)
    falling = (1 - progress) / max(decay, 1e-9)
    return max(0.0, min(1.0, rising, falling))


def _adamw(parameters: list[Parameter], learning_rate: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0)


def _split_parameters(head: nn.Module) -> tuple[list[Parameter], list[Parameter]]:
    """Matrices (fusion, attention, MLP) and the rest (LM head, norms); embeddings stay as they are."""
    matrices: list[Parameter] = []
    rest: list[Parameter] = []
    for name, parameter in head.named_parameters():
        if name.startswith("embed_tokens"):
            parameter.requires_grad_(False)
        elif parameter.ndim == 2 and not name.startswith("lm_head"):
            matrices.append(parameter)
        else:
            rest.append(parameter)
    return matrices, rest
