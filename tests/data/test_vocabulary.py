"""Choosing the new words of a vocabulary from text."""

import pytest
from transformers import AutoTokenizer, BertTokenizer

from hf_electra_rtd.data.tokenization import SPECIAL_TOKENS, save_tokenizer, tokenizer_hash
from hf_electra_rtd.data.vocabulary import check_extensible, choose_words, extend_tokenizer, old_pieces


LETTERS = "abcdefgilmnoprstu"
OLD = [*SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS), "the", "in", "pul", "##mon", "##ary", "."]
# The words, with their pieces: pulmonary (3) 6 times, stomata (7) 4 times, PUL\u00db (2 without its accent) 9 times,
# epitelio (8) 3 times, and 5 times a word with an unknown character.
TEXT = 6 * ["The pulmonary . "] + 4 * ["the stomata "] + 9 * ["in PUL\u00db"] + 3 * ["epitelio"] + 5 * ["tra\u03a9"]


@pytest.fixture
def small():
    return BertTokenizer(vocab={token: index for index, token in enumerate(OLD)}, do_lower_case=True)


def test_the_words_that_save_the_most_tokens_are_chosen_and_ties_have_an_order(small, monkeypatch):
    monkeypatch.setattr("hf_electra_rtd.data.vocabulary._MOST_KINDS", 3)  # words are counted in several parts
    assert choose_words([(TEXT, 1)], small, 2) == ["stomata", "pulmonary"]  # they save 4 * 6 and 6 * 2 tokens
    equal = [*TEXT, *4 * ["mint"], *4 * ["gulf"]]  # each saves 4 * 3 tokens, as many as pulmonary
    assert choose_words([(equal, 1)], small, 4) == ["stomata", "gulf", "mint", "pulmonary"]
    before, after = (sum(len(tokens.tokenize(line)) for line in TEXT) for tokens in (small, extended_by(small, 2)))
    assert before - after == 4 * 6 + 6 * 2


def extended_by(tokenizer, count):
    return extend_tokenizer(tokenizer, choose_words([(TEXT, 1)], tokenizer, count))


def test_a_text_that_is_read_less_often_counts_less(small):
    equal = 8 * ["gulf"]
    assert choose_words([(equal, 1), (10 * ["mint"], 1)], small, 1) == ["mint"]
    assert choose_words([(equal, 1), (10 * ["mint"], 0.5)], small, 1) == ["gulf"]
    assert choose_words([(6 * ["gulf"], 2), (10 * ["mint"], 1)], small, 1) == ["gulf"]
    # One of the two counts as seen 2.5 times, which is too rare.
    with pytest.raises(ValueError, match="extend_vocabulary"):
        choose_words([(equal, 1), (10 * ["mint"], 0.25)], small, 2)


def test_a_word_that_would_make_a_longer_one_unknown_is_left_out():
    # "trram" has the pieces tr ##r ##am. After a new entry "trra", no piece would be left for the m.
    vocabulary = [*SPECIAL_TOKENS, "t", "tr", "##r", "##a", "##am", "##b"]
    tokenizer = BertTokenizer(vocab={token: index for index, token in enumerate(vocabulary)})
    text = 9 * ["trra"] + 5 * ["trab"]
    assert choose_words([(text, 1)], tokenizer, 1) == ["trra"]
    assert choose_words([([*text, "trram"], 1)], tokenizer, 1) == ["trab"]
    with pytest.raises(ValueError, match="extend_vocabulary"):
        choose_words([([*text, "trram"], 1)], tokenizer, 2)


def test_old_ids_stay_and_new_words_are_whole_entries_behind_them(small, tmp_path):
    extended = extended_by(small, 2)
    assert len(extended) == len(small) + 2
    assert extended.get_vocab().items() >= small.get_vocab().items()
    assert extended.convert_ids_to_tokens([len(small), len(small) + 1]) == ["stomata", "pulmonary"]
    for text in ("The pul in tar .", "STOMA", "[MASK] a.", "tra\u03a9"):
        assert extended(text).input_ids == small(text).input_ids
    # The words are entries of the vocabulary, not added tokens: they apply after the split into words, before endings.
    pieces = "stomata . pulmonary ##s stomata ##p ##u ##l ##mon ##ary"
    assert extended.tokenize("Stomata. pulmonarys stomatapulmonary") == pieces.split()
    assert not set(extended.added_tokens_encoder) - set(SPECIAL_TOKENS)
    pieces = [small.convert_tokens_to_ids(small.tokenize(word)) for word in ("stomata", "pulmonary")]
    assert old_pieces(small, extended) == pieces
    save_tokenizer(extended, tmp_path)
    assert (tmp_path / "vocab.txt").read_text().split() == [*OLD, "stomata", "pulmonary"]
    assert tokenizer_hash(AutoTokenizer.from_pretrained(tmp_path)) == tokenizer_hash(extended)


def test_a_tokenizer_with_added_tokens_is_refused(small):
    small.add_tokens(["stoma"])
    with pytest.raises(ValueError, match="added tokens"):
        check_extensible(small)
