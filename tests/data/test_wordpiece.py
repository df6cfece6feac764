import gzip
import random
import re
import unicodedata
from pathlib import Path

import pytest
from transformers import AutoTokenizer, BertTokenizer, ElectraConfig

from hf_electra_rtd import train_tokenizer
from hf_electra_rtd.data import wordpiece
from hf_electra_rtd.data.packing import WORD_START
from hf_electra_rtd.data.tokenization import load_tokenizer, save_tokenizer, tokenizer_hash
from hf_electra_rtd.data.wordpiece import train_wordpiece
from hf_electra_rtd.data.words import LineEncoder
from tests.conftest import make_text


def read_fixture(name):
    text = (Path(__file__).parents[1] / "fixtures" / name).read_text(encoding="utf-8")
    return {part.splitlines()[0]: part.splitlines()[1:] for part in text.split("# ")[1:]}


LANGUAGES = read_fixture("languages.txt")
SYLLABLES = [chr(code) for code in range(0xAC00, 0xAC00 + 60 * 28, 28)]  # of Korean
HELD_OUT = read_fixture("languages_held_out.txt")  # languages with few letters use only those of LANGUAGES here
PROTEIN = ["".join("MKVLAADTGE"[(row * place * place + place) % 10] for place in range(240)) for row in range(1, 40)]


def squeezed(text):
    return re.sub(r"\s", "", text)


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_vocabulary_gives_the_text_back_and_stock_transformers_gives_the_same_ids(language, tmp_path):
    lines = LANGUAGES[language]
    trained = train_wordpiece(lambda: lines)
    ElectraConfig().save_pretrained(tmp_path)  # ELECTRA models have their own tokenizer class
    save_tokenizer(trained, tmp_path)
    stock = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer_hash(load_tokenizer(str(tmp_path))) == tokenizer_hash(stock) == tokenizer_hash(trained)
    lower = train_wordpiece(lambda: lines, lowercase=True)
    for line in lines:
        ids = stock(line)["input_ids"]
        assert squeezed(stock.decode(ids, skip_special_tokens=True)) == squeezed(line)
        assert stock.unk_token_id not in ids
        decomposed = unicodedata.normalize("NFD", line)
        assert stock(decomposed)["input_ids"] == ids
        small = squeezed(lower.decode(lower(line)["input_ids"], skip_special_tokens=True))
        assert small.casefold() == squeezed(line).casefold()
        assert small == small.lower()
    types = stock(lines[0], lines[1])["token_type_ids"]
    assert types == [0] * len(stock(lines[0])["input_ids"]) + [1] * (len(stock(lines[1])["input_ids"]) - 1)


# The largest share of unknown tokens in languages with more characters than 15 sentences can show.
MOST_UNKNOWN = {"Korean": 0.16, "Japanese": 0.06, "Chinese": 0.17}


@pytest.mark.parametrize("language", LANGUAGES)
def test_held_out_sentences_come_back_but_for_words_with_characters_never_seen(language):
    trained = train_wordpiece(lambda: LANGUAGES[language])
    num_unknown = 0
    num_tokens = 0
    for line in HELD_OUT[language]:
        assert line not in LANGUAGES[language]
        ids = trained(line, add_special_tokens=False)["input_ids"]
        num_unknown += ids.count(trained.unk_token_id)
        num_tokens += len(ids)
        decoded = re.escape(squeezed(trained.decode(ids))).replace(re.escape("[UNK]"), ".+")
        assert re.fullmatch(decoded, squeezed(line))
    assert num_unknown <= MOST_UNKNOWN.get(language, 0) * num_tokens


def test_of_characters_that_are_as_frequent_those_with_lower_numbers_have_room():
    characters = [chr(0x4E00 + number) for number in range(600)]
    trained = train_wordpiece(lambda: ["".join(reversed(characters)), "".join(characters[500:])], vocab_size=400)
    expected = {*characters[500:], *characters[:200]}  # three quarters of the vocabulary are for characters
    assert expected == {token for token in trained.get_vocab() if token in characters}


def test_after_a_megabyte_of_chinese_about_one_token_in_a_hundred_of_other_articles_is_unknown():
    path = Path(__file__).parents[2] / "examples" / "data" / "zhwiki_excerpts.txt.gz"
    lines = gzip.decompress(path.read_bytes()).decode("utf-8").splitlines()
    cut = len(lines) * 9 // 10
    trained = train_wordpiece(lambda: lines[:cut])
    tokens = [token for line in lines[cut:] for token in trained.tokenize(line)]
    assert tokens.count("[UNK]") < 0.011 * len(tokens)


@pytest.mark.parametrize(
    ("lines", "choices", "expected", "is_bert"),
    [
        ("English", {}, "the cafe", True),
        ("English", {"lowercase": False}, "The Café", False),
        ("English", {"strip_accents": False}, "the café", False),
        ("German", {}, "The Café", False),
        ("German", {"lowercase": True}, "the café", False),
        ("German", {"lowercase": True, "strip_accents": True}, "the cafe", True),
        ("German", {"strip_accents": True}, "The Cafe", True),
        ("protein", {}, "The Café", False),  # its words are too long for a `BertTokenizer`
    ],
)
def test_case_and_marks_are_folded_for_english_or_as_told(lines, choices, expected, is_bert):
    text = {"English": make_text(30).splitlines(), "German": LANGUAGES["German"], "protein": PROTEIN}[lines]
    tokenizer = train_wordpiece(lambda: text, 120, **choices)
    assert tokenizer.backend_tokenizer.normalizer.normalize_str("The Café") == expected
    assert isinstance(tokenizer, BertTokenizer) == is_bert


def test_text_without_spaces_has_no_unknown_words():
    tokenizer = train_wordpiece(lambda: PROTEIN, 120)
    for line in PROTEIN:
        ids = tokenizer(line, add_special_tokens=False)["input_ids"]
        assert tokenizer.unk_token_id not in ids
        assert 3 <= len(ids) < 240
        assert squeezed(tokenizer.decode(ids)) == line


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ab \u200bcd", "ab cd"),
        ("so\u00adft\ufeff", "soft"),
        ("رح\u200cم", "رح\u200cم"),
        ("क्\u200dष", "क्\u200dष"),
    ],
)
def test_joiners_stay_and_what_is_invisible_goes(text, expected):
    tokenizer = train_wordpiece(lambda: [*LANGUAGES["German"], expected])
    assert squeezed(tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True)) == squeezed(expected)


def test_the_size_follows_the_text_and_its_characters(monkeypatch):
    monkeypatch.setattr(wordpiece, "_SIZES", ((2000, 80), (10_000_000, 120)))
    monkeypatch.setattr(wordpiece, "_LARGEST", 400)
    english = make_text(200).splitlines()
    assert len(train_wordpiece(lambda: english[:10])) <= 80 < len(train_wordpiece(lambda: english)) <= 120
    chinese = train_wordpiece(lambda: LANGUAGES["Chinese"])  # it has more than 60 characters
    assert 120 < len(chinese) <= 400
    assert len(train_wordpiece(lambda: english, 90)) <= 90
    with pytest.raises(ValueError, match="empty"):
        train_wordpiece(lambda: ["", " "])
    with pytest.raises(ValueError, match="vocab_size=5"):
        train_wordpiece(lambda: english, 5)


def test_characters_that_are_rare_leave_room_for_words():
    lines = [*make_text(400).splitlines(), *"一丁七万丈三上下"]
    tokenizer = train_wordpiece(lambda: lines, 160)
    assert not any(token >= "一" for token in tokenizer.get_vocab())
    assert tokenizer.tokenize("the river") == ["the", "river"]


def test_letters_inside_words_count_twice_so_that_words_have_room():
    draw = random.Random(0)
    lines = [" ".join("".join(draw.choices(SYLLABLES, k=2)) for _ in range(20)) for _ in range(100)]
    vocabulary = train_wordpiece(lambda: lines, 100).get_vocab()
    assert len(vocabulary) <= 100
    assert sum(len(token.removeprefix("##")) > 1 and "[" not in token for token in vocabulary) >= 15


@pytest.mark.parametrize(
    ("language", "line", "words"),
    [
        ("Thai", "วันดีๆ เช้านี้", ["วั", "น", "ดี", "ๆ", "เ", "ช้", "า", "นี้"]),
        ("Japanese", "カフェで、東京へ。", ["カ", "フ", "ェ", "で", "、", "東", "京", "へ", "。"]),
        ("Korean", "서울은 도시", ["서울은", "도시"]),
    ],
)
def test_words_begin_at_spaces_and_at_each_character_of_scripts_without_them(language, line, words):
    tokenizer = train_wordpiece(lambda: [*LANGUAGES[language], line])
    tokens, _ = LineEncoder(tokenizer, None)([line])
    found = []
    for token in tokens.tolist():
        text = tokenizer.convert_ids_to_tokens(token % WORD_START)
        if token >= WORD_START:
            found.append(text)
        else:
            found[-1] += text.removeprefix("##")
    assert found == words


def test_a_tokenizer_is_trained_from_files_texts_and_datasets_alike(tmp_path):
    from datasets import Dataset

    texts = LANGUAGES["Turkish"]
    (tmp_path / "a.txt").write_text("\n\n".join(texts), encoding="utf-8")
    sources = [tmp_path / "a.txt", {"text": texts}, Dataset.from_dict({"text": texts, "id": range(15)})]
    made = {tokenizer_hash(train_tokenizer(source, 200, disable_progress=True)) for source in sources}
    assert made == {tokenizer_hash(train_wordpiece(lambda: texts, 200))}
