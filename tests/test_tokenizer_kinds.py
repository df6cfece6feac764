"""Every kind of fast tokenizer, from text to fine-tuning."""

import shutil
import sys

import numpy as np
import pytest
from datasets import Dataset
from tokenizers import models
from transformers import AutoTokenizer, BertTokenizer

from hf_electra_rtd import DataCollatorForRTD, ElectraForRTDPretraining, SequenceStream
from hf_electra_rtd.base.records import PretrainingRecord
from hf_electra_rtd.base.tasks import Task
from hf_electra_rtd.data import prepare_command
from hf_electra_rtd.data.collator import MASKING
from hf_electra_rtd.data.packing import PACKERS, WORD_START
from hf_electra_rtd.data.tokenization import (
    get_backend,
    load_tokenizer,
    refuse_other_tokens,
    save_tokenizer,
    token_texts,
    tokenizer_hash,
)
from hf_electra_rtd.data.vocabulary import check_extensible
from hf_electra_rtd.data.words import LineEncoder, example_sentence, shown_tokens
from hf_electra_rtd.finetuning.kinds import make_kind
from hf_electra_rtd.finetuning.reading import example_features
from hf_electra_rtd.inference import detection
from hf_electra_rtd.ops import IGNORED, num_masked
from hf_electra_rtd.training import pretrain
from hf_electra_rtd.training.console import ScoredToken, find_sentence, mark_sentence
from hf_electra_rtd.training.directory import save_outputs
from tests.conftest import blocks_of_text, pretraining_flags
from tests.families_for_tests import LINES, ODD, TOKENIZERS, make_tokenizer
from tests.finetuning.conftest import run_finetune, write_examples


@pytest.fixture(scope="module")
def tokenizers():
    return {kind: make_tokenizer(kind) for kind in TOKENIZERS}


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request, tokenizers):
    return tokenizers[request.param]


def special_ids(tokenizer):
    return [getattr(tokenizer, f"{name}_token_id") for name in ("cls", "sep", "pad", "mask")]


# ---- The tokenizer and its directory ----


def test_a_tokenizer_is_saved_as_what_it_is(tokenizer, tmp_path):
    save_tokenizer(tokenizer, tmp_path)
    pair = tokenizer("the river", "a mill")
    for loaded in (load_tokenizer(str(tmp_path)), AutoTokenizer.from_pretrained(tmp_path)):
        assert tokenizer_hash(loaded) == tokenizer_hash(tokenizer)
        assert dict(loaded("the river", "a mill")) == dict(pair)
        assert loaded.model_max_length == tokenizer.model_max_length
    # Older tools and `load_tokenizer` take a vocab.txt as a sign of WordPiece.
    assert (tmp_path / "vocab.txt").exists() == isinstance(tokenizer, BertTokenizer)
    refuse_other_tokens(str(tmp_path), tokenizer, "The model")


def test_another_tokenizer_is_told_apart_and_only_wordpiece_is_extended(tokenizers, tmp_path):
    assert len(set(map(tokenizer_hash, tokenizers.values()))) == len(TOKENIZERS)
    save_tokenizer(tokenizers["Unigram, <s>"], tmp_path)
    with pytest.raises(ValueError, match="The model"):
        refuse_other_tokens(str(tmp_path), tokenizers["byte-level BPE, <s>"], "The model")
    for kind, tokenizer in tokenizers.items():
        if kind == "WordPiece":
            check_extensible(tokenizer)
        else:
            with pytest.raises(ValueError, match="extend_vocabulary"):
                check_extensible(tokenizer)


def test_a_run_with_another_tokenizer_leaves_no_vocabulary_of_the_run_before(finished_run, tokenizers, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished_run, run)
    assert (run / "vocab.txt").exists()
    model = ElectraForRTDPretraining.from_pretrained(run)
    save_outputs(model, tokenizers["Unigram, <s>"], PretrainingRecord.load(run), run)
    assert not list(run.glob("vocab.txt")) + list(run.glob("*r/vocab.txt"))


def test_special_tokens_in_a_text_are_text(tokenizer):
    text = " ".join(["the river", *tokenizer.all_special_tokens, "went"])
    tokens, _ = LineEncoder(tokenizer, None)([text])
    assert not np.isin(tokens % WORD_START, special_ids(tokenizer)).any()
    plain = get_backend(tokenizer).encode("the river went", add_special_tokens=False).ids
    assert plain == tokenizer("the river went", add_special_tokens=False)["input_ids"]


# ---- Sequences and masks ----


@pytest.mark.parametrize("packing", PACKERS)
def test_sequences_hold_the_text_between_the_tokenizers_own_special_tokens(tokenizer, tmp_path, packing):
    file = blocks_of_text(tmp_path, "\n".join(LINES), tokenizer, packing=packing)
    cls, sep, *others = special_ids(tokenizer)
    lines = tokenizer([line for line in LINES if line], add_special_tokens=False)["input_ids"]
    text = [token for line in lines for token in line]
    packed = []
    for sequence in map(file.__getitem__, range(len(file))):
        ids = sequence["input_ids"]
        types = sequence["token_type_ids"]
        assert ids[0] == cls
        assert ids[-1] == sep
        assert not np.isin(ids, others).any()
        assert not np.isin(ids[1:], cls).any()
        if types.any():  # one [SEP] between the segments, whatever the tokenizer puts between a pair
            assert ids[types.argmax() - 1] == sep
        packed += ids[~np.isin(ids, [cls, sep])].tolist()
    if packing == "full":
        assert packed == text[: len(packed)]
        assert len(packed) > len(text) - 32
        assert (file.lengths(np.arange(len(file))) == 32).all()
    else:
        assert set(packed) <= set(text)
        assert 0.5 * len(text) < len(packed) < len(text)


def test_segments_are_split_where_sentences_end(tokenizer, tmp_path):
    """The text is one line, so only the punctuation shows where sentences end."""
    line = " ".join(50 * ["the rivers saw it ?", "the mills saw it ?"])  # "?" may hold the space before it
    file = blocks_of_text(tmp_path, line, tokenizer, 48)
    batch = file.read(np.arange(len(file)))
    halves = [ids[: second - 1] for ids, second in zip(batch.ids, batch.second_segments, strict=True) if second < 48]
    assert len(halves) > 4
    assert all(text[-1] == "?" for half in halves for text in token_texts(tokenizer, half[-1:]))


@pytest.mark.parametrize("masking", MASKING)
def test_special_tokens_are_never_masked_and_unknown_ones_are(tokenizer, tmp_path, masking):
    lines = [line.replace("river", "\U0010fffe") for line in LINES]
    file = blocks_of_text(tmp_path, "\n".join(lines), tokenizer, packing="original")
    cls, sep, pad, mask = special_ids(tokenizer)
    stream = SequenceStream(file, num_positions=4 * len(file), seed=1)
    sequences = stream.__getitems__(range(len(stream)))
    batch = DataCollatorForRTD(tokenizer, masking=masking, seed=1, max_seq_length=32)(sequences)
    used = batch["labels"].ne(IGNORED)
    assert not np.isin(batch["labels"][used], [cls, sep, pad, mask]).any()
    if not isinstance(tokenizer.backend_tokenizer.model, models.BPE):  # BPE has no unknown bytes
        assert batch["labels"].eq(tokenizer.unk_token_id).any()
    assert used.sum(dim=1).tolist() == [num_masked(0.15, length) for length in sequences.lengths.tolist()]
    padded = batch["attention_mask"].eq(0)
    assert padded.any()
    assert batch["input_ids"][padded].eq(pad).all()
    assert not batch["input_ids"][~padded].eq(pad).any()
    restored = batch["input_ids"].scatter(1, batch["masked_positions"], batch["labels"].where(used, cls))
    for row, length in enumerate(sequences.lengths):
        assert restored[row, 1:length].tolist() == sequences.ids[row, 1:length].tolist()


def test_a_letter_that_is_a_mark_to_others_begins_no_word(tokenizer):
    tokens, _ = LineEncoder(tokenizer, None)(["the saĠa"])  # Maltese
    assert (tokens >= WORD_START).sum() == 2


# ---- Text shown to people ----


def test_people_read_text(tokenizer):
    """They see neither a Ġ nor a ▁."""
    names = tokenizer.convert_ids_to_tokens(tokenizer('the mill went. it saw "rivers"')["input_ids"])
    shown = shown_tokens(tokenizer, names)
    assert [shown[0], shown[-1]] == [tokenizer.cls_token, tokenizer.sep_token]
    text = " ".join(shown[1:-1]).replace("␣ ", "").replace(" ##", "")
    assert text == 'the mill went . it saw " rivers "'
    tokens = [ScoredToken(name, name, False, 0.1) for name in names]
    place = shown.index("mill")
    tokens[place] = ScoredToken(names[place], names[shown.index("saw")], True, 0.9)
    sentence = find_sentence(tokens, tokenizer)
    assert mark_sentence(sentence, 0.1, tokenizer).plain == "the saw [was mill: found, x 9.0] went."


def test_the_example_of_a_record_is_a_whole_sentence_and_changes_one_word(tokenizer):
    ids = tokenizer("rivers. the old mill went. the mill saw the river.")["input_ids"]
    example = example_sentence(tokenizer, [ids])
    assert example["original"] == "the old mill went."
    assert example["gap"].format("mill") == example["original"]
    assert example_sentence(tokenizer, [tokenizer("rivers. he")["input_ids"]]) == {}
    wanted = {"original": "the old mill went.", "replaced": "the old river went.", "gap": "the old {} went."}
    for before in ("the old river was.", 'the river " was.'):
        assert example_sentence(tokenizer, [tokenizer(f"{before} the old mill went.")["input_ids"]]) == wanted


def test_the_words_to_mask_are_found_by_their_letters(tokenizer):
    sentence = 'the mill, "rivers" saw  水流 mills.'
    encoding = tokenizer(sentence)
    chinese = [] if isinstance(tokenizer, BertTokenizer) else ["水", "流"]
    for word in ("mill", "rivers", "the mill", "mills", *chinese):
        places = detection._find_words(encoding, sentence, [word])
        # A token may hold punctuation besides the word.
        assert tokenizer.decode([encoding["input_ids"][place] for place in places]).strip(' ,".') == word
    for part, number in (("ill", 2), ("iver", 1)):  # of "mill" and "mills", of "rivers"
        places = detection._find_words(encoding, sentence, [part])
        tokens = [tokenizer.decode([encoding["input_ids"][place]]) for place in places]
        assert [part in token for token in tokens] == [True] * number
    for part in ("", "mill,s"):
        with pytest.raises(ValueError, match=f"'{part}'"):
            detection._find_words(encoding, sentence, [part])


# ---- Fine-tuning ----


def make(tokenizer, kind, max_seq_length, *lengths, **facts):
    return make_kind(Task("t", "T", kind=kind, metrics=("f1",), **facts), tokenizer, max_seq_length, *lengths)


def test_a_pair_is_what_the_tokenizer_makes_of_it(tokenizer):
    texts = ["the river went to the mill", "it was old, and young was the horse in the garden of the mill"]
    whole, short = (
        make(tokenizer, "classification", length, labels=("no", "yes")).encode_batch(
            {"texts": [texts], "label": ["yes"]}, [0], training=True
        )[0]
        for length in (128, 16)
    )
    pair = tokenizer(*texts)
    assert whole["input_ids"] == pair["input_ids"]
    assert whole.get("token_type_ids") == pair.get("token_type_ids")
    assert not whole["truncated"]
    special = tokenizer.num_special_tokens_to_add(pair=True)
    assert special == (4 if tokenizer.cls_token == "<s>" else 3)
    assert short["length"] == len(short["input_ids"]) == 16
    assert np.isin(short["input_ids"], special_ids(tokenizer)).sum() == special
    assert short["truncated"]


@pytest.mark.parametrize("max_seq_length", [32, 64])
def test_answers_are_found_again_in_every_window(tokenizer, max_seq_length):
    context = f"The mill, the river ({ODD}) and the  old garden!  It saw a door."
    answers = ["mill", "The mill", "the river (naïve", "Café 水流", "水", "流", "don't", "😀", '"the mills."', "saws)"]
    kind = make(tokenizer, "question_answering", max_seq_length, 14, 10)
    batch = {"question": ["what was it?"] * len(answers), "context": [context] * len(answers)}
    batch |= {"label": [[answer] for answer in answers], "starts": [[context.index(answer)] for answer in answers]}
    features = kind.encode_batch(batch, range(len(answers)), training=True)
    found = set()
    for feature in features:
        start, end = feature["labels"]
        offsets = feature["offsets"]
        tokens = tokenizer.convert_ids_to_tokens(feature["input_ids"])
        assert tokens[0] == tokenizer.cls_token
        assert len(tokens) <= max_seq_length
        assert feature["first"] + len(offsets) == len(tokens) - 1  # the last token is [SEP]
        answer = answers[feature["example"]]
        logits = np.zeros((2, 1, len(tokens)), dtype=np.float32)
        logits[0, 0, start] = logits[1, 0, end] = 9
        predicted = kind._predict(context, [(0, feature)], logits)["text"]
        if start:
            found.add(answer)
            # A multi-byte character or an unknown word may share a token with its neighbors.
            assert answer in predicted
            assert len(predicted) <= len(answer) + 3
    assert found == set(answers)


@pytest.mark.parametrize("max_seq_length", [12, 64])
def test_the_words_of_a_sentence_have_the_tokens_of_running_text(tokenizer, max_seq_length):
    words = ["The", "mill", ",", "naïve", "水", "rivers", "don't", "😀", "door", "."]
    tags = ["O", "B-X", "O", "B-X", "I-X", "O", "B-X", "O", "O", "O"]
    kind = make(tokenizer, "tagging", max_seq_length, labels=("O", "B-X", "I-X"))

    def encode(*sentences):
        rows = [{"id": "x", "texts": words, "label": tags} for words, tags in sentences]
        examples = Dataset.from_list(rows, features=example_features("tagging"))
        return examples, kind.encode(examples, training=True)

    _, features = encode((words, tags))
    ids = [token for row in features["input_ids"] for token in row if token not in special_ids(tokenizer)]
    assert ids == tokenizer(" " + " ".join(words), add_special_tokens=False)["input_ids"]
    # Some tokenizers have no token for the last word.
    examples, features = encode((words, tags), ([*words[::-1], "\u200b"], [*tags[::-1], "I-X"]))
    outputs = np.zeros((len(features), max_seq_length, 3), dtype=np.float32)
    for row, labels in enumerate(features["labels"]):
        assert len(labels) <= max_seq_length
        for place, label in enumerate(labels):
            outputs[row, place, max(label, 0)] = 1
    assert kind.decode(outputs, features, examples) == examples["label"][:]


# ---- From text to a fine-tuned model ----


@pytest.mark.parametrize("kind", ["byte-level BPE, <s>", pytest.param("Unigram, <s>", marks=pytest.mark.slow)])
def test_a_run_goes_from_text_to_a_fine_tuned_model(tokenizers, corpus, tmp_path, monkeypatch, kind, capsys):
    tokenizer = tokenizers[kind]
    blocks = tmp_path / "prepared"
    monkeypatch.setattr(sys, "argv", ["hf-electra-rtd"])
    save_tokenizer(tokenizer, tmp_path / "given")
    flags = ["--train_files", str(corpus), "--tokenizer", str(tmp_path / "given"), "--output_dir", str(blocks)]
    prepare_command.main([*flags, "--max_seq_length", "32", "--disable_tqdm", "True"])
    options = {"tokenizer": blocks / "tokenizer", "held_out_files": blocks / "held_out.blocks", "masking": "word"}
    options |= {"model_config": None, "size": "tiny", "initialization": "stock", "max_steps": 2}
    flags = pretraining_flags(tmp_path, blocks / "train.blocks", tmp_path / "run", **options)
    assert not pretrain.main([*flags, "--dry_run"])
    assert not pretrain.main(flags)
    capsys.readouterr()
    detection.main(["--model", str(tmp_path / "run"), "the old mills.", "--mask", "mills"])
    assert ("▁" if kind.startswith("Unigram") else "Ġ") not in capsys.readouterr().out  # text is shown, not tokens
    write_examples(tmp_path / "reviews.csv", 16, 1)
    flags = {"train_file": tmp_path / "reviews.csv", "text_column_name": "review", "label_column_name": "verdict"}
    flags |= {"model_name_or_path": tmp_path / "run", "output_dir": tmp_path / "tuned", "num_train_epochs": 1}
    assert not run_finetune(**flags)
    tuned = next((tmp_path / "tuned").rglob("tokenizer_config.json")).parent
    assert tokenizer_hash(load_tokenizer(str(tuned))) == tokenizer_hash(tokenizer)
