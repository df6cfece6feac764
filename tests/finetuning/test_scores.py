"""Scores equal what their formulas give, are never NaN, and refuse what cannot be scored."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_electra_rtd.finetuning.scores import find_chunks, score_labels, score_tags


def counts(predictions, references, label):
    """True positives, false positives, false negatives."""
    pairs = Counter(zip((p == label for p in predictions), (r == label for r in references), strict=True))
    return pairs[True, True], pairs[True, False], pairs[False, True]


def f1_by_counting(predictions, references, label):
    true, false, missed = counts(predictions, references, label)
    return 2 * true / (2 * true + false + missed) if true else 0.0


def matthews_by_indicators(predictions, references):
    """Pearson's correlation of one-hot vectors, summed over labels (Gorodkin 2004, R_K)."""
    labels = sorted({*predictions, *references})
    predicted, right = (np.array([[v == k for k in labels] for v in c], float) for c in (predictions, references))
    predicted, right = predicted - predicted.mean(0), right - right.mean(0)
    norm = math.sqrt((predicted**2).sum() * (right**2).sum())
    return (predicted * right).sum() / norm if norm else 0.0


def pearson_by_sums(first, second):
    first, second = (np.asarray(c, np.float64) - np.mean(c, dtype=np.float64) for c in (first, second))
    return float(first @ second / math.sqrt((first @ first) * (second @ second)))


def mean_ranks(values):
    return [sum(other < value for other in values) + (values.count(value) + 1) / 2 for value in values]


def columns(values, min_size=1):
    pairs = st.lists(st.tuples(values, values), min_size=min_size, max_size=30)
    return pairs.map(lambda rows: tuple(map(list, zip(*rows, strict=True))))


@settings(deadline=None, max_examples=50)
@given(columns(st.sampled_from(["no", "yes"])))
def test_two_labels_are_scored_as_counting_does(rows):
    found = score_labels(["accuracy", "f1", "matthews"], *rows, ["no", "yes"])
    assert found["accuracy"] == pytest.approx(sum(p == r for p, r in zip(*rows, strict=True)) / len(rows[0]))
    assert found["f1"] == pytest.approx(f1_by_counting(*rows, "yes"))
    true, false, missed = counts(*rows, "yes")
    rest = len(rows[0]) - true - false - missed
    norm = math.sqrt((true + false) * (true + missed) * (rest + false) * (rest + missed))
    assert found["matthews"] == pytest.approx((true * rest - false * missed) / norm if norm else 0.0, abs=1e-12)


@settings(deadline=None, max_examples=50)
@given(columns(st.sampled_from(["100", "101", "102", "103"])))
def test_many_labels_are_scored_as_counting_does(rows):
    found = score_labels(["macro_f1", "matthews"], *rows, ["100", "101", "102", "103", "never"])
    seen = {*rows[0], *rows[1]}
    assert found["macro_f1"] == pytest.approx(sum(f1_by_counting(*rows, label) for label in seen) / len(seen))
    assert found["matthews"] == pytest.approx(matthews_by_indicators(*rows), abs=1e-12)
    assert all(type(value) is float for value in found.values())


@settings(deadline=None, max_examples=50)
@given(columns(st.integers(0, 50).map(lambda n: n / 10), min_size=2))
def test_numbers_are_correlated_as_sums_and_ranks_do(rows):
    found = score_labels(["pearson", "spearman"], *rows)
    if len(set(rows[0])) == 1 or len(set(rows[1])) == 1:
        assert found == {"pearson": 0.0, "spearman": 0.0}
    else:
        assert found["pearson"] == pytest.approx(pearson_by_sums(*rows), abs=1e-9)
        assert found["spearman"] == pytest.approx(pearson_by_sums(*map(mean_ranks, rows)), abs=1e-9)


@settings(deadline=None, max_examples=50)
@given(columns(st.floats(allow_nan=False, allow_infinity=False, width=32)))
def test_no_finite_numbers_give_nan_or_a_warning(rows):
    found = score_labels(["pearson", "spearman"], *(np.array(column, np.float32) for column in rows))
    assert all(-1.0000001 <= value <= 1.0000001 for value in found.values())


def test_numbers_that_differ_by_rounding_only_count_as_constant():
    predictions = [1.0, 1.0 + 2**-52, 1.0, 1.0]
    assert score_labels(["pearson"], predictions, [1.0, 2.0, 3.0, 4.0]) == {"pearson": 0.0}


def test_where_one_side_is_constant_the_correlation_is_given_as_0(caplog):
    found = score_labels(["matthews"], ["a", "a"], ["a", "b"], ["a", "b"])
    found |= score_labels(["pearson", "spearman"], [2.0, 2.0, 2.0], [1.0, 2.0, 3.0])
    assert found == {"matthews": 0.0, "pearson": 0.0, "spearman": 0.0}
    assert "matthews is given as 0" in caplog.text


def test_the_positive_label_is_the_second():
    predictions, references = ["x", "y", "y", "x"], ["x", "y", "x", "x"]
    assert score_labels(["f1"], predictions, references, ["x", "y"])["f1"] == pytest.approx(2 / 3)
    assert score_labels(["f1"], predictions, references, ["y", "x"])["f1"] == pytest.approx(4 / 5)
    assert score_labels(["f1"], ["x"], ["x"], ["x", "y"]) == {"f1": 0.0}


@pytest.mark.parametrize(
    ("metrics", "predictions", "references", "labels", "message"),
    [
        (["f2"], ["a"], ["a"], ["a", "b"], "no metric 'f2'"),
        (["accuracy"], [], [], ["a", "b"], "nothing to score"),
        (["accuracy"], ["a"], ["a", "b"], ["a", "b"], "1 predictions for 2 references"),
        (["accuracy"], ["a", "c"], ["a", "b"], ["a", "b"], "'c' is none of the labels a, b"),
        (["accuracy"], ["a"], ["d"], ["a", "b"], "'d' is none of the labels"),
        (["f1"], ["a"], ["b"], ["a", "b", "c"], "f1 needs two labels.*there are 3. Ask for macro_f1"),
        (["pearson"], [1.0, math.nan], [1.0, 2.0], [], "pearson needs finite numbers"),
        (["spearman"], [1.0, 2.0], [math.inf, 2.0], [], "spearman needs finite numbers"),
    ],
)
def test_what_cannot_be_scored_is_refused(metrics, predictions, references, labels, message):
    with pytest.raises(ValueError, match=message):
        score_labels(metrics, predictions, references, labels)


@pytest.mark.parametrize(
    ("tags", "chunks"),
    [
        ("B-NP I-NP O B-VP", {(0, 2, "NP"), (3, 4, "VP")}),
        ("B-NP B-NP I-NP", {(0, 1, "NP"), (1, 3, "NP")}),
        ("I-NP I-NP", {(0, 2, "NP")}),  # no B-: as IOB1
        ("O I-NP O I-NP", {(1, 2, "NP"), (3, 4, "NP")}),
        ("B-NP I-VP I-VP", {(0, 1, "NP"), (1, 3, "VP")}),  # another type begins another chunk
        ("B-a-b I-a-b I-a", {(0, 2, "a-b"), (2, 3, "a")}),
        ("", set()),
    ],
)
def test_chunks_are_those_of_conlleval(tags, chunks):
    assert find_chunks(tags.split()) == chunks


def chunks_by_boundaries(tags):
    """Word by word, whether a chunk starts before it and ends behind it (conlleval's startOfChunk and endOfChunk)."""
    cut = [("O", "O"), *[tuple(tag.split("-", 1)) if tag != "O" else ("O", "O") for tag in tags], ("O", "O")]
    starts = [
        place - 1
        for place in range(1, len(cut) - 1)
        if cut[place][0] != "O" and (cut[place][0] == "B" or cut[place - 1][1] != cut[place][1])
    ]
    ends = [
        place
        for place in range(1, len(cut) - 1)
        if cut[place][0] != "O" and (cut[place + 1][0] in "BO" or cut[place + 1][1] != cut[place][1])
    ]
    return {(start, end, cut[end][1]) for start, end in zip(starts, ends, strict=True)}


TAG = st.sampled_from(["O", "B-x", "I-x", "B-y", "I-y"])
SENTENCE = st.lists(st.tuples(TAG, TAG) | TAG.map(lambda tag: (tag, tag)), min_size=1, max_size=8)


@settings(deadline=None, max_examples=50)
@given(st.lists(SENTENCE, min_size=1, max_size=5))
def test_tags_are_scored_as_counting_chunks_does(rows):
    predictions, references = ([[pair[side] for pair in row] for row in rows] for side in (0, 1))
    predicted, right = (
        {(row, *chunk) for row, tags in enumerate(column) for chunk in chunks_by_boundaries(tags)}
        for column in (predictions, references)
    )
    found = score_tags(["accuracy", "precision", "recall", "f1", "macro_f1"], predictions, references)
    words = [pair for row in rows for pair in row]
    assert found["accuracy"] == pytest.approx(sum(one == other for one, other in words) / len(words))
    shared = len(predicted & right)
    precision = shared / len(predicted) if predicted else 0.0
    recall = shared / len(right) if right else 0.0
    assert found["precision"] == pytest.approx(precision)
    assert found["recall"] == pytest.approx(recall)
    assert found["f1"] == pytest.approx(2 * precision * recall / (precision + recall) if shared else 0.0)
    of_types = [
        2
        * len({c for c in predicted & right if c[3] == kind})
        / sum(c[3] == kind for s in (predicted, right) for c in s)
        for kind in {c[3] for c in predicted | right}
    ]
    assert found["macro_f1"] == pytest.approx(sum(of_types) / len(of_types) if of_types else 0.0)


def test_a_chunk_does_not_reach_into_the_next_sentence():
    found = score_tags(["precision", "recall"], [["B-x"], ["I-x"]], [["B-x"], ["B-x"]])
    assert found == {"precision": 1.0, "recall": 1.0}


@pytest.mark.parametrize(
    ("metrics", "predictions", "references", "message"),
    [
        (["matthews"], [["O"]], [["O"]], "no metric 'matthews' for tags"),
        (["f1"], [], [], "nothing to score"),
        (["f1"], [["O"]], [["O"], ["O"]], "1 predictions for 2 references"),
        (["f1"], [["O"], ["O"]], [["O"], ["O", "O"]], "Sentence 1 has 1 predicted tags for 2 words"),
        (["f1"], [["O", "S-x"]], [["O", "O"]], "Word 1: 'S-x' is not a BIO tag"),
        (["f1"], [["B"]], [["O"]], "Word 0: 'B' is not a BIO tag"),
        (["f1"], [["O-x"]], [["O"]], "Word 0: 'O-x' is not a BIO tag"),
    ],
)
def test_tags_that_cannot_be_scored_are_refused(metrics, predictions, references, message):
    with pytest.raises(ValueError, match=message):
        score_tags(metrics, predictions, references)
