"""Tiny random targets and tokenizers for tests."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from eagle3_demo.models.target import TargetModel

TEXT = "Count: one two three four five six seven eight. 🤣 family: 👨‍👩‍👧 中文 ض é — naïve\n    indented  code ."
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_level_tokenizer(vocabulary: int = 280) -> PreTrainedTokenizerFast:
    """Byte-level BPE as in GPT-2: every byte is a token, few merges, so most characters beyond ASCII are split."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=CONTROL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["one two three four five six seven eight"] * 9, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def metaspace_tokenizer() -> PreTrainedTokenizerFast:
    """BPE as in SentencePiece: spaces belong to the next word, unknown characters fall back to byte tokens."""
    alphabet = sorted({*TEXT, "▁"} - {" "} - set("🤣👨👩👧中文ض"))
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    words = ["▁▁", "on", "▁t", "▁th", "re", "▁thre", "▁three", "▁on", "▁one"]
    merges = [("▁", "▁"), ("o", "n"), ("▁", "t"), ("▁t", "h"), ("r", "e"), ("▁th", "re"), ("▁thre", "e"), ("▁", "on")]
    pieces = ["<unk>", "<s>", "</s>", *bytes_, *alphabet, *words]
    model = models.BPE(
        vocab={piece: index for index, piece in enumerate(pieces)},
        merges=[*merges, ("▁on", "e")],
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(piece, special=True) for piece in pieces[:3]])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        clean_up_tokenization_spaces=False,
    )


def tiny_model(family: str = "llama", seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A random causal LM of 8 layers with grouped queries, large enough weights that its logits differ clearly."""
    sizes: dict[str, Any] = {
        "vocab_size": 280,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "bos_token_id": None,
        "eos_token_id": 2,
        "pad_token_id": None,
    }
    if family == "mistral":
        sizes["sliding_window"] = None
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes | changes)).eval()
    for parameter in model.parameters():
        parameter.data.mul_(4)
    return model


def tiny_target(family: str = "llama", seed: int = 0, packed: bool = False, **changes: Any) -> TargetModel:
    """A tiny random model as a target, with the byte-level tokenizer."""
    model = tiny_model(family, seed, **changes)
    return TargetModel.wrap(model, byte_level_tokenizer(), packed=packed, name=f"tiny-{family}")
