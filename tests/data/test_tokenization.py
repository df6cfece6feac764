import pytest
from transformers import AutoTokenizer

from hf_electra_rtd.data.tokenization import load_tokenizer, tokenizer_hash, train_wordpiece
from hf_electra_rtd.towers import save_tokenizer
from tests.conftest import VOCABULARY, make_text


@pytest.fixture(scope="module")
def trained():
    return train_wordpiece(make_text(30).splitlines, vocab_size=120)


def test_a_trained_vocabulary_has_the_special_tokens_first_and_knows_its_text(trained):
    assert trained.convert_ids_to_tokens(range(5)) == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert 80 < len(trained) <= 120
    for line in make_text(30).splitlines():
        assert trained.unk_token_id not in trained(line)["input_ids"]
    assert trained.decode(trained("The Old MILL.")["input_ids"]) == "[CLS] the old mill. [SEP]"


def test_training_again_gives_the_same_tokenizer(trained):
    assert tokenizer_hash(train_wordpiece(make_text(30).splitlines, vocab_size=120)) == tokenizer_hash(trained)


def test_a_tokenizer_survives_its_directory_and_its_vocabulary_file(trained, tmp_path):
    save_tokenizer(trained, tmp_path)
    for loaded in (
        load_tokenizer(str(tmp_path)),
        load_tokenizer(str(tmp_path / "vocab.txt")),
        AutoTokenizer.from_pretrained(tmp_path),
    ):
        assert tokenizer_hash(loaded) == tokenizer_hash(trained)
        assert loaded("a river, the Mill!")["input_ids"] == trained("a river, the Mill!")["input_ids"]


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
    path.write_text("\n".join([*words, *extra, "[unused1]"]) + "\n")
    loaded = load_tokenizer(str(path), lowercase)
    assert loaded.tokenize("River") == [expected]


def test_a_file_that_is_no_bert_vocabulary_is_refused(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("[PAD]\n[CLS]\nword\n")
    with pytest.raises(ValueError, match=r"lacks \[UNK\], \[SEP\], \[MASK\]"):
        load_tokenizer(str(path))


def test_a_vocabulary_that_names_a_token_twice_is_refused(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join([*VOCABULARY, "mill", "more"]) + "\n")
    with pytest.raises(ValueError, match="must not name a token twice"):
        load_tokenizer(str(path))


def test_another_vocabulary_or_normalisation_has_another_hash(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(VOCABULARY) + "\n")
    cased, uncased = load_tokenizer(str(path), False), load_tokenizer(str(path), True)
    path.write_text("\n".join([*VOCABULARY, "more"]) + "\n")
    assert len({tokenizer_hash(cased), tokenizer_hash(uncased), tokenizer_hash(load_tokenizer(str(path), True))}) == 3


def test_a_vocabulary_without_room_is_refused():
    with pytest.raises(ValueError, match="no room"):
        train_wordpiece(lambda: ["text"], vocab_size=5)


@pytest.mark.parametrize("name", ["nowhere", "no/such/vocab.txt"])
def test_a_tokenizer_that_is_not_there_is_told_by_its_name(name):
    with pytest.raises(ValueError, match=f"{name} is no tokenizer"):
        load_tokenizer(name)
