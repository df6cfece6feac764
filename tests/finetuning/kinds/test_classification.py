import math
import statistics
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import ElectraConfig, ElectraForPreTraining

from hf_electra_rtd.finetuning.examples import TextExample
from hf_electra_rtd.finetuning.heads import PaperElectraForSequenceClassification
from hf_electra_rtd.finetuning.kinds.base import Encoding
from hf_electra_rtd.finetuning.kinds.classification import ClassificationKind, RegressionKind, cut_to_room
from hf_electra_rtd.finetuning.tasks import Task


LABELS = ("no", "yes", "perhaps")


def make_kind(tokenizer, kind="classification", max_length=16, **options):
    labels = LABELS if kind == "classification" else ()
    metrics = ("accuracy",) if labels else ("pearson", "spearman")
    task = Task("mine", "own", "Mine", "en", kind, metrics, metrics[0], **{"labels": labels, **options})
    return (ClassificationKind if labels else RegressionKind)(task, tokenizer, Encoding(max_length=max_length))


def example(*texts, label=None, id="0"):
    return TextExample(id, texts, label)


def words(tokenizer, feature):
    return " ".join(tokenizer.convert_ids_to_tokens(feature["input_ids"]))


# ---- Encoding ----


def test_single_texts_and_pairs_have_the_frame_of_bert(tokenizer):
    kind = make_kind(tokenizer)
    encoded = kind.encode([example("The river ."), example("the river", "an old mill")], training=False)
    assert words(tokenizer, encoded.features[0]) == "[CLS] the river . [SEP]"
    assert encoded.features[0]["token_type_ids"] == [0] * 5
    assert words(tokenizer, encoded.features[1]) == "[CLS] the river [SEP] [UNK] old mill [SEP]"
    assert encoded.features[1]["token_type_ids"] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert encoded.owners == [0, 1]
    assert (encoded.cut, encoded.skipped) == (0, Counter())
    assert not any("labels" in feature for feature in encoded.features)


def truncate_as_the_original(first, second, room):
    """`_truncate_seq_pair` of google-research/electra: a token off the end of the longer one, until they fit."""
    first, second = list(first), list(second)
    while len(first) + len(second) > room:
        (first if len(first) > len(second) else second).pop()
    return [first, second]


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 15))
def test_pairs_are_cut_as_by_the_original(num_first, num_second, room):
    texts = [list(range(num_first)), list(range(100, 100 + num_second))]
    assert cut_to_room(texts, room) == truncate_as_the_original(*texts, room)
    assert [len(text) for text in texts] == [num_first, num_second]
    assert cut_to_room(texts[:1], room) == [list(range(min(num_first, room)))]


def test_long_texts_fill_the_row_and_are_counted_once_an_example(tokenizer):
    kind = make_kind(tokenizer, max_length=8, double_unordered=True)
    examples = [
        example("the a of and to in he", label="no"),
        example("the a of and to in", "he she it was", label="no"),
        example("the a of", "and to", label="no"),  # fits exactly
        example("the a of and to in", label="no"),  # likewise
    ]
    encoded = kind.encode(examples, training=True)
    assert [words(tokenizer, feature) for feature in encoded.features] == [
        "[CLS] the a of and to in [SEP]",
        "[CLS] the a of [SEP] he she [SEP]",
        "[CLS] he she it [SEP] the a [SEP]",
        "[CLS] the a of [SEP] and to [SEP]",
        "[CLS] and to [SEP] the a of [SEP]",
        "[CLS] the a of and to in [SEP]",
    ]
    assert encoded.owners == [0, 1, 1, 2, 2, 3]
    assert encoded.cut == 2


@pytest.mark.parametrize(("double", "training", "orders"), [(True, True, 2), (True, False, 1), (False, True, 1)])
def test_pairs_without_an_order_are_learnt_in_both_and_judged_in_one(tokenizer, double, training, orders):
    kind = make_kind(tokenizer, double_unordered=double)
    encoded = kind.encode([example("the river", "a mill", label="yes"), example("a door", label="no")], training)
    texts = [words(tokenizer, feature) for feature in encoded.features]
    both = ["[CLS] the river [SEP] a mill [SEP]", "[CLS] a mill [SEP] the river [SEP]"]
    assert texts == [*both[:orders], "[CLS] a door [SEP]"]
    assert [feature["labels"] for feature in encoded.features] == [1] * orders + [0]


def test_training_skips_what_cannot_be_learnt_and_says_why(tokenizer):
    kind = make_kind(tokenizer)
    examples = [
        example("the river", label="yes"),
        example("  \t", label="no"),
        example("the river", " ", label="no"),
        example("\u200b\x00", label="no"),  # nothing that a tokenizer keeps
        example("a mill"),
    ]
    encoded = kind.encode(examples, training=True)
    assert encoded.owners == [0]
    assert encoded.skipped == {"empty text": 3, "no label": 1}


def test_every_example_is_predicted_even_an_empty_one(tokenizer):
    kind = make_kind(tokenizer)
    examples = [example(""), example("the river", " "), example("", "a mill", label="no")]
    encoded = kind.encode(examples, training=False)
    assert [words(tokenizer, feature) for feature in encoded.features] == [
        "[CLS] [SEP]",
        "[CLS] the river [SEP] [SEP]",
        "[CLS] [SEP] a mill [SEP]",
    ]
    outputs = np.array([[0, 1, 0], [3, 1, 2], [0, 1, 9]], dtype=np.float32)
    assert kind.decode(outputs, encoded, examples) == ["yes", "no", "perhaps"]


def test_thousands_of_examples_keep_their_order(tokenizer):
    kind = make_kind(tokenizer)
    examples = [example(*["the river", "a mill"][: 1 + index % 2], label=LABELS[index % 3]) for index in range(10_007)]
    encoded = kind.encode(examples, training=True)
    assert encoded.owners == list(range(10_007))
    assert [feature["labels"] for feature in encoded.features] == [index % 3 for index in range(10_007)]
    assert [len(feature["input_ids"]) for feature in encoded.features] == [4 + 3 * (i % 2) for i in range(10_007)]


def test_what_does_not_fit_the_task_is_refused(tokenizer):
    with pytest.raises(ValueError, match="Row 17: the label 'maybe' is none of no, yes, perhaps"):
        make_kind(tokenizer).encode([example("the river", label="maybe", id="17")], training=True)
    with pytest.raises(ValueError, match="Mine has 1 labels \\(no\\)"):
        make_kind(tokenizer, labels=("no",))
    with pytest.raises(ValueError, match="max_length=3 leaves no room for text beside 3 special"):
        make_kind(tokenizer, max_length=3).encode([example("the river", "a mill")], training=False)


# ---- Batches and losses ----


def test_batches_are_padded_to_their_longest_row(tokenizer):
    kind = make_kind(tokenizer)
    encoded = kind.encode([example("the", label="yes"), example("the river", "a mill")], training=False)
    batch = kind.collate(encoded.features)
    assert {name: tensor.tolist() for name, tensor in batch.items() if name != "input_ids"} == {
        "token_type_ids": [[0] * 7, [0, 0, 0, 0, 1, 1, 1]],
        "attention_mask": [[1, 1, 1, 0, 0, 0, 0], [1] * 7],
        "labels": [1, -100],
    }
    assert batch["input_ids"][0, 3:].eq(tokenizer.pad_token_id).all()
    assert "labels" not in kind.collate(encoded.features[1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_loss_of_classes_is_the_sum_of_their_cross_entropies(tokenizer, dtype):
    logits = torch.randn(4, 3, dtype=dtype, requires_grad=True)
    labels = torch.tensor([2, 0, -100, 1])
    loss = make_kind(tokenizer).loss(SimpleNamespace(logits=logits), {"labels": labels})
    wanted = [
        0.0 if label == -100 else math.log(sum(math.exp(value) for value in row)) - row[label]
        for row, label in zip(logits.tolist(), labels.tolist(), strict=True)
    ]
    assert loss.losses.tolist() == pytest.approx(wanted, rel=1e-5)
    assert (loss.total.item(), loss.num_items.item()) == (pytest.approx(sum(wanted), rel=1e-5), 3)
    assert loss.total.dtype == torch.float32
    loss.total.backward()
    assert logits.grad[0].any()
    assert not logits.grad[2].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_loss_of_numbers_is_the_sum_of_their_squared_errors(tokenizer, dtype):
    kind = make_kind(tokenizer, "regression")
    encoded = kind.encode([example("the", "a", label=value) for value in (5, 0.0, 2.6)], training=True)
    batch = kind.collate(encoded.features)
    assert batch["labels"].tolist() == pytest.approx([5.0, 0.0, 2.6])
    logits = torch.tensor([[4.0], [0.5], [-1.0]], dtype=dtype, requires_grad=True)
    loss = kind.loss(SimpleNamespace(logits=logits), batch)
    assert loss.losses.tolist() == pytest.approx([1.0, 0.25, 12.96])
    assert (loss.total.item(), loss.num_items.item()) == (pytest.approx(14.21), 3)
    loss.total.backward()
    assert logits.grad.flatten().tolist() == pytest.approx([-2.0, 1.0, -7.2], rel=0.01)


@pytest.mark.parametrize("kind_name", ["classification", "regression"])
def test_the_sums_of_several_batches_are_the_sum_of_all(tokenizer, kind_name):
    kind = make_kind(tokenizer, kind_name)
    labels = LABELS if kind_name == "classification" else (1.0, 2.5, 4.0)
    examples = [example("the river " * (1 + index % 4), label=labels[index % 3]) for index in range(7)]
    features = kind.encode(examples, training=True).features
    logits = torch.randn(7, 3 if kind_name == "classification" else 1)

    def loss(part):
        return kind.loss(SimpleNamespace(logits=logits[part]), kind.collate(features[part]))

    whole, parts = loss(slice(0, 7)), [loss(slice(0, 2)), loss(slice(2, 7))]
    torch.testing.assert_close(sum(part.total for part in parts), whole.total)
    assert sum(int(part.num_items) for part in parts) == int(whole.num_items) == 7
    assert whole.mean().item() == pytest.approx(statistics.mean(whole.losses.tolist()))


# ---- Predictions and scores ----


def test_numbers_are_predicted_as_they_come(tokenizer):
    kind = make_kind(tokenizer, "regression")
    examples = [example("the", "a", label=1.0), example("the", "a")]
    encoded = kind.encode(examples, training=False)
    predictions = kind.decode(np.array([[5.5], [-0.25]], dtype=np.float32), encoded, examples)
    assert predictions == [5.5, -0.25]
    assert all(type(prediction) is float for prediction in predictions)


def test_labelled_examples_alone_are_scored(tokenizer):
    kind = make_kind(tokenizer)
    examples = [example("the", label="no"), example("a"), example("of", label="yes"), example("to", label="yes")]
    assert kind.score(["no", "no", "yes", "no"], examples) == {"accuracy": pytest.approx(2 / 3)}
    assert kind.score(["no"], examples[1:2]) == {}
    numbers = make_kind(tokenizer, "regression")
    examples = [example("the", label=value) for value in (1.0, 2.0, 3.0, 10.0)]
    predictions = [0.1, 0.4, 0.3, 0.9]
    scores = numbers.score(predictions, examples)
    assert scores["pearson"] == pytest.approx(np.corrcoef(predictions, [1, 2, 3, 10])[0, 1])
    assert scores["spearman"] == pytest.approx(1 - 6 * 2 / (4 * 15))


# ---- Models ----


@pytest.fixture
def source(tmp_path, tokenizer):
    config = ElectraConfig(
        vocab_size=len(tokenizer),
        embedding_size=16,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=16,
        initializer_range=0.2,  # tiny layers learn nothing from 0.02
    )
    ElectraForPreTraining(config).save_pretrained(tmp_path / "tower")
    return tmp_path / "tower"


@pytest.mark.parametrize("head", ["transformers", "paper"])
@pytest.mark.parametrize("kind_name", ["classification", "regression"])
def test_a_task_is_learnt_and_its_model_saved(tmp_path, tokenizer, source, kind_name, head):
    kind = make_kind(tokenizer, kind_name)
    labels = dict(
        zip(("river", "mill", "door"), LABELS if kind_name == "classification" else (0.5, 2.0, 4.5), strict=True)
    )
    examples = [
        example(f"the {noun} {word}", "a horse", label=labels[noun]) for noun in labels for word in ("of", "was")
    ]
    model = kind.make_model(str(source), head, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    assert isinstance(model, PaperElectraForSequenceClassification) == (head == "paper")
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    encoded = kind.encode(examples, training=True)
    batch = kind.collate(encoded.features)
    for _ in range(60):
        loss = kind.loss(model(**kind.inputs(batch, training=True)), batch).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(tmp_path / "model")
    model = kind.make_model(str(tmp_path / "model"), "transformers").eval()
    with torch.no_grad():
        outputs = model(**kind.inputs(batch, training=False)).logits.numpy()
    predictions = kind.decode(outputs, encoded, examples)
    if kind_name == "classification":
        assert predictions == [example.label for example in examples]
    else:
        assert predictions == pytest.approx([example.label for example in examples], abs=0.5)
    assert all(score > 0.99 for name, score in kind.score(predictions, examples).items() if name != "spearman")


def test_models_from_scratch_share_no_weight_with_the_source(tokenizer, source):
    kind = make_kind(tokenizer)
    loaded, drawn = (kind.make_model(str(source), "transformers", from_scratch=scratch) for scratch in (False, True))
    name = "electra.embeddings.word_embeddings.weight"
    assert torch.equal(loaded.get_parameter(name), ElectraForPreTraining.from_pretrained(source).get_parameter(name))
    assert not torch.equal(drawn.get_parameter(name), loaded.get_parameter(name))
    assert drawn.config.id2label == dict(enumerate(LABELS))


@pytest.mark.parametrize("scale", [1.0, 5.0])
def test_numbers_are_learnt_in_units_of_the_tasks_scale_and_predicted_in_their_own(scale, tokenizer):
    kind = make_kind(tokenizer, "regression", label_scale=scale)
    examples = [example("a river", label=4.0), example("a mill", label=0.5)]
    encoded = kind.encode(examples, training=True)
    targets = [feature["labels"] for feature in encoded.features]
    assert targets == [4.0 / scale, 0.5 / scale]
    assert kind.decode(np.array(targets)[:, None], encoded, examples) == [4.0, 0.5]
