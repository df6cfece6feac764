import json
import unicodedata

import pytest
from transformers import BertTokenizer

from hf_electra_rtd.data.tokenization import (
    check_known,
    count_unknown,
    load_tokenizer,
    save_tokenizer,
    tokenizer_hash,
)
from hf_electra_rtd.data.wordpiece import train_wordpiece
from tests.conftest import VOCABULARY, make_text


@pytest.fixture(scope="module")
def trained():
    return train_wordpiece(make_text(30).splitlines, vocab_size=120)


def test_unknown_tokens_are_counted_without_special_ones_warned_of_and_refused(trained, caplog):
    ids = trained("the old мельница .")["input_ids"]
    assert count_unknown(trained, ids) == (1, 4)
    assert check_known("a.txt", 1, 100) == 0.01
    assert not caplog.text
    assert check_known("a.txt", 1, 2) == 0.5
    assert "a.txt" in caplog.text
    with pytest.raises(ValueError, match=r"a\.txt"):
        check_known("a.txt", 51, 100)
    assert check_known("a.txt", 51, 100, refuses=False) == 0.51
    assert check_known("nothing", 0, 0) == 0


@pytest.mark.parametrize(
    ("extra", "lowercase", "expected"),
    [
        ([], None, "[UNK]"),
        (["\u211d", "<S>"], None, "river"),
        (["River"], None, "River"),
        (["River"], True, "river"),
        ([], False, "[UNK]"),
    ],
)
def test_case_is_read_off_the_vocabulary_or_as_told(tmp_path, extra, lowercase, expected):
    words = [token for token in VOCABULARY if token != "river" or expected == "river"]
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join([*words, *extra, "[unused1]"]) + "\n", encoding="utf-8-sig")  # with a byte order mark
    loaded = load_tokenizer(str(path), lowercase)
    assert loaded.tokenize("River") == [expected]


@pytest.mark.parametrize("word", ["mühle", "हिन्दी", "한국어"])
def test_marks_are_stripped_unless_a_token_has_one(tmp_path, word):
    bare = "".join(sign for sign in unicodedata.normalize("NFD", word) if unicodedata.category(sign) != "Mn")
    for words, expected in (([word], word), ([word, bare], word), ([bare], bare)):
        (tmp_path / "vocab.txt").write_text("\n".join([*VOCABULARY, *words]) + "\n", encoding="utf-8")
        assert load_tokenizer(str(tmp_path / "vocab.txt")).tokenize(word) == [expected]
    assert load_tokenizer(str(tmp_path / "vocab.txt"), strip_accents=False).tokenize(word) == ["[UNK]"]


def test_what_changes_ids_changes_the_hash(tmp_path):
    def load(*tokens, lowercase=True):
        (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
        return load_tokenizer(str(tmp_path / "vocab.txt"), lowercase, strip_accents=True)

    def with_accents(tokenizer):
        return BertTokenizer(vocab=tokenizer.get_vocab(), do_lower_case=True, strip_accents=False)

    plain = load(*VOCABULARY)
    letters = load(*VOCABULARY[:5], "e", "é", "E", "##e")
    different = [
        plain,
        load(*VOCABULARY, lowercase=False),
        load(*VOCABULARY, "café"),
        load(*VOCABULARY[:-2], *VOCABULARY[:-3:-1]),
        letters,
        with_accents(letters),
    ]
    assert len(set(map(tokenizer_hash, different))) == 6
    # Nothing in this vocabulary has an accent: the ids are the same.
    assert plain("café river")["input_ids"] == with_accents(plain)("café river")["input_ids"]


@pytest.mark.parametrize(
    ("name", "tokens", "message"),
    [
        ("no/such/vocab.txt", None, "no/such/vocab.txt"),
        ("words.txt", ["[PAD]", "[CLS]", "word"], r"\[UNK\], \[SEP\], \[MASK\]"),
        ("vocab.txt", [*VOCABULARY, "mill", "more"], "vocab.txt"),  # names `mill` twice
    ],
)
def test_what_is_no_tokenizer_is_refused(tmp_path, monkeypatch, name, tokens, message):
    monkeypatch.chdir(tmp_path)
    if tokens:
        (tmp_path / name).write_text("\n".join(tokens) + "\n")
    with pytest.raises(ValueError, match=message):
        load_tokenizer(name)


def test_a_directory_without_a_usable_tokenizer_is_refused_by_name(tokenizer, tmp_path):
    save_tokenizer(tokenizer, tmp_path)
    config = tmp_path / "tokenizer_config.json"
    whole = config.read_text()
    config.write_text(json.dumps(json.loads(whole) | {"cls_token": "[UNK]"}))
    with pytest.raises(ValueError, match="cls_token"):
        load_tokenizer(str(tmp_path))
    for name in ("tokenizer.json", "vocab.txt"):  # then `transformers` makes a tokenizer of special tokens only
        (tmp_path / name).unlink()
    config.write_text(whole)
    with pytest.raises(ValueError, match=str(tmp_path)):
        load_tokenizer(str(tmp_path))


def test_truncation_and_padding_change_no_hash_and_are_not_saved(tokenizer, tmp_path):
    other = BertTokenizer(vocab=tokenizer.get_vocab(), do_lower_case=True, model_max_length=64)
    other("the old mill", truncation=True, max_length=4, padding="max_length")
    assert tokenizer_hash(other) == tokenizer_hash(tokenizer)
    save_tokenizer(other, tmp_path)
    saved = json.loads((tmp_path / "tokenizer.json").read_text())
    assert saved["truncation"] is saved["padding"] is None
