import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F  # noqa: N812
from transformers import BertConfig, BertModel, BertTokenizer, ElectraConfig, ElectraForPreTraining
from transformers import ElectraForQuestionAnswering as StockModel

from hf_electra_rtd.data.tokenization import SPECIAL_TOKENS
from hf_electra_rtd.finetuning.answer_head import ElectraForJointQuestionAnswering
from hf_electra_rtd.finetuning.examples import Answer, QuestionExample
from hf_electra_rtd.finetuning.kinds.base import Encoding
from hf_electra_rtd.finetuning.kinds.question_answering import QuestionAnsweringKind
from hf_electra_rtd.finetuning.tasks import Task


WORDS = ["river", "mill", "letter", "garden", "horse", "night", "door", "street"]
CHARACTERS = "天地玄黄宇宙洪荒日月盈昃"
VOCABULARY = [*SPECIAL_TOKENS, ".", ",", "(", ")", *WORDS, "##s", "##ing", *CHARACTERS]
TOKENIZER = BertTokenizer(
    vocab={token: index for index, token in enumerate(VOCABULARY)}, do_lower_case=True, model_max_length=512
)
QUESTION = "horse night"


def make_kind(unanswerable=False, language="en", max_length=16, doc_stride=4, max_query_length=4):
    task = Task("own", "own", "Own", language, "question_answering", (), "f1", unanswerable=unanswerable)
    return QuestionAnsweringKind(task, TOKENIZER, Encoding(max_length, doc_stride, max_query_length))


def make_example(context, text=None, start=None, question=QUESTION, id="q"):
    answers = () if text is None else (Answer(text, context.index(text) if start is None else start),)
    return QuestionExample(id, question, context, answers)


def gold_outputs(encoded, certain=9.0):
    """Logits of a stock model that has learnt the labels by heart, padded as several batches would be."""
    width = max(len(feature["input_ids"]) for feature in encoded.features)
    starts = np.full((len(encoded.features), width), -100.0, dtype=np.float32)
    for row, feature in enumerate(encoded.features):
        starts[row, : len(feature["input_ids"])] = 0
    ends = starts.copy()
    for row, feature in enumerate(encoded.features):
        starts[row, feature["labels"][0]] += certain
        ends[row, feature["labels"][1]] += certain
    return starts, ends


def joint_outputs(encoded, beam=20):
    """The same as the paper's head gives it."""
    rows = len(encoded.features)
    start_log_probs, end_log_probs = np.full((rows, beam), -1000.0), np.full((rows, beam, beam), -1000.0)
    starts, ends = np.zeros((rows, beam)), np.zeros((rows, beam, beam))
    answerable = np.zeros(rows)
    for row, feature in enumerate(encoded.features):
        start_log_probs[row, 0] = end_log_probs[row, 0, 0] = -0.1
        starts[row, 0], ends[row, 0, 0] = feature["labels"][:2]
        answerable[row] = 3.0 if feature["labels"][0] else -2.0
    outputs = (start_log_probs, end_log_probs, starts, ends, answerable, np.zeros((rows, 16)))
    return tuple(array.astype(np.float32) for array in outputs)


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
    text = context[starts[first] : starts[last] + len(words[last])]
    return QuestionExample("q", QUESTION, context, (Answer(text, starts[first]),))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(answered(), min_size=1, max_size=3), st.booleans(), st.sampled_from([0, 4, 6]))
def test_gold_outputs_decode_to_the_gold_answers(examples, unanswerable, doc_stride):
    kind = make_kind(unanswerable, doc_stride=doc_stride)
    encoded = kind.encode(examples, training=True)
    whole = {owner for owner, f in zip(encoded.owners, encoded.features, strict=True) if f["labels"][0]}
    for outputs in (gold_outputs(encoded), joint_outputs(encoded)):
        for index, prediction in enumerate(kind.decode(outputs, encoded, examples)):
            if index in whole:  # the answer fits into a window
                best = prediction["nbest"][0]["text"]
                assert best == examples[index].answers[0].text
                assert len(prediction["nbest"]) <= 20
                assert sum(answer["probability"] for answer in prediction["nbest"]) == pytest.approx(1)
    if doc_stride >= 6:  # as long as the longest of these answers
        assert whole == set(range(len(examples)))


@settings(deadline=None, max_examples=60)
@given(answered(), st.sampled_from([0, 3, 6]))
def test_windows_cover_every_token_in_order_and_overlap_by_the_stride(example, doc_stride):
    kind = make_kind(doc_stride=doc_stride)
    encoded = kind.encode([example], training=False)
    whole = TOKENIZER(example.context, add_special_tokens=False, return_offsets_mapping=True)
    ids, offsets = [], []
    for row, (feature, window) in enumerate(zip(encoded.features, encoded.notes, strict=True)):
        tokens = feature["input_ids"]
        assert len(tokens) <= 16
        assert tokens[0] == TOKENIZER.cls_token_id
        assert window.null == 0
        assert TOKENIZER.decode(tokens[1:3]) == QUESTION
        in_context = slice(window.first, window.first + len(window.offsets))
        assert tokens[3] == tokens[in_context.stop] == TOKENIZER.sep_token_id
        assert feature["token_type_ids"] == [0] * 4 + [1] * (len(tokens) - 4)
        shared = doc_stride if row else 0
        if row:
            assert ids[-shared:] == tokens[in_context][:shared] or shared == 0
        ids += tokens[in_context][shared:]
        offsets += window.offsets[shared:].tolist()
    assert ids == whole["input_ids"]
    assert [tuple(offset) for offset in offsets] == whole["offset_mapping"]


CONTEXT = " ".join([*WORDS, *WORDS])  # 16 tokens; windows of 11 beside the question, 4 shared: 0-10, 7-15


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (0, 0, [(0, 0), None]),
        (6, 10, [(6, 10), None]),
        (7, 10, [(7, 10), (0, 3)]),  # all that the windows share
        (8, 11, [None, (1, 4)]),
        (6, 11, [None, None]),  # in neither whole
        (15, 15, [None, (8, 8)]),
    ],
)
@pytest.mark.parametrize("unanswerable", [False, True])
def test_an_answer_is_labelled_in_the_windows_that_hold_it_whole(first, last, expected, unanswerable):
    words = CONTEXT.split()
    start = len(" ".join([*words[:first], ""]))
    example = make_example(CONTEXT, " ".join(words[first : last + 1]), start)
    encoded = make_kind(unanswerable).encode([example], training=True)
    labels = [[0, 0, 0] if span is None else [4 + span[0], 4 + span[1], 1] for span in expected]
    assert [feature["labels"] for feature in encoded.features] == [row[: 2 + unanswerable] for row in labels]
    assert encoded.owners == [0, 0]


def test_an_answer_inside_a_word_is_learnt_as_the_word():
    example = make_example("mill (doors) garden", "door")
    feature = make_kind().encode([example], training=True).features[0]
    first, last = feature["labels"]
    assert TOKENIZER.convert_ids_to_tokens(feature["input_ids"][first : last + 1]) == ["door"]
    example = make_example("mill xyzzy garden", "zz")
    first, last = make_kind().encode([example], training=True).features[0]["labels"]
    assert first == last == 5


def test_chinese_without_spaces_is_answered_by_characters():
    context = "天地玄黄，宇宙洪荒。日月盈昃" * 2  # noqa: RUF001
    examples = [
        QuestionExample("a", "天地", context, (Answer("宇宙洪荒", 5),)),
        QuestionExample("b", "日月", context, (Answer("盈昃天地", 12),)),
    ]
    kind = make_kind(language="zh", max_length=16, doc_stride=6)
    encoded = kind.encode(examples, training=True)
    assert len(encoded.features) > 2
    predictions = kind.decode(gold_outputs(encoded), encoded, examples)
    assert [prediction["text"] for prediction in predictions] == ["宇宙洪荒", "盈昃天地"]
    assert kind.score(predictions, examples) == {"exact_match": 1.0, "f1": 1.0}


@pytest.mark.parametrize(("language", "longest"), [("en", 30), ("zh", 100)])
def test_answers_have_a_greatest_length(language, longest):
    context = " ".join(["mill"] * 120)
    kind = make_kind(language=language, max_length=140)
    for tokens, found in ((longest, True), (longest + 1, False)):
        example = make_example(context, " ".join(["mill"] * tokens), 0)
        encoded = kind.encode([example], training=True)
        for outputs in (gold_outputs(encoded), joint_outputs(encoded)):
            assert (kind.decode(outputs, encoded, [example])[0]["text"] == example.answers[0].text) is found


def test_a_question_that_is_too_long_is_cut_and_counted():
    examples = [
        make_example("mill door", "door", question="river mills horse night garden"),
        make_example("mill door", "door", question="river mill horse night"),
    ]
    encoded = make_kind(max_query_length=4).encode(examples, training=True)
    assert encoded.cut == 1
    tokens = TOKENIZER.convert_ids_to_tokens(encoded.features[0]["input_ids"])
    assert tokens == ["[CLS]", "river", "mill", "##s", "horse", "[SEP]", "mill", "door", "[SEP]"]
    assert encoded.features[0]["labels"] == [7, 7]


def test_lengths_that_leave_no_room_are_refused():
    with pytest.raises(ValueError, match=r"leave 9 for the context.*cannot share 9"):
        make_kind(doc_stride=9)
    make_kind(doc_stride=8)
    with pytest.raises(ValueError, match="leave 0 for the context"):
        make_kind(max_query_length=64, doc_stride=0)


def test_what_cannot_be_learnt_is_skipped_and_counted():
    examples = [
        QuestionExample("unlabelled", QUESTION, "river", None),
        QuestionExample("none", QUESTION, "river", ()),
        QuestionExample("nowhere", QUESTION, "river", (Answer("mill", -1),)),
        make_example("river", "river", question=" "),
        QuestionExample("empty", QUESTION, " \n", (Answer("mill", -1),)),
        QuestionExample("dropped", QUESTION, "\u200b", (Answer("\u200b", 0),)),
        make_example("river mill", "mill"),
    ]
    training = make_kind().encode(examples, training=True)
    assert training.owners == [6]
    assert training.skipped == {
        "no label": 1,
        "no answer": 1,
        "the answer is not in the context": 1,
        "empty question": 1,
        "empty context": 2,
    }
    judged = make_kind().encode(examples, training=False)
    assert judged.owners == [0, 1, 2, 6]
    assert "labels" not in judged.features[0]
    assert [feature["labels"] for feature in judged.features[1:]] == [[-100, -100], [-100, -100], [5, 5]]
    predictions = make_kind().decode((np.zeros((4, 7)), np.zeros((4, 7))), judged, examples)
    assert [bool(prediction["text"]) for prediction in predictions] == [True, True, True, False, False, False, True]
    assert predictions[3] == {"text": "", "nbest": []}


def test_unanswerable_questions_point_at_cls_and_are_told_by_both_heads():
    examples = [
        make_example(CONTEXT),
        make_example(CONTEXT, "river mill", 0),
        QuestionExample("unread", QUESTION, "", ()),
    ]
    kind = make_kind(unanswerable=True)
    encoded = kind.encode(examples, training=False)
    assert encoded.owners == [0, 0, 1, 1]
    assert [feature["labels"] for feature in encoded.features[:2]] == [[0, 0, 0]] * 2
    for outputs, none, some in ((gold_outputs(encoded), 18.0, -18.0), (joint_outputs(encoded), 2.0, -3.0)):
        predictions = kind.decode(outputs, encoded, examples)
        assert [prediction["text"] for prediction in predictions] == ["", "river mill", ""]
        assert predictions[1]["no_answer_score"] == pytest.approx(some)
        if predictions[0]["nbest"]:
            assert predictions[0]["no_answer_score"] == pytest.approx(none)
        scores = kind.score(predictions, examples)
        assert scores["exact_match"] == scores["no_answer_f1"] == scores["has_answer_f1"] == scores["best_f1"] == 1


def test_a_stock_heads_no_answer_score_is_the_least_of_the_windows_against_the_best_answer():
    example = make_example(CONTEXT)
    kind = make_kind(unanswerable=True)
    encoded = kind.encode([example], training=False)
    random = np.random.default_rng(0)
    starts, ends = random.normal(size=(2, 2, 16)).astype(np.float32)
    best = max(
        starts[row, i] + ends[row, j]
        for row, window in enumerate(encoded.notes)
        for i in range(4, 4 + len(window.offsets))
        for j in range(i, 4 + len(window.offsets))
    )
    expected = min(starts[row, 0] + ends[row, 0] for row in range(2)) - best
    assert kind.decode((starts, ends), encoded, [example])[0]["no_answer_score"] == pytest.approx(expected, abs=1e-6)


def test_nbest_are_the_best_spans_of_all_windows_by_text():
    example = make_example(CONTEXT)
    kind = make_kind()
    encoded = kind.encode([example], training=False)
    random = np.random.default_rng(1)
    starts, ends = random.normal(scale=3, size=(2, 2, 16)).astype(np.float32)
    scores = {}
    for row, window in enumerate(encoded.notes):
        for i in range(len(window.offsets)):
            for j in range(i, len(window.offsets)):
                text = CONTEXT[window.offsets[i][0] : window.offsets[j][1]]
                scores[text] = max(scores.get(text, -np.inf), float(starts[row, 4 + i] + ends[row, 4 + j]))
    ranked = sorted(scores, key=scores.__getitem__, reverse=True)
    nbest = kind.decode((starts, ends), encoded, [example])[0]["nbest"]
    assert [answer["text"] for answer in nbest][:10] == ranked[:10]
    ratio = np.exp(scores[ranked[0]] - scores[ranked[1]])
    assert nbest[0]["probability"] / nbest[1]["probability"] == pytest.approx(ratio, rel=1e-5)


# ---- Models ----


def save_encoder(directory, model_class=ElectraForPreTraining, config_class=ElectraConfig, **options):
    config = config_class(
        vocab_size=len(VOCABULARY),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        **({"embedding_size": 16} if config_class is ElectraConfig else {}),
        **options,
    )
    model = model_class(config)
    model.save_pretrained(directory)
    return model


def make_batch(kind, training=True):
    examples = [make_example(CONTEXT, "street river"), make_example("mill river", "mill")]
    encoded = kind.encode(examples, training=training)
    return kind.collate(encoded.features)


def test_a_batch_is_padded_to_its_longest_row():
    batch = make_batch(make_kind(unanswerable=True))
    assert batch["attention_mask"].sum(1).tolist() == [16, 14, 7]
    for name, padding in (("input_ids", 0), ("token_type_ids", 0)):
        assert batch[name].shape == (3, 16)
        assert (batch[name][batch["attention_mask"] == 0] == padding).all()
    assert batch["labels"].tolist() == [[11, 12, 1], [4, 5, 1], [4, 4, 1]]


@pytest.mark.parametrize("unanswerable", [False, True])
@pytest.mark.parametrize("head", ["transformers", "paper"])
def test_the_mean_loss_is_the_originals_and_learns(tmp_path, head, unanswerable):
    save_encoder(tmp_path)
    kind = make_kind(unanswerable)
    model = kind.make_model(str(tmp_path), head, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    assert isinstance(model, ElectraForJointQuestionAnswering if head == "paper" else StockModel)
    batch = make_batch(kind)
    batch["labels"][1] = -100
    outputs = model(**kind.inputs(batch, training=True))
    loss = kind.loss(outputs, batch)
    expected = []
    for row in (0, 2):
        start, end = batch["labels"][row, :2]
        of_row = -outputs.start_logits[row].log_softmax(0)[start] - outputs.end_logits[row].log_softmax(0)[end]
        expected.append(of_row / 2)
        if unanswerable and head == "paper":
            expected[-1] = expected[-1] - 0.5 * F.logsigmoid(outputs.answerable_logits[row])
    assert int(loss.num_items) == int((batch["labels"] != -100).sum()) == 2 * (2 + unanswerable)
    torch.testing.assert_close(loss.mean(), sum(expected) / 2)
    torch.testing.assert_close(loss.losses.sum(), loss.total)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(15):
        optimizer.zero_grad()
        last = kind.loss(model(**kind.inputs(batch, training=True)), batch)
        last.mean().backward()
        optimizer.step()
    assert last.mean() < 0.5 * loss.mean()


@pytest.mark.parametrize("head", ["transformers", "paper"])
def test_a_fine_tuned_model_keeps_its_head(tmp_path, head):
    save_encoder(tmp_path / "encoder")
    kind = make_kind(unanswerable=True)
    model = kind.make_model(str(tmp_path / "encoder"), head).eval()
    model.save_pretrained(tmp_path / "tuned")
    again = kind.make_model(str(tmp_path / "tuned"), head).eval()
    assert type(again) is type(model)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    scratch = kind.make_model(str(tmp_path / "tuned"), head, from_scratch=True)
    assert type(scratch) is type(model)
    assert not torch.equal(next(scratch.parameters()), next(model.parameters()))


def test_the_encoder_is_kept_and_only_the_head_is_new(tmp_path):
    encoder = save_encoder(tmp_path)
    model = make_kind().make_model(str(tmp_path), "paper")
    assert all(torch.equal(t, model.electra.state_dict()[name]) for name, t in encoder.electra.state_dict().items())
    assert "answerable" not in str(list(model.state_dict()))


def test_any_encoder_has_the_stock_head_and_only_electra_the_papers(tmp_path):
    save_encoder(tmp_path, BertModel, BertConfig)
    kind = make_kind()
    assert type(kind.make_model(str(tmp_path), "transformers")).__name__ == "BertForQuestionAnswering"
    with pytest.raises(ValueError, match=r"for ELECTRA.*type 'bert'.*head='transformers'"):
        kind.make_model(str(tmp_path), "paper")


def test_heads_that_do_not_fit_are_refused(tmp_path):
    save_encoder(tmp_path / "stock", StockModel)
    save_encoder(tmp_path / "joint", ElectraForJointQuestionAnswering)
    with pytest.raises(ValueError, match="cannot become the paper's"):
        make_kind().make_model(str(tmp_path / "stock"), "paper")
    with pytest.raises(ValueError, match=r"questions that have an answer, but those of Own may\s+have none"):
        make_kind(unanswerable=True).make_model(str(tmp_path / "joint"), "paper")
    with pytest.raises(ValueError, match="no head 'papr'"):
        make_kind().make_model(str(tmp_path / "stock"), "papr")
    # As for other tasks, a head that was learnt wins over the name of another.
    assert isinstance(
        make_kind().make_model(str(tmp_path / "joint"), "transformers"), ElectraForJointQuestionAnswering
    )


@pytest.mark.parametrize("head", ["transformers", "paper"])
@torch.no_grad()
def test_a_models_own_outputs_are_decoded(tmp_path, head):
    save_encoder(tmp_path)
    kind = make_kind(unanswerable=True)
    model = kind.make_model(str(tmp_path), head).eval()
    examples = [make_example(CONTEXT, "street river"), make_example("mill river")]
    encoded = kind.encode(examples, training=False)
    batch = kind.collate(encoded.features)
    outputs = model(**kind.inputs(batch, training=False))
    assert torch.isfinite(kind.loss(outputs, batch).total)
    arrays = tuple(tensor.float().numpy() for tensor in outputs.to_tuple())
    unlabelled = model(**{name: tensor for name, tensor in batch.items() if name != "labels"})
    again = tuple(tensor.float().numpy() for tensor in unlabelled.to_tuple())
    predictions = kind.decode(arrays, encoded, examples)
    assert predictions == kind.decode(again, encoded, examples)
    for prediction, example in zip(predictions, examples, strict=True):
        assert all(answer["text"] in example.context for answer in prediction["nbest"])
        assert prediction["nbest"]
