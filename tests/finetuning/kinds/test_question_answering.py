"""Question answering: windows of long contexts, their labels and losses, and the best answer over all windows."""

import numpy as np
import pytest
import torch
from datasets import Dataset
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import BertTokenizer

from hf_electra_rtd.base.tasks import Task
from hf_electra_rtd.data.tokenization import SPECIAL_TOKENS
from hf_electra_rtd.finetuning.kinds import make_kind
from hf_electra_rtd.finetuning.reading import example_features


WORDS = ["river", "mill", "letter", "garden", "horse", "night", "door", "street"]
VOCABULARY = [*SPECIAL_TOKENS, ".", ",", "(", ")", *WORDS, "##s", "##ing"]
TOKENIZER = BertTokenizer(vocab={token: n for n, token in enumerate(VOCABULARY)}, do_lower_case=True)
QUESTION = "horse night"
CONTEXT = " ".join([*WORDS, *WORDS])  # 16 tokens; windows of 11 beside the question, 4 shared: 0-10, 7-15


def make(unanswerable=False, language="en", max_seq_length=16, doc_stride=4, max_query_length=4):
    task = Task("t", "T", language=language, kind="question_answering", metrics=("f1",), unanswerable=unanswerable)
    return make_kind(task, TOKENIZER, max_seq_length, doc_stride, max_query_length)


def row(context, text=None, start=None, question=QUESTION, known=True):
    answers = [] if text is None else [text]
    starts = [context.index(text) if start is None else start] if answers else []
    known = {"label": answers, "starts": starts} if known else {"label": None, "starts": None}
    return {"id": "q", "question": question, "context": context, **known}


def questions(*rows):
    return Dataset.from_list(list(rows), features=example_features("question_answering"))


def gold_outputs(features, certain=9.0):
    """Returns the logits of a model that knows all labels, padded like the outputs of several batches."""
    starts = np.full((len(features), max(features["length"])), -100.0, dtype=np.float32)
    for number, length in enumerate(features["length"]):
        starts[number, :length] = 0
    ends = starts.copy()
    for number, labels in enumerate(features["labels"]):
        starts[number, labels[0]] += certain
        ends[number, labels[1]] += certain
    return starts, ends


@st.composite
def answered(draw):
    """A context of words, punctuation and white space, and a passage of whole words of it."""
    words = draw(st.lists(st.sampled_from([*WORDS, "rivers", "Milling", "(door)", "xyzzy"]), min_size=1, max_size=40))
    gaps = draw(st.lists(st.sampled_from([" ", "  ", "\n", " , "]), min_size=len(words), max_size=len(words)))
    starts, context = [], draw(st.sampled_from(["", " "]))
    for word, gap in zip(words, gaps, strict=True):
        starts.append(len(context))
        context += word + gap
    first = draw(st.integers(0, len(words) - 1))
    last = draw(st.integers(first, min(first + 1, len(words) - 1)))
    return row(context, context[starts[first] : starts[last] + len(words[last])], starts[first])


@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(answered(), min_size=1, max_size=3), st.booleans(), st.sampled_from([0, 4, 6]))
def test_gold_outputs_decode_to_the_gold_answers(rows, unanswerable, doc_stride):
    kind, examples = make(unanswerable, doc_stride=doc_stride), questions(*rows)
    features = kind.encode(examples, training=True)
    whole = {owner for owner, labels in zip(features["example"], features["labels"], strict=True) if labels[0]}
    for index, prediction in enumerate(kind.decode(gold_outputs(features), features, examples)):
        if index in whole:  # the answer fits into a window
            assert prediction["nbest"][0]["text"] == rows[index]["label"][0]
            assert len(prediction["nbest"]) <= 20
            assert sum(answer["probability"] for answer in prediction["nbest"]) == pytest.approx(1)
    if doc_stride >= 6:  # this is enough for the longest possible answer, 7 tokens
        assert whole == set(range(len(rows)))


@settings(deadline=None, max_examples=12)
@given(answered(), st.sampled_from([0, 3, 6]))
def test_windows_cover_every_token_in_order_and_overlap_by_the_stride(example, doc_stride):
    features = make(doc_stride=doc_stride).encode(questions(example), training=False)
    whole = TOKENIZER(example["context"], add_special_tokens=False, return_offsets_mapping=True)
    ids, offsets = [], []
    for number, feature in enumerate(features):
        tokens = feature["input_ids"]
        first, end = feature["first"], feature["first"] + len(feature["offsets"])
        assert len(tokens) == feature["length"] <= 16
        assert tokens[0] == TOKENIZER.cls_token_id
        assert TOKENIZER.decode(tokens[1:3]) == QUESTION
        assert tokens[3] == tokens[end] == TOKENIZER.sep_token_id
        assert feature["token_type_ids"] == [0] * 4 + [1] * (len(tokens) - 4)
        shared = doc_stride if number else 0
        assert not shared or ids[-shared:] == tokens[first:end][:shared]
        ids += tokens[first:end][shared:]
        offsets += feature["offsets"][shared:]
    assert ids == whole["input_ids"]
    assert [tuple(offset) for offset in offsets] == whole["offset_mapping"]


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (0, 0, [(0, 0), None]),
        (6, 10, [(6, 10), None]),
        (7, 10, [(7, 10), (0, 3)]),  # the whole overlap of the windows
        (8, 11, [None, (1, 4)]),
        (6, 11, [None, None]),  # whole in neither window
        (15, 15, [None, (8, 8)]),
    ],
)
@pytest.mark.parametrize("unanswerable", [False, True])
def test_an_answer_is_labeled_in_the_windows_that_hold_it_whole(first, last, expected, unanswerable):
    words = CONTEXT.split()
    example = row(CONTEXT, " ".join(words[first : last + 1]), len(" ".join([*words[:first], ""])))
    features = make(unanswerable).encode(questions(example), training=True)
    assert features["labels"] == [[0, 0] if span is None else [4 + span[0], 4 + span[1]] for span in expected]
    assert features["example"] == [0, 0]


def test_an_answer_inside_a_word_is_learned_as_the_word():
    for context, text, token in (("mill (doors) garden", "door", 6), ("mill xyzzy night", "zz", 5)):
        assert make().encode(questions(row(context, text)), training=True)["labels"][0] == [token, token]


def test_answers_have_a_greatest_length():
    for language, tokens, found in (("en", 30, True), ("en", 31, False), ("zh", 100, True), ("zh", 101, False)):
        kind, example = make(language=language, max_seq_length=140), row("mill " * 120, " ".join(["mill"] * tokens), 0)
        features = kind.encode(questions(example), training=True)
        text = kind.decode(gold_outputs(features), features, questions(example))[0]["text"]
        assert (text == example["label"][0]) is found


def test_a_question_that_is_too_long_is_truncated_and_marked():
    rows = [
        row("mill door", "door", question=asked) for asked in ("river mills horse night", "river mill horse night")
    ]
    features = make().encode(questions(*rows), training=True)
    assert features["truncated"] == [True, False]
    tokens = TOKENIZER.convert_ids_to_tokens(features["input_ids"][0])
    assert tokens == ["[CLS]", "river", "mill", "##s", "horse", "[SEP]", "mill", "door", "[SEP]"]
    assert features["labels"][0] == [7, 7]


def test_lengths_that_leave_no_room_are_refused():
    with pytest.raises(ValueError, match=r"max_seq_length is 16.* 9 "):
        make(doc_stride=9)
    with pytest.raises(ValueError, match="max_seq_length is 3"):
        make(max_seq_length=3)


def test_training_leaves_out_what_cannot_be_learned_and_prediction_what_cannot_be_read():
    examples = questions(
        row("river", known=False),
        row("river"),
        row("river", "mill", -1),
        row("river", "river", question=" "),
        row(" \n", "mill", -1),
        row("\u200b", "\u200b", 0),
        row("river mill", "mill"),
    )
    assert make().encode(examples, training=True)["example"] == [6]
    assert make(unanswerable=True).encode(examples, training=True)["example"] == [1, 6]
    features = make().encode(examples, training=False)
    assert features["example"] == [0, 1, 2, 6]
    # Without labels, because one answer is not known.
    assert set(make().collate(list(features))) == {"input_ids", "token_type_ids", "attention_mask"}
    predictions = make().decode((np.zeros((4, 7)), np.zeros((4, 7))), features, examples)
    assert [bool(prediction["text"]) for prediction in predictions] == [True, True, True, False, False, False, True]
    assert predictions[3] == {"text": "", "nbest": []}
    assert make().score(predictions[:1], examples.select([0])) == {}


def test_unanswerable_questions_point_at_cls_and_are_predicted():
    examples = questions(row(CONTEXT), row(CONTEXT, "river mill", 0), row(""))
    kind = make(unanswerable=True)
    features = kind.encode(examples, training=False)
    assert features["example"] == [0, 0, 1, 1]
    assert kind.encode(examples, training=True)["labels"][:2] == [[0, 0]] * 2
    predictions = kind.decode(gold_outputs(kind.encode(examples, training=True)), features, examples)
    assert [prediction["text"] for prediction in predictions] == ["", "river mill", ""]
    assert [one["no_answer_score"] for one in predictions] == pytest.approx([18.0, -18.0, 1000.0])
    scores = kind.score(predictions, examples)
    assert scores["exact_match"] == scores["no_answer_f1"] == scores["has_answer_f1"] == 1


def test_the_best_answers_are_those_of_all_windows_by_brute_force():
    kind, examples = make(unanswerable=True), questions(row(CONTEXT))
    features = kind.encode(examples, training=False)
    starts, ends = np.random.default_rng(1).normal(scale=3, size=(2, 2, 16)).astype(np.float32)
    scores = {}
    for number, offsets in enumerate(features["offsets"]):
        for i in range(len(offsets)):
            for j in range(i, len(offsets)):
                text = CONTEXT[offsets[i][0] : offsets[j][1]]
                score = float(starts[number, 4 + i] + ends[number, 4 + j])
                scores[text] = max(scores.get(text, -np.inf), score)
    ranked = sorted(scores, key=scores.__getitem__, reverse=True)
    prediction = kind.decode((starts, ends), features, examples)[0]
    assert [answer["text"] for answer in prediction["nbest"]][:10] == ranked[:10]
    ratio = np.exp(scores[ranked[0]] - scores[ranked[1]])
    assert prediction["nbest"][0]["probability"] / prediction["nbest"][1]["probability"] == pytest.approx(
        ratio, rel=1e-5
    )
    null = min(starts[number, 0] + ends[number, 0] for number in range(2))
    assert prediction["no_answer_score"] == pytest.approx(null - scores[ranked[0]], abs=1e-6)


@pytest.mark.parametrize("unanswerable", [False, True])
def test_the_mean_loss_is_the_originals(unanswerable):
    kind = make(unanswerable)
    examples = questions(row(CONTEXT, "street river"), row("mill river", "mill"))
    batch = kind.collate(list(kind.encode(examples, training=True)))
    assert batch["attention_mask"].sum(1).tolist() == [16, 14, 7]
    assert batch["labels"].tolist() == [[11, 12], [4, 5], [4, 4]]
    torch.manual_seed(0)
    outputs = {"start_logits": torch.randn(3, 16), "end_logits": torch.randn(3, 16)}
    expected = []
    for number in range(3):
        start, end = batch["labels"][number, :2]
        of_row = (
            -outputs["start_logits"][number].log_softmax(0)[start] - outputs["end_logits"][number].log_softmax(0)[end]
        )
        expected.append(of_row / 2)
    torch.testing.assert_close(kind.loss(outputs, batch) / batch["labels"].numel(), sum(expected) / 3)
