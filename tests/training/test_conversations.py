"""Conversations: the target's earlier answers stay in view, and only what it wrote is marked."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from eagle3_demo.models.chat import encode_chat
from eagle3_demo.training.answers import Answer
from eagle3_demo.training.batches import read_corpus
from eagle3_demo.training.conversations import Conversations
from eagle3_demo.training.corpus import CorpusWriter, generate_corpus
from eagle3_demo.training.manifest import CorpusSettings, corpus_manifest, target_identity

END = 2
TURNS = [("one", "two", "three"), ("alone",)]


@pytest.fixture
def conversations(tokenizer: PreTrainedTokenizerBase) -> Conversations:
    return Conversations(tokenizer, TURNS, frozenset({END}), max_prompt_tokens=200)


def ended(conversations: Conversations, text: str, index: int = 0) -> Answer:
    ids = list(conversations.tokenizer(text)["input_ids"])
    return Answer(index, 0.6, conversations[index], [*ids, END])


def test_a_next_turn_is_what_serving_would_send(conversations: Conversations) -> None:
    following = conversations.next_turn(ended(conversations, "five six"))
    assert following is not None
    messages = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "five six"},
        {"role": "user", "content": "two"},
    ]
    assert following.prompt == encode_chat(conversations.tokenizer, messages)
    marked = [token for token, mark in zip(following.prompt, following.earlier, strict=True) if mark]
    assert marked == [*conversations.tokenizer("five six")["input_ids"], END]
    assert following.temperature == 0.6

    following.answer = [*conversations.tokenizer("seven")["input_ids"], END]
    last = conversations.next_turn(following)
    assert last is not None and last.turn == 2 and sum(last.earlier) == sum(following.marks)
    last.answer = [END]
    assert conversations.next_turn(last) is None
    assert conversations.next_turn(ended(conversations, "x", index=1)) is None


def test_a_conversation_ends_where_the_template_gives_other_tokens(conversations: Conversations) -> None:
    """An answer cut inside a character, a control token inside it, or no room for another turn."""
    tokenizer = conversations.tokenizer
    cut = Answer(0, 0.0, conversations[0], list(tokenizer("🤣")["input_ids"])[:1])
    assert conversations.next_turn(cut) is None
    control = ended(conversations, "five")
    control.answer.insert(0, 1)
    assert conversations.next_turn(control) is None
    conversations.max_prompt_tokens = len(conversations[0]) + 3
    assert conversations.next_turn(ended(conversations, "five")) is None


def test_played_conversations_are_marked_turn_by_turn(
    reference: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    turns = [(f"one {n}", "two", "three") for n in range(6)]
    settings = CorpusSettings(temperatures=(0.0,), max_new_tokens=6, max_prompt_tokens=150, batch_size=2)
    ends = frozenset(range(0, 280, 3))
    played = Conversations(tokenizer, turns, ends, settings.max_prompt_tokens)
    writer = CorpusWriter(tmp_path, corpus_manifest(target_identity("tiny", reference, tokenizer), turns, settings))
    list(generate_corpus(reference, played, ends, writer, settings, 10**6, next_turn=played.next_turn))
    corpus = read_corpus(tmp_path)
    found = [s for group in (corpus.training, corpus.held_out) for shard in group for s in shard]
    assert len(found) == len(turns)
    for sequence in found:
        ids = sequence.tokens.astype(int).tolist()
        first = next(n for n, mark in enumerate(sequence.answer) if mark)
        assert tuple(ids[:first]) in {tuple(played[n]) for n in range(len(turns))}
        assert sequence.answer[-1]
