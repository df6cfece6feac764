"""Finding the words of a text and their tokens, and cutting long texts."""

# ruff: noqa: RUF001  # punctuation of Chinese

import random
from itertools import pairwise

import pytest
from transformers import BertTokenizer

from hf_electra_rtd.data.tokenization import SPECIAL_TOKENS
from hf_electra_rtd.data.units import WORD, cut_text, find_units, is_word, may_change
from hf_electra_rtd.data.words import is_inside
from tests.families_for_tests import make_tokenizer


CHARACTERS = "今天新心情很好坏我们去看电影店。，！"


@pytest.fixture(scope="module")
def chinese():
    words = [*SPECIAL_TOKENS, *CHARACTERS, "the", "river", "mill", "##s", "horse"]
    return BertTokenizer(vocab={word: index for index, word in enumerate(words)}, do_lower_case=True)


@pytest.fixture(scope="module")
def byte_level():
    return make_tokenizer("byte-level BPE, <s>")


def test_vowel_signs_and_accents_belong_to_the_letter_before_them():
    assert WORD.findall("किताब पढ़ो 你好 don't كِتَاب") == ["किताब", "पढ़ो", "你", "好", "don", "t", "كِتَاب"]
    assert is_word("می\u200cخواهم")
    assert [is_word(text) for text in ("किताब", "mill", "好", "", "a1", "\u0301")] == [True] * 3 + [False] * 3
    assert may_change("यह किताब", "किताब")
    assert [is_inside("किताब", place) for place in range(6)] == [False, True, True, True, True, False]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The  mills, 今天iPhone好", ["The", "mills", ",", "今", "天", "iPhone", "好"]),
        ("the river 😀 xyz", ["the", "river", "😀", "xyz"]),
        ("the mi\u0301ll\u0301 horse", ["the", "mi\u0301ll\u0301", "horse"]),
    ],
)
@pytest.mark.parametrize("name", ["chinese", "byte_level"])
def test_words_are_pieces_of_the_text_whatever_the_tokens_look_like(name, text, words, request):
    tokenizer = request.getfixturevalue(name)
    encoding = tokenizer([text], split_special_tokens=True).encodings[0]
    units = find_units(text, encoding)
    found = [text[unit.start : unit.stop] for unit in units]
    assert "".join(found) == "".join(text.split())
    if name == "chinese":
        assert found == words
    else:  # Chinese is cut between its tokens
        assert [word for word in found if word.isascii()] == [word for word in words if word.isascii()]
    assert all(unit.first >= before.last for before, unit in pairwise(units))  # spaces may be tokens
    assert (units[0].first, units[-1].last) == (1, len(encoding) - 1)


def test_pieces_are_the_text_and_end_after_sentences(chinese, byte_level):
    draw = random.Random(0)
    for tokenizer in (chinese, byte_level):
        for length in (0, 1, 30, 200):
            text = "".join(draw.choices(CHARACTERS + "  the", k=length))
            spans = cut_text(text, tokenizer, 12)
            assert "".join(text[start:stop] for start, stop in spans) == text
            if tokenizer is chinese:
                assert max(len(tokenizer(text[start:stop])["input_ids"]) for start, stop in spans) <= 12
    text = "我们去看电影。今天很好，心情很好！我们去看电影"
    assert [text[start:stop] for start, stop in cut_text(text, chinese, 13)] == [
        "我们去看电影。", "今天很好，心情很好！", "我们去看电影",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="max_length"):
        cut_text(text, chinese, 2)


@pytest.mark.parametrize("sign", "؛።॥")
def test_a_piece_ends_at_the_signs_of_other_scripts(sign, byte_level):
    text = f"the river{sign} the river mill and the horse" * 2
    assert cut_text(text, byte_level, 13)[0] == (0, text.index(sign) + 1)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("the river " + "😂" * 20, ["the river", " " + "😂" * 20]),  # the last unit is longer than a piece
        ("the river" + " " * 40, ["the river"]),
        ("the" + " the" * 10 + " " * 9 + "the the the the", ["the" + " the" * 10, " " * 9 + "the the the", " the"]),
    ],
    ids=["a long last word", "spaces at the end", "spaces before a piece"],
)
def test_tokens_of_spaces_count_and_a_last_word_may_be_longer_than_a_piece(byte_level, text, pieces):
    assert [text[start:stop] for start, stop in cut_text(text, byte_level, 13)] == pieces


def test_marks_of_sentencepiece_count():
    tokenizer = make_tokenizer("Unigram, <s>")
    text = "水流" * 30
    lengths = [len(tokenizer(text[start:stop])["input_ids"]) for start, stop in cut_text(text, tokenizer, 12)]
    assert max(lengths) == 12
