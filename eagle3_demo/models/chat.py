"""Messages to token ids through the target's chat template, with typed control strings kept harmless."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TypedDict

from transformers import GenerationConfig, PreTrainedConfig, PreTrainedTokenizerBase

from eagle3_demo.errors import UserError


class Message(TypedDict):
    """One turn: `role` is `system`, `user` or `assistant`."""

    role: str
    content: str


def encode_chat(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> list[int]:
    """Token ids of a conversation, ready for the assistant's next turn.

    A control string that somebody typed (`<|im_end|>`) is encoded as ordinary text, so that nobody can forge a turn
    (faults B31). Without a chat template the turns are joined by blank lines.

    Raises:
        UserError: the conversation is empty or the template cannot render it.
    """
    if not any(message["content"].strip() for message in messages):
        raise UserError("the prompt is empty; type something to answer")
    if not tokenizer.chat_template:
        text = "\n\n".join(message["content"] for message in messages)
        return list(tokenizer(text, split_special_tokens=True)["input_ids"])
    if not _mentions_control_token(tokenizer, messages):
        return list(tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=False))
    return _encode_around_contents(tokenizer, messages)


def _mentions_control_token(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> bool:
    control = [token.content for token in tokenizer.added_tokens_decoder.values()]
    return any(token in message["content"] for message in messages for token in control)


def _encode_around_contents(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> list[int]:
    """Renders the template with stand-ins, then encodes template and contents apart."""
    marks = [f"content{secrets.token_hex(12)}" for _ in messages]
    stand_ins = [{"role": message["role"], "content": mark} for message, mark in zip(messages, marks, strict=True)]
    rest = tokenizer.apply_chat_template(stand_ins, add_generation_prompt=True, tokenize=False)
    ids: list[int] = []
    for message, mark in zip(messages, marks, strict=True):
        before, found, rest = rest.partition(mark)
        if not found:
            raise UserError(
                "the prompt holds a control token of this model and its chat template does not repeat the prompt "
                "unchanged; remove the control token from the prompt"
            )
        ids += tokenizer(before, add_special_tokens=False)["input_ids"]
        ids += tokenizer(message["content"], add_special_tokens=False, split_special_tokens=True)["input_ids"]
    return ids + list(tokenizer(rest, add_special_tokens=False)["input_ids"])


def end_tokens(
    config: PreTrainedConfig, generation_config: GenerationConfig | None, tokenizer: PreTrainedTokenizerBase
) -> frozenset[int]:
    """Every id that ends an answer: config, generation config, tokenizer and chat template together (faults B33)."""
    ids: set[int] = set()
    for source in (config, generation_config, tokenizer):
        value = getattr(source, "eos_token_id", None)
        ids.update(value if isinstance(value, (list, tuple)) else [] if value is None else [value])
    ids.update(_template_end_tokens(tokenizer))
    return frozenset(ids)


def _template_end_tokens(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """The control token that the template writes right after an assistant's answer, if it writes one."""
    if not tokenizer.chat_template:
        return set()
    mark = "answer" + secrets.token_hex(12)
    turns = [{"role": "user", "content": "question"}, {"role": "assistant", "content": mark}]
    after = tokenizer.apply_chat_template(turns, tokenize=False).partition(mark)[2]
    ids = tokenizer(after, add_special_tokens=False)["input_ids"]
    return {ids[0]} if ids and ids[0] in tokenizer.added_tokens_decoder else set()
