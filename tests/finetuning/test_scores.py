"""Scores agree with their formulas or the official scripts, and are never NaN. Invalid input is refused."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_electra_rtd.finetuning.scores import (
    find_chunks,
    label_report,
    score_answers,
    score_labels,
    score_squad_v2,
    tag_report,
)


def test_of_two_labels_the_second_is_positive_and_macro_f1_is_over_the_labels_that_are_there():
    labels = ["no", "yes", "never"]
    found = score_labels(["accuracy", "f1", "macro_f1"], ["no", "yes", "yes", "no"], ["no", "yes", "no", "no"], labels)
    assert found == {"accuracy": 0.75, "f1": pytest.approx(2 / 3), "macro_f1": pytest.approx((4 / 5 + 2 / 3) / 2)}
    assert all(type(value) is float for value in found.values())
    assert score_labels(["f1", "matthews"], ["no", "no"], ["no", "yes"], labels[:2]) == {"f1": 0.0, "matthews": 0.0}


FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=32)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(FLOATS, FLOATS), min_size=1, max_size=30))
def test_no_finite_numbers_give_nan_or_a_warning(rows):
    found = score_labels(["pearson", "spearman"], *np.array(rows, np.float32).T)
    assert all(-1.0000001 <= value <= 1.0000001 for value in found.values())
    constant = [1.0, 1.0 + 2**-52, 1.0, 1.0]  # constant but for rounding
    assert score_labels(["pearson"], constant, [1.0, 2.0, 3.0, 4.0]) == {"pearson": 0.0}
    assert score_labels(["pearson", "spearman"], [1.0, 2.0, 9.0], [1.0, 2.0, 3.0])["spearman"] == pytest.approx(1)


def chunks_by_boundaries(tags):
    """Finds chunks by deciding for each word whether one starts before it or ends after it, as conlleval does
    (startOfChunk and endOfChunk)."""
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


TAG = st.sampled_from(["O", "B-x", "I-x", "B-x-y", "I-x-y"])
SENTENCE = st.lists(st.tuples(TAG, TAG) | TAG.map(lambda tag: (tag, tag)), min_size=1, max_size=8)


@settings(deadline=None, max_examples=50)
@given(st.lists(SENTENCE, min_size=1, max_size=5))
def test_tags_are_scored_as_counting_chunks_does(rows):
    predictions, references = ([[pair[side] for pair in row] for row in rows] for side in (0, 1))
    predicted, right = (
        {(row, *chunk) for row, tags in enumerate(column) for chunk in chunks_by_boundaries(tags)}
        for column in (predictions, references)
    )
    assert all(find_chunks(tags) == chunks_by_boundaries(tags) for tags in references)
    _, found = tag_report(predictions, references)
    words = [pair for row in rows for pair in row]
    assert found["accuracy"] == pytest.approx(sum(one == other for one, other in words) / len(words))
    shared = len(predicted & right)
    precision = shared / len(predicted) if predicted else 0.0
    recall = shared / len(right) if right else 0.0
    assert found["precision"] == pytest.approx(precision)
    assert found["recall"] == pytest.approx(recall)
    assert found["f1"] == pytest.approx(2 * precision * recall / (precision + recall) if shared else 0.0)
    numbers = [Counter(chunk[3] for chunk in chunks) for chunks in (predicted & right, predicted, right)]
    of_types = [2 * numbers[0][kind] / (numbers[1][kind] + numbers[2][kind]) for kind in numbers[1] | numbers[2]]
    assert found["macro_f1"] == pytest.approx(sum(of_types) / len(of_types) if of_types else 0.0)


# ---- Answers ----


def cmrc(predictions, answers):
    return score_answers(predictions, answers, "zh")


def test_sets_of_labels_have_micro_and_macro_f1_and_an_exact_match():
    predictions, right = [["a", "b"], [], ["a"], ["c"]], [["b", "a"], [], ["b"], ["a", "c"]]
    # Label a: 2 predicted, 2 right, 1 in both. Label b: 1, 2, 1. Label c: 1, 1, 1.
    macro = (2 / 4 + 2 / 3 + 2 / 2) / 3
    wanted = {"micro_f1": pytest.approx(6 / 9), "macro_f1": pytest.approx(macro), "accuracy": 0.5}
    assert label_report(predictions, right)[1].items() >= wanted.items()
    assert label_report([["overall"], ["b"]], [["overall"], ["overall"]])[1]["macro_f1"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("language", "prediction", "answers", "exact", "f1"),
    [
        ("en", "the denver  BRONCOS!", ["Denver Broncos"], 1, 1),  # case, article, punctuation, spaces
        ("en", "Broncos", ["Denver Broncos"], 0, 2 / 3),
        ("en", "the Denver Broncos team", ["Denver Broncos"], 0, 4 / 5),
        ("en", "Broncos", ["Denver Broncos", "Broncos", "Carolina"], 1, 1),  # the best of several
        ("en", "Denver and Carolina", ["Denver Broncos", "Carolina Panthers in Denver"], 0, 4 / 7),
        ("en", "dog dog cat", ["dog cat cat"], 0, 2 / 3),  # words count as often as they occur
        ("en", "U.S.", ["US"], 1, 1),
        ("en", "well-known", ["wellknown"], 1, 1),  # punctuation is removed and leaves no space
        ("en", "theatre an anthem", ["theatre anthem"], 1, 1),  # articles as whole words only
        ("en", "a.b", ["b"], 0, 0),  # punctuation is removed before articles: "ab"
        ("en", "naïve café", ["Naïve Café"], 1, 1),
        ("en", "“quoted”", ["quoted"], 0, 0),  # only ASCII punctuation is removed
        ("en", "", ["Denver"], 0, 0),
        ("ko", "이순신", ["이순신 장군"], 0, 6 / 8),  # characters: 3 of 3, and 3 of 5
        ("ko", "이순신장군", ["이순신 장군"], 0, 1),  # spaces count for the exact match alone
        ("ko", "군장 신순이", ["이순신 장군"], 0, 1),  # in any order
        ("ko", "《난중일기》", ["난중일기", "일기"], 1, 1),
        ("ko", "난중일기(亂中日記)", ["난중일기 亂中日記"], 1, 1),  # a bracket is a space
        ("ko", "the A.B", ["the ab"], 1, 1),
        ("ko", "the a", ["a"], 0, 2 / 5),  # articles stay
        ("zh", "北京市。", ["《北京》市"], 1, 1),  # punctuation does not count
        ("zh", "北市", ["北京市"], 0, 2 / 5),  # one run without gaps, not a subsequence
        ("zh", "光荣和ω-force", ["光荣和Ω-Force"], 1, 1),
        ("zh", "iphone手机", ["iPhone 手机"], 0, 1),  # a word is one unit; spaces count for exact match only
        ("zh", "iphone手机", ["iPad手机"], 0, 2 / 3),
        ("zh", "Windows 10系统", ["Windows 7系统"], 0, 1 / 2),
        ("zh", "1,000人", ["1,000"], 0, 2 / 3),  # a number is one word
        ("zh", "a, b", ["a b"], 0, 2 * 1 / (3 + 2)),  # but a comma between words stands alone
        ("zh", "50%", ["50"], 0, 2 / 3),
        ("zh", "don't", ["don"], 0, 0),  # "do", "n't"
        ("zh", "john's", ["john"], 0, 2 / 3),
        ("zh", "j. smith", ["j. smith."], 0, 4 / 5),  # only the last full stop stands alone
        ("zh", "(abc)", ["abc"], 0, 2 / 4),
        ("zh", "a…b", ["a…b。"], 1, 1),
        ("zh", "a…", ["a"], 0, 0),  # "…" is not in the script's list
        ("zh", "１２年", ["12年"], 0, 1 / 2),
        ("zh", "。", ["，"], 1, 0),  # noqa: RUF001  nothing is left of either: no run to share
        ("zh", "", ["北京"], 0, 0),
        ("zh", "𠮷野家", ["野家"], 0, 4 / 5),  # beyond U+9FA5: a word
    ],
)
def test_answers_are_compared_by_the_rules_of_squad_korquad_and_cmrc(language, prediction, answers, exact, f1):
    found = score_answers([prediction], [answers], language)
    assert found == {"exact_match": exact, "f1": pytest.approx(f1)}
    if language != "zh":
        answered = score_squad_v2([prediction], [answers], language)
        assert {name: answered[name] for name in found} == found


def test_what_normalization_empties_is_where_squad_1_and_2_part():
    assert score_answers(["a"], [["The"]]) == {"exact_match": 1.0, "f1": 0.0}  # no shared word
    assert score_squad_v2(["a"], [["The"]])["f1"] == 1.0
    # SQuAD 2.0 leaves out answers that normalization empties if there are others.
    assert score_answers(["!"], [["The", "cat"]])["exact_match"] == 1.0
    assert score_squad_v2(["!"], [["The", "cat"]])["exact_match"] == 0.0


def test_an_unanswerable_question_is_right_without_an_answer_only():
    found = score_squad_v2(["", "a dog", "the", "cat", ""], [[], [], [], ["cat"], ["cat"]])
    assert found == {
        "exact_match": 3 / 5,
        "f1": 3 / 5,
        "has_answer_exact_match": 1 / 2,
        "has_answer_f1": 1 / 2,
        "no_answer_exact_match": 2 / 3,
        "no_answer_f1": 2 / 3,
    }
    assert not any(name.startswith("no_answer") for name in score_squad_v2(["x"], [["x"]]))
    assert not any(name.startswith("has_answer") for name in score_squad_v2(["x"], [[]]))


CHINESE = st.text("北京上海市。", max_size=8)


@settings(deadline=None, max_examples=50)
@given(CHINESE, CHINESE)
def test_the_chinese_f1_is_of_the_longest_common_substring(prediction, answer):
    one, other = (text.replace("。", "") for text in (prediction, answer))
    shared = max(
        (end - start for start in range(len(one)) for end in range(start, len(one) + 1) if one[start:end] in other),
        default=0,
    )
    expected = 2 * shared / (len(one) + len(other)) if shared else 0.0
    assert cmrc([prediction], [[answer]]) == {"exact_match": one == other, "f1": pytest.approx(expected)}


@pytest.mark.parametrize(
    ("score", "predictions", "references", "message"),
    [
        (tag_report, [["O", "S-x"]], [["O", "O"]], "'S-x'"),
        (score_answers, ["x", ""], [["x"], []], r"SQuAD 2\.0"),
    ],
)
def test_what_cannot_be_scored_is_refused(score, predictions, references, message):
    with pytest.raises(ValueError, match=message):
        score(predictions, references)
