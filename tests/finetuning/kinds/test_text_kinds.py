"""Classification, regression, multiple choice and tagging: from examples to batches, losses and predictions."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import BertTokenizer, ElectraConfig, ElectraForMultipleChoice

from hf_electra_rtd.base.tasks import Task
from hf_electra_rtd.data.tokenization import SPECIAL_TOKENS
from hf_electra_rtd.finetuning.kinds import make_kind
from hf_electra_rtd.finetuning.reading import example_features


LABELS = ("no", "yes", "perhaps")


def make(tokenizer, kind="classification", max_seq_length=16, **facts):
    metrics = ("pearson", "spearman") if kind == "regression" else ("accuracy",)
    labels = LABELS if kind in ("classification", "multi_label") else ()
    return make_kind(Task("t", "Mine", kind=kind, metrics=metrics, labels=labels, **facts), tokenizer, max_seq_length)


def texts(*rows, kind="classification"):
    examples = [{"id": "x", "texts": list(texts), "label": label} for *texts, label in rows]
    return Dataset.from_list(examples, features=example_features(kind))


def choices(*rows):
    names = ("context", "question", "choices", "label")
    examples = [{"id": "x", **dict(zip(names, row, strict=True))} for row in rows]
    return Dataset.from_list(examples, features=example_features("multiple_choice"))


def words(tokenizer, ids):
    return " ".join(tokenizer.convert_ids_to_tokens(ids))


def test_texts_and_pairs_have_the_frame_of_bert_and_their_segments_and_special_tokens_are_text(tokenizer):
    features = make(tokenizer).encode(texts(("the river", "yes"), ("a mill", None)), training=False)
    assert [words(tokenizer, ids) for ids in features["input_ids"]] == ["[CLS] the river [SEP]", "[CLS] a mill [SEP]"]
    assert "labels" not in features.column_names
    pair = make(tokenizer).encode(texts((" the river ", "a mill\t", "yes")), training=True)[0]
    assert words(tokenizer, pair["input_ids"]) == "[CLS] the river [SEP] a mill [SEP]"
    assert pair["token_type_ids"] == [0, 0, 0, 0, 1, 1, 1]
    assert (pair["labels"], pair["length"], pair["example"], pair["truncated"]) == (1, 7, 0, False)
    ids = make(tokenizer).encode(texts(("the [SEP] river [MASK]", "yes")), training=False)[0]["input_ids"]
    assert (ids.count(tokenizer.sep_token_id), ids.count(tokenizer.mask_token_id)) == (1, 0)  # both are ordinary text


def truncate_as_the_original(first, second, room):
    """google-research/electra finetune/classification/classification_tasks.py, `_truncate_seq_pair`."""
    first, second = list(first), list(second)
    while len(first) + len(second) > room:
        (first if len(first) > len(second) else second).pop()
    return [first, second]


@pytest.mark.parametrize("room", [2, 3, 5, 6])
def test_pairs_are_truncated_as_by_the_original(tokenizer, room):
    names = ["the", "a", "of", "and", "to", "in", "he", "she", "it"]
    pairs = [(names[:m], names[:n]) for m in range(10) for n in range(10)]
    rows = texts(*((" ".join(first), " ".join(second), None) for first, second in pairs))
    for feature, pair in zip(
        make(tokenizer, max_seq_length=room + 3).encode(rows, training=False), pairs, strict=True
    ):
        parts = words(tokenizer, feature["input_ids"]).removeprefix("[CLS]").split("[SEP]")[:2]
        kept = truncate_as_the_original(*pair, room)
        assert [part.split() for part in parts] == kept
        assert feature["truncated"] == (kept != list(pair))
        assert feature["token_type_ids"] == [0] * (len(kept[0]) + 2) + [1] * (len(kept[1]) + 1)
        assert feature["length"] == len(feature["input_ids"])
    singles = make(tokenizer, max_seq_length=room + 2).encode(texts((" ".join(names), None)), training=False)[0]
    assert words(tokenizer, singles["input_ids"]) == f"[CLS] {' '.join(names[:room])} [SEP]"
    assert singles["truncated"]


def test_pairs_without_an_order_are_learned_in_both_and_evaluated_in_one(tokenizer):
    both = ["[CLS] the river [SEP] a mill [SEP]", "[CLS] a mill [SEP] the river [SEP]"]
    for double, training, orders in ((True, True, 2), (True, False, 1), (False, True, 1)):
        kind = make(tokenizer, double_unordered=double)
        features = kind.encode(texts(("the river", "a mill", "yes"), ("he", "she", "no")), training)
        assert [words(tokenizer, ids) for ids in features["input_ids"]][:orders] == both[:orders]
        assert features["example"] == [0] * orders + [1] * orders
        if training:
            assert features["labels"] == [1] * orders + [0] * orders


def test_training_leaves_out_what_cannot_be_learned_and_prediction_leaves_out_nothing(tokenizer):
    rows = texts(("the river", "a", "yes"), ("  \t", "a", "no"), ("the", " ", "no"), ("a", "mill", None))
    kind = make(tokenizer)
    assert kind.encode(rows, training=True)["example"] == [0]
    features = kind.encode(rows, training=False)
    assert features["example"] == [0, 1, 2, 3]
    outputs = np.array([[0, 1, 0], [3, 1, 2], [0, 1, 9], [0, 1, 0]], dtype=np.float32)
    predictions = kind.decode(outputs, features, rows)
    assert predictions == ["yes", "no", "perhaps", "yes"]
    assert kind.score(predictions, rows) == {"accuracy": pytest.approx(2 / 3)}
    assert kind.score(["no"], texts(("a", None))) == {}


def test_features_are_cached_by_all_that_decides_them(tokenizer, tmp_path, monkeypatch):
    rows = texts(("the river", "yes"))
    rows.save_to_disk(tmp_path / "rows")
    rows = Dataset.load_from_disk(tmp_path / "rows")
    first = make(tokenizer).encode(rows, training=True)
    longer, other = make(tokenizer, max_seq_length=8), make(tokenizer, label_column="x")
    prints = {kind.encode(rows, training)._fingerprint for kind in (longer, other) for training in (True, False)}
    assert len({first._fingerprint, *prints}) == 5
    kind = make(tokenizer)
    monkeypatch.setattr(kind, "encode_batch", None)
    assert kind.encode(rows, training=True).to_list() == first.to_list()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weights", [None, [0.5, 4.0, 1.0]])
def test_the_loss_of_classes_is_the_sum_of_their_weighed_cross_entropies(tokenizer, dtype, weights):
    logits = torch.randn(4, 3, dtype=dtype, requires_grad=True)
    labels, kind = torch.tensor([2, 0, -100, 1]), make(tokenizer)
    kind.class_weights = weights
    loss = kind.loss(SimpleNamespace(logits=logits), {"labels": labels})
    wanted = [
        0.0 if label == -100 else (weights or [1] * 3)[label] * (math.log(sum(map(math.exp, row))) - row[label])
        for row, label in zip(logits.tolist(), labels.tolist(), strict=True)
    ]
    assert loss.item() == pytest.approx(sum(wanted), rel=1e-5)
    assert loss.dtype == torch.float32


@pytest.mark.parametrize("unit", [(0.0, 1.0), (2.0, 4.0)])
def test_numbers_are_learned_in_their_unit_by_the_squared_error(tokenizer, unit):
    kind = make(tokenizer, "regression")
    kind.unit = mean, deviation = unit
    rows = texts(("the", "a", 5.0), ("the", "a", 0.0), ("the", "a", 2.6), kind="regression")
    features = kind.encode(rows, training=True)
    batch = kind.collate(list(features))
    wanted = (torch.tensor([[5], [0], [2.6]]) - mean) / deviation
    torch.testing.assert_close(batch["labels"], wanted.squeeze(-1))
    loss = kind.loss(SimpleNamespace(logits=wanted + torch.tensor([[1.0], [0.5], [-2.0]])), batch)
    assert loss.item() == pytest.approx(5.25)
    predictions = kind.decode(wanted.numpy(), features, rows)
    assert predictions == pytest.approx([5.0, 0.0, 2.6])
    assert kind.score(predictions, rows) == {"pearson": pytest.approx(1), "spearman": pytest.approx(1)}


def test_each_label_of_several_is_a_loss_and_a_prediction_of_its_own(tokenizer):
    kind = make(tokenizer, "multi_label")
    rows = texts(("the river", ["perhaps", "no"]), ("a mill", []), kind="multi_label")
    features = kind.encode(rows, training=True)
    batch = kind.collate(list(features))
    assert batch["labels"].tolist() == [[1, 0, 1], [0, 0, 0]]
    logits = torch.tensor([[2.0, -1.0, 0.5], [-3.0, 0.1, -0.2]])
    loss = kind.loss(SimpleNamespace(logits=logits), batch)
    signs = [1, -1, 1, -1, -1, -1]
    wanted = sum(math.log1p(math.exp(-s * x)) for s, x in zip(signs, logits.flatten().tolist(), strict=True))
    assert loss.item() == pytest.approx(wanted)
    predictions = kind.decode(logits.numpy(), features, rows)
    assert predictions == [["no", "perhaps"], ["yes"]]
    assert kind.score(predictions, rows) == {"accuracy": 0.5}


# ---- Multiple choice ----

QUESTION = ("the river was old", "he said", ["a mill", "the garden door"], 1)
BLANK = ("the river was old", "", ["a", "he"], 0)


def test_a_choice_is_read_behind_context_and_question(tokenizer):
    features = make(tokenizer, "multiple_choice").encode(choices(QUESTION, BLANK), training=True)
    assert [[words(tokenizer, ids) for ids in feature] for feature in features["input_ids"]] == [
        [
            "[CLS] the river was old [SEP] he said [SEP] a mill [SEP]",
            "[CLS] the river was old [SEP] he said [SEP] the garden door [SEP]",
        ],
        ["[CLS] the river was old [SEP] a [SEP]", "[CLS] the river was old [SEP] he [SEP]"],
    ]
    assert features["token_type_ids"][0][0] == [0] * 6 + [1] * 6
    assert (features["labels"], features["length"]) == ([1, 0], [13, 8])


def test_no_text_brings_special_tokens_into_a_choice_or_a_sentence_to_tag(tokenizer):
    asked = ("the river [SEP]", "he [MASK] said", ["a mill [SEP]", "he"], 0)
    first, _ = make(tokenizer, "multiple_choice").encode(choices(asked), training=True)["input_ids"][0]
    assert words(tokenizer, first) == "[CLS] the river [SEP] he said [SEP] a mill [SEP]"
    sentence = [{"id": "x", "texts": ["the", "[SEP]", "river"], "label": None}]
    rows = Dataset.from_list(sentence, features=example_features("tagging"))
    kind = make_kind(Task("t", "Mine", kind="tagging", metrics=("f1",), labels=("O",)), tokenizer, 16)
    ids = kind.encode(rows, training=False)[0]["input_ids"]
    assert words(tokenizer, ids) == "[CLS] the [UNK] river [SEP]"


def test_the_context_is_truncated_before_the_question_goes_and_the_choice_stays(tokenizer):
    for length, expected in (
        (10, "[CLS] the [SEP] he said [SEP] the garden door [SEP]"),
        (8, "[CLS] the river [SEP] the garden door [SEP]"),
    ):
        kind = make(tokenizer, "multiple_choice", max_seq_length=length)
        feature = kind.encode(choices(QUESTION), training=False)[0]
        assert (words(tokenizer, feature["input_ids"][1]), feature["truncated"]) == (expected, True)


def test_questions_without_a_label_are_predicted_but_not_learned(tokenizer):
    kind, rows = make(tokenizer, "multiple_choice"), choices(QUESTION, (*BLANK[:3], None))
    assert kind.encode(rows, training=True)["example"] == [0]
    features = kind.encode(rows, training=False)
    assert "labels" not in kind.collate(list(features))
    predictions = kind.decode(np.array([[0.0, 1.0], [2.0, 1.0]]), features, rows)
    assert (predictions, kind.score(predictions, rows)) == ([1, 0], {"accuracy": 1.0})


def test_choices_that_fill_a_batch_up_have_no_say_and_no_gradient(tokenizer):
    kind = make(tokenizer, "multiple_choice")
    rows = choices(QUESTION, ("the river", "he", ["a", "mill", "door"], 2))
    features = list(kind.encode(rows, training=True))
    batch = kind.collate(features)
    assert batch["input_ids"].shape[:2] == (2, 3)
    assert batch["attention_mask"][0, 2].sum() == 1
    config = ElectraConfig(vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    model = ElectraForMultipleChoice(config).eval()
    outputs = model(**{name: tensor for name, tensor in batch.items() if name != "labels"})
    outputs.logits.retain_grad()
    together = kind.loss(outputs, batch)
    together.backward()
    assert outputs.logits.grad[0, 2] == 0
    apart = [kind.collate([feature]) for feature in features]
    losses = [kind.loss(model(**{k: v for k, v in one.items() if k != "labels"}), one) for one in apart]
    torch.testing.assert_close(together, sum(losses))
    logits = outputs.logits.detach().numpy()
    logits[0, 2] = 99.0  # this question has no third choice
    assert kind.decode(logits, kind.encode(rows, training=False), rows)[0] in (0, 1)


# ---- Tagging ----

TAGS = ("O", "B-x", "I-x", "B-y", "I-y")
# Words of one token, of several, of none (a space, a control character, an accent alone), and unknown ones.
WORDS = ["river", "rivers", "milling", "天", " ", "\u200b", "\u0301", "xyzzy"]
VOCABULARY = [*SPECIAL_TOKENS, "river", "mill", "##s", "##ing", "天"]
TOKENIZER = BertTokenizer(vocab={token: n for n, token in enumerate(VOCABULARY)}, do_lower_case=True)
TAGGED = st.lists(
    st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(TAGS)), min_size=1, max_size=20), min_size=1, max_size=4
)


def make_tagger(max_seq_length=16):
    task = Task("t", "T", kind="tagging", metrics=("f1", "accuracy", "precision"), labels=TAGS)
    return make_kind(task, TOKENIZER, max_seq_length)


def sentences(*rows):
    examples = [{"id": "x", "texts": words, "label": tags} for words, tags in rows]
    return Dataset.from_list(examples, features=example_features("tagging"))


@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(TAGGED, st.sampled_from([4, 5, 16]), st.sampled_from([0, 99]))
def test_gold_logits_give_every_word_its_tag_whatever_stands_in_the_padding(rows, max_seq_length, padding):
    examples = sentences(*([list(column) for column in zip(*row, strict=True)] for row in rows))
    kind = make_tagger(max_seq_length)
    features = kind.encode(examples, training=True)
    assert max(features["length"]) <= max_seq_length
    outputs = np.full((len(features), max_seq_length, len(TAGS)), padding, dtype=np.float32)
    for row, labels in enumerate(features["labels"]):
        for place, label in enumerate(labels):
            if label != -100:
                outputs[row, place] = np.arange(len(TAGS)) == label
    predictions = kind.decode(outputs, features, examples)
    assert predictions == list(examples["label"])
    assert kind.score(predictions, examples)["accuracy"] == 1


def test_the_first_token_of_a_word_carries_its_tag_also_where_a_sentence_goes_on():
    examples = sentences((["rivers", "xyzzy", "milling", "\u200b"], ["B-x", "I-x", "O", "B-y"]))
    whole = make_tagger(16).encode(examples, training=True)
    tokens = TOKENIZER.convert_ids_to_tokens(whole["input_ids"][0])
    assert tokens[1:-1] == ["river", "##s", "[UNK]", "mill", "##ing", "[UNK]"]
    assert whole["labels"][0] == [-100, 1, -100, 2, 0, -100, 3, -100]
    assert whole["places"][0] == [1, 3, 4, 6]
    assert make_tagger().score([["B-x", "I-x", "O", "O"]], examples)["precision"] == 1  # the recall is 1/2
    parts = make_tagger(6).encode(examples, training=True)  # whole words only
    assert parts["labels"] == [[-100, 1, -100, 2, -100], [-100, 0, -100, 3, -100]]
    assert parts["example"] == [0, 0]
    short = make_tagger(3 + 1).encode(sentences((["river"], ["O"]), (["millings"], ["B-x"])), training=True)
    assert (short["labels"], short["truncated"]) == ([[-100, 0, -100], [-100, 1, -100, -100]], [False, True])


def test_sentences_without_tags_are_predicted_but_not_learned_and_those_without_words_have_no_feature():
    examples = sentences((["river"], ["O"]), ([], []), (["mill", "天"], None))
    assert make_tagger().encode(examples, training=True)["example"] == [0]
    features = make_tagger().encode(examples, training=False)
    assert features["example"] == [0, 2]
    outputs = np.zeros((2, 4, len(TAGS)), dtype=np.float32)
    outputs[:, 2, 3] = 1
    predictions = make_tagger().decode(outputs, features, examples)
    assert predictions == [["O"], [], ["O", "B-y"]]
    assert make_tagger().score(predictions, examples) == {"f1": 0.0, "accuracy": 1.0, "precision": 0.0}
