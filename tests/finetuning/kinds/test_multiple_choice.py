from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BertTokenizer, ElectraConfig, ElectraForMultipleChoice, ElectraModel

from hf_electra_rtd.data.tokenization import SPECIAL_TOKENS
from hf_electra_rtd.finetuning.examples import ChoiceExample
from hf_electra_rtd.finetuning.kinds.base import Encoding
from hf_electra_rtd.finetuning.kinds.multiple_choice import MultipleChoiceKind
from hf_electra_rtd.finetuning.tasks import Task


WORDS = ["river", "mill", "garden", "horse", "old", "中", "国"]
TOKENIZER = BertTokenizer(
    vocab={token: index for index, token in enumerate([*SPECIAL_TOKENS, *WORDS])}, do_lower_case=True
)
CLS, SEP = TOKENIZER.cls_token_id, TOKENIZER.sep_token_id
CONFIG = ElectraConfig(
    vocab_size=len(TOKENIZER),
    embedding_size=16,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    initializer_range=0.3,
)

texts = st.lists(st.sampled_from([*WORDS, "\u200b"]), max_size=6).map(" ".join)


@st.composite
def questions(draw):
    choices = draw(st.lists(texts, min_size=2, max_size=5))
    return ChoiceExample("7", draw(texts), draw(texts), tuple(choices), draw(st.integers(0, len(choices) - 1)))


def make_kind(max_length=32):
    task = Task("reading", "own", "Reading", "en", "multiple_choice", ("accuracy",), "accuracy")
    return MultipleChoiceKind(task, TOKENIZER, Encoding(max_length=max_length))


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return ElectraForMultipleChoice(CONFIG).eval()


def question(*choices, label=0, context="old river", asked="mill"):
    return ChoiceExample("7", context, asked, choices, label)


def ids(text):
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


def test_a_row_holds_context_question_and_choice():
    encoded = make_kind().encode([question("garden", "horse old"), question("中", asked="")], training=False)
    tokens = [[TOKENIZER.decode(row) for row in feature["input_ids"]] for feature in encoded.features]
    assert tokens == [
        ["[CLS] old river [SEP] mill [SEP] garden [SEP]", "[CLS] old river [SEP] mill [SEP] horse old [SEP]"],
        ["[CLS] old river [SEP] 中 [SEP]"],
    ]
    assert encoded.features[0]["token_type_ids"] == [[0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1, 1, 1, 1]]
    assert encoded.cut == 0


@given(questions(), st.integers(4, 24))
@settings(max_examples=150, deadline=None)
def test_the_context_is_cut_before_the_question_and_the_question_before_the_choice(example, max_length):
    encoded = make_kind(max_length).encode([example], training=True)
    room = max_length - 3
    context, asked = ids(example.context), ids(example.question)
    lost = False
    for row, segments, text in zip(
        encoded.features[0]["input_ids"], encoded.features[0]["token_type_ids"], example.choices, strict=True
    ):
        assert len(row) == len(segments) <= max_length
        choice = ids(text)[:room]
        second = [*asked[: room - len(choice) - 1], SEP, *choice] if room - len(choice) > 1 and asked else choice
        first = context[: room - len(second)]
        assert row == [CLS, *first, SEP, *second, SEP]
        assert segments == [0] * (len(first) + 2) + [1] * (len(second) + 1)
        whole = len(context) + len(asked) + bool(asked) + len(ids(text))
        lost |= whole > room
        assert len(row) == min(max_length, whole + 3) or (len(row) == max_length - 1 and first == [])
    assert encoded.cut == lost


@given(st.lists(questions(), min_size=1, max_size=4))
@settings(max_examples=30, deadline=None)
def test_the_loss_is_a_sum_over_questions_that_batches_do_not_change(model, examples):
    kind = make_kind()
    features = kind.encode(examples, training=True).features

    def run(features):
        batch = kind.collate(features)
        outputs = model(**kind.inputs(batch, training=True))
        return kind.loss(outputs, batch), outputs.logits

    with torch.no_grad():
        together, logits = run(features)
        apart = [run([feature])[0] for feature in features]
    expected = []
    for row, example in zip(logits.double().numpy(), examples, strict=True):
        row = row[: len(example.choices)]
        expected.append(np.log(np.exp(row).sum()) - row[example.label])
    assert float(together.total) == pytest.approx(sum(expected), rel=1e-5)
    assert together.losses.tolist() == pytest.approx(expected, rel=1e-5)
    assert int(together.num_items) == len(examples)
    # Other choices and other lengths beside it change nothing.
    assert [float(loss.total) for loss in apart] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_rows_that_fill_up_choices_have_no_say_and_no_gradient(attention):
    torch.manual_seed(0)
    model = ElectraForMultipleChoice(ElectraConfig(**{**CONFIG.to_dict(), "attn_implementation": attention}))
    kind = make_kind()
    features = kind.encode([question("garden", "horse"), question("中", "国", "old", label=2)], True).features
    batch = kind.collate(features)
    assert batch["input_ids"].shape == (2, 3, 8)
    assert batch["attention_mask"][0, 2].tolist() == [1, 0, 0, 0, 0, 0, 0, 0]
    outputs = model(**kind.inputs(batch, training=True))
    outputs.logits.retain_grad()
    kind.loss(outputs, batch).total.backward()
    assert outputs.logits.grad[0, 2] == 0
    assert (outputs.logits.grad[1] != 0).all()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters() if parameter.grad is not None)
    winning = outputs.logits.detach().clone()
    winning[0, 2] = 1e4
    assert torch.equal(
        kind.loss(SimpleNamespace(logits=winning), batch).losses, kind.loss(outputs, batch).losses.detach()
    )


def test_a_choice_with_nothing_to_read_is_still_a_choice(model):
    kind = make_kind()
    batch = kind.collate(kind.encode([question("", "\u200b", context="", asked="", label=1)], True).features)
    with torch.no_grad():
        loss = kind.loss(model(**kind.inputs(batch, training=True)), batch)
    assert float(loss.total) == pytest.approx(np.log(2))  # both rows are the same, and both count


def test_the_loss_of_half_precision_logits_is_computed_in_float32():
    kind = make_kind()
    batch = kind.collate(
        kind.encode([question("garden", "horse"), question("中", "国", "old", label=2)], True).features
    )
    logits = torch.randn(2, 3).bfloat16()
    half = kind.loss(SimpleNamespace(logits=logits), batch)
    assert half.total.dtype == torch.float32
    assert torch.equal(half.total, kind.loss(SimpleNamespace(logits=logits.float()), batch).total)


@given(st.lists(questions(), max_size=4), st.integers(0, 2))
@settings(max_examples=100, deadline=None)
def test_gold_logits_decode_to_the_right_choices_whatever_stands_in_the_padding(examples, padding):
    kind = make_kind()
    encoded = kind.encode(examples, training=False)
    outputs = np.full((len(examples), 5 + padding), -100, np.float32)
    for row, example in enumerate(examples):
        outputs[row, : len(example.choices)] = -300
        outputs[row, example.label] = -200
    predictions = kind.decode(outputs, encoded, examples)
    assert predictions == [example.label for example in examples]
    assert all(type(prediction) is int for prediction in predictions)
    assert kind.score(predictions, examples) == ({"accuracy": 1.0} if examples else {})


def test_questions_without_a_label_are_predicted_but_not_learnt():
    kind = make_kind()
    examples = [question("garden", "horse", label=None), question("中", "国", label=1)]
    trained = kind.encode(examples, training=True)
    assert (trained.owners, trained.skipped) == ([1], {"no label": 1})
    encoded = kind.encode(examples, training=False)
    assert (encoded.owners, encoded.skipped) == ([0, 1], {})
    assert kind.collate(encoded.features)["labels"].tolist() == [-100, 1]
    assert "labels" not in kind.collate(encoded.features[:1])
    predictions = kind.decode(np.array([[2.0, 1.0], [2.0, 1.0]], np.float32), encoded, examples)
    assert predictions == [0, 0]
    assert kind.score(predictions, examples) == {"accuracy": 0.0}
    assert kind.score(predictions[:1], examples[:1]) == {}
    batch = kind.collate(encoded.features)
    loss = kind.loss(SimpleNamespace(logits=torch.tensor([[2.0, 1.0], [0.0, 0.0]])), batch)
    assert int(loss.num_items) == 1
    assert float(loss.total) == pytest.approx(np.log(2))


def test_nothing_to_encode_gives_no_predictions():
    kind = make_kind()
    assert kind.decode(None, kind.encode([], training=False), []) == []


def test_the_papers_head_is_dropout_and_one_dense_layer_on_the_first_vector(tmp_path):
    ElectraModel(CONFIG).save_pretrained(tmp_path)
    kind = make_kind()
    model = kind.make_model(str(tmp_path), "paper").eval()
    assert type(model) is ElectraForMultipleChoice
    assert {name.split(".")[0] for name, _ in model.named_parameters()} == {"electra", "classifier"}
    assert [module.p for module in model.sequence_summary.modules() if isinstance(module, torch.nn.Dropout)] == [0.1]
    inputs = kind.inputs(kind.collate(kind.encode([question("garden", "horse")], True).features), training=True)
    with torch.no_grad():
        rows = {name: tensor[0] for name, tensor in inputs.items()}
        expected = model.classifier(model.electra(**rows).last_hidden_state[:, 0])
        torch.testing.assert_close(model(**inputs).logits, expected.view(1, 2))


def test_the_stock_head_reads_the_first_vector_too(tmp_path):
    ElectraModel(CONFIG).save_pretrained(tmp_path)
    assert make_kind().make_model(str(tmp_path), "transformers").sequence_summary.summary_type == "first"


def test_a_head_that_reads_the_padding_is_refused(tmp_path):
    ElectraModel(ElectraConfig(**{**CONFIG.to_dict(), "summary_type": "last"})).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="summary_type='last'"):
        make_kind().make_model(str(tmp_path), "transformers")


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (question("garden", "horse", label=2), "Question 7: the label 2 is the index of none of its 2"),
        (question("garden", "horse", label=-1), "Question 7: the label -1"),
        (question(label=None), "Question 7 has no choices"),
    ],
)
def test_labels_and_choices_that_do_not_fit_are_refused(example, message):
    for training in (True, False):
        with pytest.raises(ValueError, match=message):
            make_kind().encode([example], training)


def test_rows_without_room_are_refused():
    with pytest.raises(ValueError, match="max_length=3 leaves no room"):
        make_kind(max_length=3)
