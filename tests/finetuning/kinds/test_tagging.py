from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BertTokenizer, ElectraConfig, ElectraForTokenClassification, ElectraModel

from hf_electra_rtd.data.tokenization import SPECIAL_TOKENS
from hf_electra_rtd.finetuning.examples import TaggedExample
from hf_electra_rtd.finetuning.kinds.base import Encoding
from hf_electra_rtd.finetuning.kinds.tagging import TaggingKind
from hf_electra_rtd.finetuning.tasks import Task


TAGS = ("O", "B-NP", "I-NP", "B-VP", "I-VP")
PIECES = ["river", "mill", "e", "a", "##s", "##ing", "-", ".", "中", "国", "人", "1", "9"]
TOKENIZER = BertTokenizer(
    vocab={token: index for index, token in enumerate([*SPECIAL_TOKENS, *PIECES])}, do_lower_case=True
)
CONFIG = ElectraConfig(
    vocab_size=len(TOKENIZER),
    embedding_size=16,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    initializer_range=0.3,
    num_labels=len(TAGS),
)
VANISHING = ["", " ", "\u200b", "\x00", "\u0301", "\u3000"]

words = st.one_of(
    st.sampled_from(["river", "Rivers", "milling", "mill-river-mill", "中", "国", "中国", "1", "19", "A", "é"]),
    st.sampled_from([*VANISHING, *SPECIAL_TOKENS]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
)
sentences = st.lists(st.tuples(words, st.sampled_from(TAGS)), max_size=12).map(
    lambda pairs: TaggedExample("7", tuple(word for word, _ in pairs), tuple(tag for _, tag in pairs))
)


def make_kind(max_length=16, metrics=("f1",), tokenizer=TOKENIZER):
    task = Task("chunks", "own", "Chunks", "en", "tagging", metrics, metrics[0], labels=TAGS)
    return TaggingKind(task, tokenizer, Encoding(max_length=max_length))


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return ElectraForTokenClassification(CONFIG).eval()


def sentence(*words, tags=None):
    return TaggedExample("7", words, tags)


def tokens_of(word):
    """What a word alone becomes."""
    return TOKENIZER(word, add_special_tokens=False)["input_ids"] or [TOKENIZER.unk_token_id]


def gold_outputs(kind, encoded, width):
    """Logits that are right at the labels and random elsewhere, padded as those of several batches are."""
    random = np.random.default_rng(0)
    outputs = np.full((len(encoded.features), width, len(TAGS)), -100, np.float32)
    for row, feature in enumerate(encoded.features):
        outputs[row, : len(feature["labels"])] = random.normal(size=(len(feature["labels"]), len(TAGS)))
        for place, label in enumerate(feature["labels"]):
            if label != -100:
                outputs[row, place, label] = 9
    return outputs


@given(st.lists(sentences, max_size=4), st.integers(3, 20), st.integers(0, 3))
@settings(max_examples=100, deadline=None)
def test_gold_logits_give_every_word_its_tag(examples, max_length, padding):
    kind = make_kind(max_length)
    for training in (True, False):
        encoded = kind.encode(examples, training)
        outputs = gold_outputs(kind, encoded, max_length + padding)
        assert kind.decode(outputs, encoded, examples) == [list(example.tags) for example in examples]


@given(sentences, st.integers(3, 20))
@settings(max_examples=100, deadline=None)
def test_rows_hold_every_word_once_and_its_first_token_carries_the_tag(example, max_length):
    room = max_length - 2
    encoded = make_kind(max_length).encode([example], training=True)
    tokens, labels = [], []
    for feature in encoded.features:
        assert len(feature["input_ids"]) == len(feature["token_type_ids"]) == len(feature["labels"]) <= max_length
        assert (feature["input_ids"][0], feature["input_ids"][-1]) == (TOKENIZER.cls_token_id, TOKENIZER.sep_token_id)
        assert feature["labels"][0] == feature["labels"][-1] == -100
        assert feature["labels"][1] != -100, "a row begins with a word's first token"
        tokens += feature["input_ids"][1:-1]
        labels += feature["labels"][1:-1]
    expected = [tokens_of(word)[:room] for word in example.words]
    assert tokens == [token for word in expected for token in word]
    tags = zip(expected, example.tags, strict=True)
    assert labels == [label for word, tag in tags for label in [TAGS.index(tag)] + [-100] * (len(word) - 1)]
    assert encoded.cut == any(len(tokens_of(word)) > room for word in example.words)
    # No row could have taken the next one's first word, too.
    for this, following in zip(encoded.features, encoded.features[1:], strict=False):
        begins = [place for place, label in enumerate(following["labels"]) if label != -100]
        first_word = (begins[1] if len(begins) > 1 else len(following["labels"]) - 1) - 1
        assert len(this["input_ids"]) + first_word > max_length


def test_characters_are_words_that_the_tokenizer_neither_merges_nor_drops():
    text = "A1 9中国é\u200b。"
    example = sentence(*text)
    encoded = make_kind().encode([example], training=False)
    assert TOKENIZER.convert_ids_to_tokens(encoded.features[0]["input_ids"]) == [
        *["[CLS]", "a", "1", "[UNK]", "9", "中", "国", "e", "[UNK]", "[UNK]", "[SEP]"]
    ]
    assert encoded.notes == [list(range(1, 10))]


def test_a_sentence_whose_every_word_vanishes_is_tagged_all_the_same():
    example = sentence(*VANISHING, tags=("B-NP",) * len(VANISHING))
    kind = make_kind()
    encoded = kind.encode([example], training=True)
    unknown = [TOKENIZER.unk_token_id] * len(VANISHING)
    assert encoded.features[0]["input_ids"] == [TOKENIZER.cls_token_id, *unknown, TOKENIZER.sep_token_id]
    assert kind.decode(gold_outputs(kind, encoded, 16), encoded, [example]) == [["B-NP"] * len(VANISHING)]
    assert not encoded.skipped


def test_a_sentence_without_words_has_no_feature_and_no_tags():
    kind = make_kind()
    examples = [sentence(tags=()), sentence("river", tags=("B-NP",)), sentence()]
    encoded = kind.encode(examples, training=False)
    assert encoded.owners == [1]
    assert encoded.skipped == {"no words": 2}
    assert kind.decode(gold_outputs(kind, encoded, 3), encoded, examples) == [[], ["B-NP"], []]
    assert kind.decode(None, kind.encode([sentence()], training=False), [sentence()]) == [[]]
    assert kind.encode([], training=True).features == []


def test_sentences_without_tags_are_predicted_but_not_learnt():
    kind = make_kind()
    examples = [sentence("river", "mill"), sentence("mill", tags=("B-NP",))]
    trained = kind.encode(examples, training=True)
    assert (trained.owners, trained.skipped) == ([1], {"no tags": 1})
    encoded = kind.encode(examples, training=False)
    assert encoded.owners == [0, 1]
    assert "labels" not in encoded.features[0]
    assert kind.collate(encoded.features)["labels"].tolist() == [[-100] * 4, [-100, 1, -100, -100]]
    assert "labels" not in kind.collate(encoded.features[:1])


@given(st.lists(sentences.filter(lambda example: example.words), min_size=1, max_size=5), st.integers(4, 12))
@settings(max_examples=30, deadline=None)
def test_the_loss_is_a_sum_over_words_that_batches_do_not_change(model, examples, max_length):
    kind = make_kind(max_length)
    features = kind.encode(examples, training=True).features

    def loss_of(features):
        batch = kind.collate(features)
        outputs = model(**kind.inputs(batch, training=True))
        return kind.loss(outputs, batch), outputs.logits, batch["labels"]

    with torch.no_grad():
        together, logits, labels = loss_of(features)
        apart = [loss_of([feature])[0] for feature in features]
    expected = 0.0
    for row, label_row in zip(logits.double().numpy(), labels.tolist(), strict=True):
        for values, label in zip(row, label_row, strict=True):
            if label != -100:
                expected += np.log(np.exp(values - values.max()).sum()) + values.max() - values[label]
    assert float(together.total) == pytest.approx(expected, rel=1e-5)
    assert int(together.num_items) == sum(len(example.words) for example in examples)
    assert together.losses.shape == labels.shape
    assert float(together.losses.sum()) == pytest.approx(expected, rel=1e-5)
    assert sum(float(loss.total) for loss in apart) == pytest.approx(expected, rel=1e-4)
    assert sum(int(loss.num_items) for loss in apart) == int(together.num_items)


def test_the_loss_of_half_precision_logits_is_computed_in_float32():
    logits = torch.randn(2, 3, 5).bfloat16()
    batch = {"labels": torch.tensor([[-100, 1, 4], [0, -100, -100]])}
    half = make_kind().loss(SimpleNamespace(logits=logits), batch)
    assert half.total.dtype == torch.float32
    assert torch.equal(half.total, make_kind().loss(SimpleNamespace(logits=logits.float()), batch).total)


def test_chunks_and_words_are_scored_over_the_tagged_sentences():
    kind = make_kind(metrics=("accuracy", "f1"))
    examples = [
        sentence("a", "river", tags=("B-NP", "I-NP")),
        sentence("mill"),
        sentence(tags=()),
        sentence("mill", "a", tags=("B-VP", "O")),
    ]
    predictions = [["B-NP", "I-NP"], ["B-NP"], [], ["O", "O"]]
    # One of two chunks found, and nothing else: precision 1, recall 1/2.
    assert kind.score(predictions, examples) == pytest.approx({"f1": 2 / 3, "accuracy": 3 / 4})
    assert list(kind.score(predictions, examples)) == ["accuracy", "f1"]
    assert kind.score(predictions[1:3], examples[1:3]) == {}
    assert make_kind(metrics=("accuracy",)).score(predictions, examples) == {"accuracy": 3 / 4}


@pytest.mark.parametrize("head", ["transformers", "paper"])
def test_both_heads_are_one_dense_layer_with_the_tags_of_the_task(tmp_path, head):
    ElectraModel(CONFIG).save_pretrained(tmp_path)
    model = make_kind().make_model(str(tmp_path), head, hidden_dropout_prob=0.3)
    assert type(model) is ElectraForTokenClassification
    assert type(model.classifier) is torch.nn.Linear
    assert model.dropout.p == 0.3
    assert model.config.id2label == dict(enumerate(TAGS))
    assert model.config.label2id == {tag: index for index, tag in enumerate(TAGS)}
    model.save_pretrained(tmp_path / "tuned")
    kept = make_kind().make_model(str(tmp_path / "tuned"), head)
    assert torch.equal(kept.classifier.weight, model.classifier.weight)
    scratch = make_kind().make_model(str(tmp_path / "tuned"), head, from_scratch=True)
    assert not torch.equal(scratch.classifier.weight, model.classifier.weight)


def test_an_unknown_head_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no head 'crf'"):
        make_kind().make_model(str(tmp_path), "crf")


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (sentence("river", "mill", tags=("O",)), "Sentence 7 has 2 words, but 1 tags"),
        (sentence("river", tags=("B-PP",)), "Sentence 7: the tag 'B-PP' of 'river' is none of O, B-NP"),
    ],
)
def test_tags_that_do_not_fit_are_refused(example, message):
    for training in (True, False):
        with pytest.raises(ValueError, match=message):
            make_kind().encode([example], training)


def test_rows_without_room_are_refused():
    with pytest.raises(ValueError, match="max_length=2 leaves no room"):
        make_kind(max_length=2)


def test_a_tokenizer_without_an_unknown_token_is_refused():
    without = BertTokenizer(vocab=TOKENIZER.get_vocab())
    without.unk_token = None
    with pytest.raises(ValueError, match="no unk_token"):
        make_kind(tokenizer=without)
