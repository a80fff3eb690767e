"""The EAGLE-2 draft head (the network of EAGLE-1): it predicts the target's next feature, and the target reads it.

The feature is the target's last hidden state after the final norm, which is what its LM head reads. A slot's input is
`fc([embedding ; feature])`; one decoder layer without an input norm turns it into the predicted feature, and the
target's own LM head turns that into logits over the whole vocabulary. No norm and no LM head belong to the head itself
(EAGLE, arXiv 2401.15077 and its code; EAGLE-2, arXiv 2406.16858, drafts with the same network).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaMLP

from eagle3_demo.models.draft_head import DraftHead, DraftHeadConfig, HeadAttention, RMSNorm
from eagle3_demo.models.session import FINAL_STATE

LanguageModelHead = Callable[[Tensor], Tensor]
"""The target's LM head: its last hidden state after the final norm, [..., hidden], to logits [..., vocabulary]."""


class Eagle2Config(DraftHeadConfig):
    """Sizes of a head; `hidden_size` is the target's.

    Attributes:
        bias: whether the fusion of embedding and feature has a bias, as in public heads.
    """

    bias: bool = True


class Eagle2Layer(nn.Module):
    """The decoder layer: a Llama layer without its input norm, named as in public checkpoints."""

    def __init__(self, config: Eagle2Config) -> None:
        super().__init__()
        self.self_attn = HeadAttention(config, config.hidden_size)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = LlamaMLP(config.layer_config())


class Eagle2Head(DraftHead):
    """The draft head; embeddings and LM head are the target's, frozen.

    Args:
        config: its sizes.
        target_lm_head: the target's LM head; not part of the head's parameters.
    """

    method = "eagle2"
    config: Eagle2Config

    def __init__(self, config: Eagle2Config, target_lm_head: LanguageModelHead) -> None:
        super().__init__(config, Eagle2Layer(config))
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=config.bias)
        # In a tuple, so that a module is not taken for a part of this one.
        self._target_lm_head = (target_lm_head,)

    def taps(self, default: tuple[int, int, int]) -> tuple[int, ...]:
        """The target's last hidden state alone."""
        return (FINAL_STATE,)

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        """The same ids: the draft vocabulary is the target's."""
        return draft_ids

    def fuse(self, taps: Tensor) -> Tensor:
        """The feature itself."""
        return taps

    def layer_input(self, embeddings: Tensor, hidden: Tensor) -> Tensor:
        """[..., hidden] twice to [..., hidden]: embedding first."""
        return self.fc(torch.cat([embeddings, hidden], dim=-1))

    def residual(self, layer_input: Tensor, hidden: Tensor) -> Tensor:
        """The fused input: the feature reaches the output only through `fc`."""
        return layer_input

    def logits(self, output: Tensor) -> Tensor:
        """[..., hidden] to logits over the target's vocabulary [..., vocabulary]."""
        return self._target_lm_head[0](output)

    def feedback(self, output: Tensor) -> Tensor:
        """The predicted feature itself."""
        return output
