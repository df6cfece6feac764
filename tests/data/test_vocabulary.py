"""Words for a vocabulary, chosen from text."""

import pytest
from transformers import AutoTokenizer, BertTokenizer

from hf_electra_rtd.data.tokenization import SPECIAL_TOKENS, save_tokenizer, tokenizer_hash
from hf_electra_rtd.data.vocabulary import check_extensible, choose_words, extend_tokenizer, old_pieces


LETTERS = "abcdefgilmnoprstu"
OLD = [*SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS), "the", "in", "pul", "##mon", "##ary", "."]
# Words seen 6 times in 3 pieces, 4 in 7, 9 in 2 (its accent goes), 3 in 8, and 5 times one without pieces.
TEXT = 6 * ["The pulmonary . "] + 4 * ["the stomata "] + 9 * ["in PUL\u00db"] + 3 * ["epitelio"] + 5 * ["tra\u03a9"]


@pytest.fixture
def small():
    return BertTokenizer(vocab={token: index for index, token in enumerate(OLD)}, do_lower_case=True)


def test_the_words_that_save_the_most_tokens_are_chosen_and_ties_have_an_order(small, monkeypatch):
    monkeypatch.setattr("hf_electra_rtd.data.vocabulary._MOST_KINDS", 3)  # in several parts
    assert choose_words([(TEXT, 1)], small, 2) == ["stomata", "pulmonary"]  # 4 * 6 and 6 * 2
    equal = [*TEXT, *4 * ["mint"], *4 * ["gulf"]]  # 4 * 3 each, as much as the second
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
    # One of the two is seen 2.5 times.
    with pytest.raises(ValueError, match="extend_vocabulary"):
        choose_words([(equal, 1), (10 * ["mint"], 0.25)], small, 2)


def test_a_word_that_would_make_a_longer_one_unknown_is_left_out():
    # "trram" has the pieces tr ##r ##am: behind "trra" there would be none for the m.
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
    # In the vocabulary itself, not beside it: after the splitting into words, and before endings.
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
