"""Conversations with the target: the user's turns are given, the target answers each with all before it in view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from transformers import PreTrainedTokenizerBase

from eagle3_demo.models.chat import Message, encode_chat
from eagle3_demo.training.answers import Answer
from eagle3_demo.training.prompts import Turns


class Conversations(Sequence[list[int]]):
    """Token ids of every conversation's first turn, encoded when asked for, and of the turns that follow.

    Args:
        tokenizer: of the target; its chat template is the one that serving uses.
        turns: what the user says in each conversation.
        end_tokens: ids that end an answer.
        max_prompt_tokens: a conversation ends before a turn that would be longer, the answers before it included.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        turns: Sequence[Turns],
        end_tokens: frozenset[int],
        max_prompt_tokens: int,
    ) -> None:
        self.tokenizer, self.turns = tokenizer, turns
        self.end_tokens, self.max_prompt_tokens = end_tokens, max_prompt_tokens

    def __len__(self) -> int:
        return len(self.turns)

    @overload
    def __getitem__(self, index: int) -> list[int]: ...
    @overload
    def __getitem__(self, index: slice) -> list[list[int]]: ...
    def __getitem__(self, index: int | slice) -> list[int] | list[list[int]]:
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        return encode_chat(self.tokenizer, [{"role": "user", "content": self.turns[index][0]}])

    def next_turn(self, answer: Answer) -> Answer | None:
        """The user's next turn after an ended answer, ready to be answered; None where the conversation ends.

        It ends as well where the template does not give back exactly the tokens that the target wrote: what the
        target would then see is not what it said.
        """
        turns = self.turns[answer.prompt_index]
        if answer.turn + 1 >= len(turns):
            return None
        said = [*answer.said, self._text(answer.answer)]
        messages: list[Message] = []
        for question, reply in zip(turns, said, strict=False):
            messages += [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]
        messages.append({"role": "user", "content": turns[answer.turn + 1]})
        ids = encode_chat(self.tokenizer, messages)
        written = answer.tokens
        if len(ids) > self.max_prompt_tokens or ids[: len(written)] != written:
            return None
        earlier = answer.marks + [False] * (len(ids) - len(written))
        return Answer(
            answer.prompt_index, answer.temperature, ids, earlier=earlier, said=tuple(said), turn=answer.turn + 1
        )

    def _text(self, answer: list[int]) -> str:
        ids = answer[:-1] if answer[-1] in self.end_tokens else answer
        return self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
