import re
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import pre_tokenizers
from transformers import BertTokenizer

from hf_electra_rtd import DataCollatorForRTD, SequenceStream
from hf_electra_rtd.data import words
from hf_electra_rtd.data.arguments import DataArguments, PreparationArguments
from hf_electra_rtd.data.collator import MASKING
from hf_electra_rtd.data.packing import WORD_START
from hf_electra_rtd.data.sequences import get_sequences
from hf_electra_rtd.data.tokenization import SPECIAL_TOKENS
from hf_electra_rtd.data.words import LineEncoder
from hf_electra_rtd.ops import IGNORED
from tests.conftest import blocks_of_text, make_text
from tests.families_for_tests import TOKENIZERS, make_tokenizer


_TEXT = make_text(40, seed=1).replace(" .", ".").replace(" !", "!")
_TEXT = _TEXT.replace("river", "rivers").replace("went", "saws").replace("said", "milling")
LINES = _TEXT.split("\n")
CHINESE = "我来到北京清华大学\n他来到了网易杭研大厦\n"  # SEGMENTED is from jieba's documentation
SEGMENTED = [["我", "来到", "北京", "清华大学"], ["他", "来到", "了", "网易", "杭研", "大厦"]]


@pytest.fixture(scope="module")
def tokenizers():
    of_lines = make_tokenizer("Unigram, [CLS]")
    of_lines.backend_tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    made = {kind.partition(",")[0]: make_tokenizer(kind) for kind in TOKENIZERS}
    return {**made, "Unigram of whole lines": of_lines}


def chinese(*more):
    return BertTokenizer(vocab={token: i for i, token in enumerate([*SPECIAL_TOKENS, *sorted({*CHINESE}), *more])})


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("WordPiece", r"\w+|[^\w\s]"),
        ("byte-level BPE", r" ?\w+| ?[^\w\s]+"),
        ("Unigram", r" ?\S+"),
        ("Unigram of whole lines", r" ?\S+"),
    ],
)
def test_the_bits_of_a_block_file_are_the_words_of_the_text(tmp_path, tokenizers, name, word):
    tokenizer = tokenizers[name]
    wanted = []
    ids = []
    for line in filter(None, LINES):
        begins = {match.start() for match in re.finditer(word, line)}
        encoded = tokenizer(line, add_special_tokens=False, return_offsets_mapping=True)
        ids += encoded["input_ids"]
        wanted += [start in begins for start, _ in encoded["offset_mapping"]]
    assert 0.1 < np.mean(wanted) < 0.95
    file = blocks_of_text(tmp_path, "\n".join(LINES), tokenizer)
    batch = file.read(np.arange(len(file)))
    special = np.isin(batch.ids, [tokenizer.cls_token_id, tokenizer.sep_token_id])
    assert batch.word_starts[special].all()
    packed = batch.word_starts[~special].tolist()
    assert len(wanted) - 32 < len(packed)
    assert batch.ids[~special].tolist() == ids[: len(packed)]
    assert packed == wanted[: len(packed)]
    assert file.header.word_segmenter == "tokenizer"


def test_each_token_of_a_script_without_spaces_is_a_word(tokenizers):
    tokenizer = tokenizers["Unigram"]
    line = "水流水流水 saws"
    begins = LineEncoder(tokenizer, None)([line])[0] >= WORD_START
    offsets = tokenizer(line, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    chinese = np.array([start < 5 for start, _ in offsets])
    assert chinese.sum() >= 3
    assert begins[chinese].all()
    assert not begins[~chinese].all()


def test_the_original_packing_cuts_the_bits_as_it_cuts_the_ids(tmp_path, tokenizer):
    file = blocks_of_text(tmp_path, "\n".join(LINES), tokenizer, packing="original")
    pieces = [index for token, index in tokenizer.get_vocab().items() if token.startswith("##")]
    batch = file.read(np.arange(len(file)))
    real = np.arange(32) < batch.lengths[:, None]
    assert not real.all()
    np.testing.assert_array_equal(batch.word_starts[real], ~np.isin(batch.ids, pieces)[real])


def test_chinese_words_are_those_of_jieba_and_threads_change_nothing(tmp_path):
    tokenizer = chinese("##er", "numb")
    text = CHINESE * 9 + "numb er number 北京\n"
    made = [blocks_of_text(tmp_path / str(n), text, tokenizer, 10, word_segmenter="jieba", num_proc=n) for n in (1, 3)]
    assert Path(made[0].path).read_bytes() == Path(made[1].path).read_bytes()
    assert re.fullmatch(r"jieba \d+\.\d+\.\d+", made[0].header.word_segmenter)
    encoder = words.LineEncoder(tokenizer, words.get_segmenter("jieba")[0])
    tokens, lengths = encoder(["numb number北京", *CHINESE.split()])
    expected = [[1, 1, 0, 1, 0], *([int(i == 0) for word in line for i in range(len(word))] for line in SEGMENTED)]
    assert (tokens >= WORD_START).tolist() == [bit > 0 for bit in chain(*expected)]
    assert lengths.tolist() == [5, 9, 10]
    by_character = blocks_of_text(tmp_path / "plain", text, tokenizer, 10)
    assert by_character.header.word_segmenter == "tokenizer"
    assert by_character.header.sha256 != made[0].header.sha256


def test_bytes_of_a_character_and_spaces_of_a_piece_are_one_word(tokenizers):
    def begins(segmenter, *lines):
        tokens, lengths = words.LineEncoder(tokenizers["byte-level BPE"], segmenter)([*lines])
        return (tokens >= WORD_START).tolist(), lengths.tolist()

    assert begins(partial(re.findall, r"\S\S?"), "北") == ([True, False, False], [3])
    assert begins(partial(re.findall, r"\s|\S+"), "", "a a Q a") == ([True] * 5, [0, 5])  # one piece is a space
    assert begins(str.split, "", "a a Q a") == ([True] * 5, [0, 5])  # text that is left out begins a word, too
    assert begins(None, "knew", "", "knew") == ([True, True], [1, 0, 1])
    with pytest.raises(ValueError, match="'mill'"):  # the words are those of another text
        begins(lambda line: ["the", "mill"], "the river")


def test_what_a_function_segmented_is_never_taken_for_what_another_would(tmp_path):
    halves, quarters = (partial(re.findall, pattern) for pattern in ("..", "...."))
    made = [
        blocks_of_text(tmp_path, CHINESE * 9, chinese(), 10, word_segmenter=each)
        for each in (halves, quarters, halves)
    ]
    assert made[0].header.word_segmenter == made[1].header.word_segmenter
    assert made[0].header.sha256 == made[2].header.sha256 != made[1].header.sha256
    assert words.get_segmenter(make_text)[1] == "tests.conftest.make_text"


@pytest.mark.parametrize("kind", sorted(MASKING))
def test_masks_are_a_function_of_seed_and_position(tmp_path, tokenizers, kind):
    tokenizer = tokenizers["byte-level BPE"]
    stream = SequenceStream(blocks_of_text(tmp_path, "\n".join(LINES), tokenizer), seed=2)
    collator = DataCollatorForRTD(tokenizer, masking=kind, seed=2)
    sequences = stream.__getitems__([3, 9, 4])
    together = collator(sequences)
    other_order = collator(replace(sequences, ids=np.asfortranarray(sequences.ids)))  # another order of memory
    assert all(torch.equal(other_order[name], tensor) for name, tensor in together.items())
    for place, position in enumerate([3, 9, 4]):
        for alone in ([stream[position]], stream.__getitems__([position])):
            batch = collator(alone)
            for key in together:
                np.testing.assert_array_equal(together[key][place], batch[key][0])
    tokens = DataCollatorForRTD(tokenizer, seed=2)(sequences)
    assert tokens["labels"].ne(IGNORED).sum() == together["labels"].ne(IGNORED).sum()
    assert torch.equal(tokens["sampling_uniforms"], together["sampling_uniforms"])
    other = DataCollatorForRTD(tokenizer, masking=kind, seed=3)(sequences)
    assert not torch.equal(other["masked_positions"], together["masked_positions"])
    if kind != "token":
        for features in (replace(sequences, word_starts=None), [{"input_ids": [2, 9, 3], "stream_position": 0}]):
            with pytest.raises(ValueError, match="word_starts"):
                collator(features)


def test_held_out_words_that_were_found_otherwise_are_refused(tmp_path):
    tokenizer = chinese()
    arguments = PreparationArguments(max_seq_length=10)
    train = blocks_of_text(tmp_path / "train", CHINESE * 9, tokenizer, 10, word_segmenter="jieba")
    held_out = blocks_of_text(tmp_path / "held_out", CHINESE[:11] * 30, tokenizer, 10)
    for place in (held_out.path, str(tmp_path / "held_out" / "text.txt")):
        data = DataArguments(train_files=[train.path], held_out_files=[place])
        with pytest.raises(ValueError, match="jieba"):
            get_sequences(data, arguments, tmp_path, tokenizer)


def test_a_word_is_hidden_or_kept_as_a_whole_and_plain_wordpiece_shows_its_words(tokenizer):
    word, piece = tokenizer.convert_tokens_to_ids(["river", "##s"])
    features = [{"input_ids": [2, *[word, piece] * 60, 3]} for _ in range(400)]
    batch = DataCollatorForRTD(tokenizer, masking="word", mask_probability=0.3)(features)
    hidden = batch["input_ids"].eq(4)[:, 1:-1].reshape(400, 60, 2)
    masked = batch["masked_positions"].new_zeros(400, 122).scatter_(1, batch["masked_positions"], 1)[:, 1:-1]
    whole = masked.reshape(400, 60, 2).sum(dim=2) == 2
    assert (masked.sum(dim=1) == 37).all()
    assert (whole.sum(dim=1) >= 17).all()  # at most two words are cut
    assert not (hidden[..., 0] ^ hidden[..., 1])[whole].any()
    count = int(whole.sum())
    assert abs(int(hidden[..., 0][whole].sum()) - 0.85 * count) < 4 * (0.85 * 0.15 * count) ** 0.5


def test_a_segmenter_that_does_not_fit_is_refused(tmp_path):
    file = blocks_of_text(tmp_path / "blocks", CHINESE * 9, chinese(), 10)
    data = DataArguments(train_files=[file.path], word_segmenter="jieba", held_out_share=0.0)
    with pytest.raises(ValueError, match="word_segmenter"):
        get_sequences(data, PreparationArguments(max_seq_length=10), tmp_path, chinese())
    data.train_files = [str(tmp_path / "blocks" / "text.txt")]
    for _ in range(2):  # from text, then from the blocks that were made from it
        made, _ = get_sequences(data, PreparationArguments(max_seq_length=10), tmp_path, chinese())
        assert made.header.word_segmenter.startswith("jieba ")
        data.train_files = [made.path]
