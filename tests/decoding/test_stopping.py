"""Where answers end, and that streamed text is the decoded whole, however the tokens arrive."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from transformers import PreTrainedTokenizerFast

from eagle3_demo.decoding.stopping import Detokenizer, Fed, StopWatcher
from tests.tiny_target import TEXT

END, OTHER_END = 2, 1
TEXTS = [
    TEXT,
    "🤣 family: 👨‍👩‍👧 中文 ض",
    "  two leading spaces",
    "def f(x):\n        return  x  .\n\n\n",
    "مرحبا بالعالم، 你好，世界! e\u0301",
    " ",
    "one",
]


@pytest.fixture(params=["byte-level", "sentencepiece"])
def either(
    request: pytest.FixtureRequest, tokenizer: PreTrainedTokenizerFast, sentencepiece_tokenizer: PreTrainedTokenizerFast
) -> PreTrainedTokenizerFast:
    """Both kinds of tokenizer in turn."""
    return tokenizer if request.param == "byte-level" else sentencepiece_tokenizer


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def decode(tokenizer: PreTrainedTokenizerFast, ids: Sequence[int]) -> str:
    return tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)


def watch(
    tokenizer: PreTrainedTokenizerFast, ids: Sequence[int], chunk: int = 3, budget: int = 1000, stop: Sequence[str] = ()
) -> tuple[list[int], list[str], list[Fed]]:
    """Feeds tokens in chunks until the watcher stops; returns ids, text deltas and all answers."""
    watcher = StopWatcher(tokenizer, {END, OTHER_END}, stop, budget)
    answers: list[Fed] = []
    for part in (ids[start : start + chunk] for start in range(0, len(ids), chunk)):
        answers.append(watcher.feed([(token, index % 2 == 0) for index, token in enumerate(part)]))
        if answers[-1].stop_reason:
            break
    deltas = [fed.text for fed in answers]
    if not answers[-1].stop_reason:
        deltas.append(watcher.finish())
    return [token.id for fed in answers for token in fed.tokens], deltas, answers


def joined(answers: list[Fed]) -> str:
    return "".join(token.text for fed in answers for token in fed.tokens)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("chunk", [1, 2, 3, 50])
def test_deltas_join_to_the_decoded_whole(either: PreTrainedTokenizerFast, text: str, chunk: int) -> None:
    ids = encode(either, text)
    kept, deltas, answers = watch(either, ids, chunk)
    assert kept == ids
    assert "".join(deltas) == decode(either, ids) == joined(answers)
    assert not any("\ufffd" in delta for delta in deltas)


def test_a_character_comes_with_the_token_that_completes_it(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = encode(tokenizer, "a中b")
    _, deltas, answers = watch(tokenizer, ids, chunk=1)
    texts = [token.text for fed in answers for token in fed.tokens]
    assert texts == ["a", "", "", "中", "b"] == deltas[:-1]


@pytest.mark.parametrize("seed", range(20))
def test_any_tokens_at_all_join_to_the_decoded_whole(tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
    """Also invalid bytes, control tokens and the replacement character itself."""
    generator = random.Random(seed)
    ids = [generator.choice([0, 3 + generator.randrange(277), 3 + generator.randrange(277)]) for _ in range(60)]
    detokenizer = Detokenizer(tokenizer)
    text = "".join([detokenizer.push(token) for token in ids]) + detokenizer.flush()
    assert text == decode(tokenizer, ids)


def test_control_tokens_have_no_text_and_keep_the_space_that_follows(either: PreTrainedTokenizerFast) -> None:
    words = encode(either, "one two")
    ids = [*words[:1], 0, *words[1:], 0]
    _, deltas, _ = watch(either, ids, chunk=1)
    assert "".join(deltas) == decode(either, ids)


@pytest.mark.parametrize("place", range(6))
@pytest.mark.parametrize("end", [END, OTHER_END])
def test_an_end_token_ends_the_answer_wherever_it_stands(
    tokenizer: PreTrainedTokenizerFast, place: int, end: int
) -> None:
    words = encode(tokenizer, "abcde")
    watcher = StopWatcher(tokenizer, {END, OTHER_END}, (), 100)
    fed = watcher.feed([(token, True) for token in [*words[:place], end, *words[place:]]])
    assert [token.id for token in fed.tokens] == [*words[:place], end]
    assert (fed.text, fed.stop_reason) == ("abcde"[:place], "end_token")
    assert fed.tokens[-1].text == ""


@pytest.mark.parametrize("chunk", [1, 2, 5, 100])
@pytest.mark.parametrize("stop", ["three", " three", "e two", ": o", "eight", "t", "Count: one two three four"])
def test_text_ends_right_before_the_first_stop(either: PreTrainedTokenizerFast, chunk: int, stop: str) -> None:
    text = "Count: one two three four five six seven eight."
    ids = encode(either, text)
    kept, deltas, answers = watch(either, ids, chunk, stop=["nothing like it", stop, "seven"])
    assert "".join(deltas) == text[: min(text.index(stop), text.index("seven"))]
    assert answers[-1].stop_reason == "stop_string"
    assert stop in decode(either, kept) or "seven" in decode(either, kept)
    assert not any(found in decode(either, kept[:-1]) for found in (stop, "seven"))


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
def test_the_cut_does_not_depend_on_the_chunks(either: PreTrainedTokenizerFast, chunk: int) -> None:
    ids = encode(either, TEXT)
    for stop in ("family", "👨", "中", "ï", "\n "):
        one, many = watch(either, ids, 1, stop=[stop]), watch(either, ids, chunk, stop=[stop])
        assert one[0] == many[0]
        assert "".join(one[1]) == "".join(many[1]) == TEXT[: TEXT.index(stop)]


def test_what_may_begin_a_stop_string_is_held_back_and_released(tokenizer: PreTrainedTokenizerFast) -> None:
    watcher = StopWatcher(tokenizer, {END}, ["abcd", "bx"], 100)
    texts = [watcher.feed([(token, False)]).text for token in encode(tokenizer, "zabcz")]
    assert texts == ["z", "", "", "", "abcz"]
    assert watcher.feed([(token, False) for token in encode(tokenizer, "ab")]).text == ""
    assert watcher.finish() == "ab"
    assert watcher.finish() == ""


def test_held_text_comes_out_at_the_end(tokenizer: PreTrainedTokenizerFast) -> None:
    for end, budget, reason in ([END], 100, "end_token"), ([], 2, "length"):
        watcher = StopWatcher(tokenizer, {END}, ["abcd"], budget)
        fed = watcher.feed([(token, False) for token in [*encode(tokenizer, "ab"), *end]])
        assert (fed.text, fed.stop_reason) == ("ab", reason)


def test_repeated_beginnings_of_a_stop_string(tokenizer: PreTrainedTokenizerFast) -> None:
    """A failed beginning may hold the true one inside."""
    _, deltas, answers = watch(tokenizer, encode(tokenizer, "xaabaabaac"), 1, stop=["aabaac"])
    assert "".join(deltas) == "xaab"
    assert answers[-1].stop_reason == "stop_string"


def test_a_stop_inside_one_step_leaves_nothing_after_it(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = [*encode(tokenizer, "abc"), END, *encode(tokenizer, "de")]
    watcher = StopWatcher(tokenizer, {END}, ["bc"], 100)
    fed = watcher.feed([(token, True) for token in ids])
    assert (fed.text, fed.stop_reason) == ("a", "stop_string")
    assert [token.text for token in fed.tokens] == ["a", "b", ""]


@pytest.mark.parametrize(
    "budget,kept,reason",
    [(5, 3, "end_token"), (4, 3, "end_token"), (3, 3, "length"), (2, 2, "length"), (1, 1, "length")],
)
def test_length_wins_only_at_or_before_the_stop(
    tokenizer: PreTrainedTokenizerFast, budget: int, kept: int, reason: str
) -> None:
    watcher = StopWatcher(tokenizer, {END}, (), budget)
    fed = watcher.feed([(token, True) for token in [10, 11, END, 20, 21, 22]])
    assert (len(fed.tokens), fed.stop_reason) == (kept, reason)
    assert watcher.remaining == budget - kept


def test_a_budget_that_ends_inside_a_character_does_not_show_half_of_it(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = encode(tokenizer, "a中")[:2]
    _, deltas, answers = watch(tokenizer, ids, budget=2)
    assert decode(tokenizer, ids) == "a\ufffd"
    assert "".join(deltas) == joined(answers) == "a"


def test_drafted_marks_stay_with_their_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    fed = StopWatcher(tokenizer, {END}, (), 9).feed([(10, True), (11, False), (12, True)])
    assert [(token.id, token.drafted) for token in fed.tokens] == [(10, True), (11, False), (12, True)]
