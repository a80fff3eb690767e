"""EAGLE-2's training: the head predicts the target's next feature in one step, and is compared with the real one.

The loss is smooth L1 between the predicted feature and the target's (weight 1) plus the cross-entropy between what the
target's LM head reads from both (weight 0.1), as in EAGLE (arXiv 2401.15077). There is no training-time test: the head
never sees its own predictions while it is trained. Uniform noise on the features it reads makes it a little less
sensitive to that.

Slot p is supervised iff tokens p+1 and p+2 were both written by the target; its label is the target's feature at p+1.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from eagle3_demo.models.eagle2 import Eagle2Config, Eagle2Head
from eagle3_demo.training.initial_head import target_sizes
from eagle3_demo.training.losses import SoftCrossEntropy
from eagle3_demo.training.training_time_test import Slots, StepResult, TrainingBatch, supervised_slots

FEATURE_WEIGHT = 1.0
TOKEN_WEIGHT = 0.1
NOISE = 0.1


class FeatureRegression:
    """The loss of one head, to be called as the trainer calls a loss.

    Args:
        head: the head being trained.
        model: the frozen target.
        noise: features are read with uniform noise of up to this size while the head is in training mode.
    """

    def __init__(self, head: Eagle2Head, model: PreTrainedModel, noise: float = NOISE) -> None:
        self.head, self.noise = head, noise
        self.embedding = model.get_input_embeddings().weight.detach()

    def __call__(self, batch: TrainingBatch, steps_ahead: int = 1) -> list[StepResult]:
        """One result, for one step ahead, whatever is asked.

        Args:
            batch: `taps` [batch, n, hidden] holds the target's last hidden state after its final norm.

        Raises:
            ValueError: the batch has no supervised slot.
        """
        slots = supervised_slots(batch)
        if not slots.rows.numel():
            raise ValueError("the batch has no supervised slot")
        predicted = self._predict(batch, slots)
        label = batch.taps[slots.rows, slots.columns + 1]
        feature_loss = functional.smooth_l1_loss(predicted.float(), label.float())
        logits = self.head.logits(predicted)
        with torch.no_grad():
            target = torch.softmax(self.head.logits(label.to(predicted.dtype)).float(), -1).to(logits.dtype)
            matches = (logits.argmax(-1) == batch.choice[slots.rows, slots.columns + 1]).sum()
        token_loss = SoftCrossEntropy.apply(logits, target).mean()
        loss = FEATURE_WEIGHT * feature_loss + TOKEN_WEIGHT * token_loss
        return [StepResult(loss, matches, len(slots.rows))]

    def valid(self, batch: TrainingBatch, steps_ahead: int = 1) -> Tensor:
        """The supervised slots of the first step, none of later ones, int64 [steps]."""
        counts = torch.zeros(steps_ahead, dtype=torch.long, device=batch.answer.device)
        counts[0] = (batch.answer[:, 1:-1] & batch.answer[:, 2:]).sum()
        return counts

    def _predict(self, batch: TrainingBatch, slots: Slots) -> Tensor:
        """The predicted features of the supervised slots, [slots, hidden]."""
        head, features = self.head, batch.taps
        if head.training and self.noise:
            features = features + (2 * torch.rand_like(features) - 1) * self.noise
        tokens = functional.pad(batch.tokens[:, 1:], (0, 1))
        positions = (batch.real.long().cumsum(-1) - 1).clamp_min(0)
        embeddings = functional.embedding(tokens, self.embedding)
        everywhere = head.layer_input(embeddings, head.fuse(features))
        keys, values = head.keys_values(everywhere, positions)
        asked = everywhere[:, slots.first :]
        queries = head.queries(asked, positions[:, slots.first :])
        attended = functional.scaled_dot_product_attention(
            queries, keys.to(queries.dtype), values.to(queries.dtype), slots.mask.to(queries.dtype), enable_gqa=True
        )
        residual = head.residual(asked, features[:, slots.first :])
        output = head.finish(residual, attended.transpose(1, 2).flatten(2))
        return output[slots.rows, slots.columns - slots.first]


@torch.no_grad()
def initial_eagle2_head(model: PreTrainedModel) -> Eagle2Head:
    """A new head in float32: it starts by handing the feature on.

    The fusion starts as the identity on the feature; what the layer reads starts as in the target's last layer, what it
    adds at zero, because the target's layers write into an un-normed stream of another scale.

    Args:
        model: the target, a Llama-type model.
    """
    sizes = Eagle2Config(**target_sizes(model))
    head = Eagle2Head(sizes, model.get_output_embeddings()).to(model.device)
    width = sizes.hidden_size
    torch.nn.init.normal_(head.fc.weight, std=0.002)
    torch.nn.init.zeros_(head.fc.bias)
    head.fc.weight[:, width:] += torch.eye(width, device=model.device)
    last, layer = model.base_model.layers[-1], head.midlayer
    for name in ("q_proj", "k_proj", "v_proj"):
        getattr(layer.self_attn, name).weight.copy_(getattr(last.self_attn, name).weight)
    for name in ("gate_proj", "up_proj"):
        getattr(layer.mlp, name).weight.copy_(getattr(last.mlp, name).weight)
    for linear in (layer.self_attn.o_proj, layer.mlp.down_proj):
        torch.nn.init.zeros_(linear.weight)
    layer.post_attention_layernorm.weight.copy_(last.post_attention_layernorm.weight)
    return head
