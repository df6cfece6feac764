"""Answers are scored as the official scripts of SQuAD 1.1, SQuAD 2.0 and CMRC 2018 score them."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_electra_rtd.finetuning import answer_scores
from hf_electra_rtd.finetuning.answer_scores import score_cmrc, score_squad


def score_squad_v2(predictions, answers, scores=None, threshold=math.inf):
    return answer_scores.score_squad_v2(predictions, answers, scores or [1.0] * len(predictions), threshold)


@pytest.mark.parametrize(
    ("prediction", "answers", "exact", "f1"),
    [
        ("Denver Broncos", ["Denver Broncos"], 1, 1),
        ("the denver  BRONCOS!", ["Denver Broncos"], 1, 1),  # case, article, punctuation, spaces
        ("Broncos", ["Denver Broncos"], 0, 2 / 3),
        ("the Denver Broncos team", ["Denver Broncos"], 0, 4 / 5),
        ("Broncos", ["Denver Broncos", "Broncos", "Carolina"], 1, 1),  # the best of several
        ("Denver and Carolina", ["Denver Broncos", "Carolina Panthers in Denver"], 0, 4 / 7),
        ("Panthers", ["Denver Broncos"], 0, 0),
        ("dog dog cat", ["dog cat cat"], 0, 2 / 3),  # words count as often as they stand
        ("U.S.", ["US"], 1, 1),
        ("well-known", ["wellknown"], 1, 1),  # punctuation goes without a space
        ("$1,000", ["1000"], 1, 1),
        ("theatre an anthem", ["theatre anthem"], 1, 1),  # articles as whole words only
        ("a.b", ["b"], 0, 0),  # punctuation before articles: "ab"
        ("naïve café", ["Naïve Café"], 1, 1),
        ("“quoted”", ["quoted"], 0, 0),  # only ASCII punctuation goes
        ("ÀÉ", ["àé"], 1, 1),
        ("", ["Denver"], 0, 0),
    ],
)
def test_squad_answers_are_compared_after_normalization(prediction, answers, exact, f1):
    for found in (score_squad([prediction], [answers]), score_squad_v2([prediction], [answers])):
        assert (found["exact_match"], found["f1"]) == (exact, pytest.approx(f1))


def test_what_normalization_empties_is_where_squad_1_and_2_part():
    assert score_squad(["a"], [["The"]]) == {"exact_match": 1.0, "f1": 0.0}  # no shared word
    assert score_squad_v2(["a"], [["The"]])["f1"] == 1.0
    # SQuAD 2.0 leaves out such answers where there are others.
    assert score_squad(["!"], [["The", "cat"]])["exact_match"] == 1.0
    assert score_squad_v2(["!"], [["The", "cat"]])["exact_match"] == 0.0


def test_an_unanswerable_question_is_right_without_an_answer_only():
    found = score_squad_v2(["", "a dog", "the", "cat", ""], [[], [], [], ["cat"], ["cat"]])
    assert {name: value for name, value in found.items() if not name.startswith("best")} == {
        "exact_match": 3 / 5,
        "f1": 3 / 5,
        "has_answer_exact_match": 1 / 2,
        "has_answer_f1": 1 / 2,
        "no_answer_exact_match": 2 / 3,
        "no_answer_f1": 2 / 3,
    }


def test_a_kind_of_question_that_is_not_there_has_no_score():
    assert not any(name.startswith("no_answer") for name in score_squad_v2(["x"], [["x"]]))
    assert not any(name.startswith("has_answer") for name in score_squad_v2(["x"], [[]]))


def test_above_the_threshold_a_question_counts_as_unanswered():
    predictions, answers, scores = ["cat", "dog", "cow"], [["cat"], [], ["cow"]], [-3.0, 1.0, 1.5]
    found = score_squad_v2(predictions, answers, scores, 0.5)
    assert (found["exact_match"], found["has_answer_f1"], found["no_answer_f1"]) == (2 / 3, 1 / 2, 1.0)
    assert score_squad_v2(predictions, answers, scores, 1.5)["exact_match"] == 2 / 3  # above, not at
    assert score_squad_v2(predictions, answers, scores)["exact_match"] == 2 / 3


def test_the_best_threshold_is_found_for_each_score():
    #           right      none       none       half right  wrong
    predictions = ["cat", "dog", "", "big cow", "hen"]
    answers = [["cat"], [], [], ["cow"], ["fox"]]
    found = score_squad_v2(predictions, answers, [0.1, 0.3, 0.4, 0.2, 0.9])
    assert (found["best_exact_match"], found["best_exact_match_threshold"]) == (3 / 5, 0.1)
    assert (found["best_f1"], found["best_f1_threshold"]) == (pytest.approx((3 + 2 / 3) / 5), 0.2)
    nothing = score_squad_v2(["dog", "hen"], [[], ["fox"]], [0.2, 0.6])
    assert (nothing["best_f1"], nothing["best_f1_threshold"]) == (0.5, 0.0)


QUESTIONS = st.lists(
    st.tuples(
        st.sampled_from(["", "cat", "big cat", "dog"]),
        st.sampled_from([(), ("cat",), ("dog", "big dog")]),
    ),
    min_size=1,
    max_size=12,
)


@settings(deadline=None, max_examples=50)
@given(QUESTIONS, st.randoms(use_true_random=False))
def test_no_threshold_is_better_than_the_best(rows, random):
    predictions, answers = [row[0] for row in rows], [row[1] for row in rows]
    scores = random.sample([place / 10 for place in range(1, 20)], len(rows))  # no two alike
    found = score_squad_v2(predictions, answers, scores)
    for name in ("exact_match", "f1"):
        # A threshold below all scores answers none; elsewhere, an answer counts as it stands.
        tried = {t: score_squad_v2(predictions, answers, scores, t)[name] for t in (0.0, *scores)}
        assert found[f"best_{name}"] == pytest.approx(max(tried.values()))
        assert tried[found[f"best_{name}_threshold"]] == pytest.approx(found[f"best_{name}"])


@pytest.mark.parametrize(
    ("prediction", "answers", "exact", "f1"),
    [
        ("北京市", ["北京市"], 1, 1),
        ("北京市。", ["《北京》市"], 1, 1),  # punctuation does not count
        ("北京", ["北京市"], 0, 4 / 5),
        ("北京", ["上海", "北京"], 1, 1),
        ("北市", ["北京市"], 0, 2 / 5),  # one run without gaps, not a subsequence
        ("京北", ["北京"], 0, 1 / 2),  # order counts
        ("光荣和ω-force", ["光荣和Ω-Force"], 1, 1),
        ("iphone手机", ["iPhone 手机"], 0, 1),  # a word is one unit; spaces count for exact match only
        ("iphone手机", ["iPad手机"], 0, 2 / 3),
        ("Windows 10系统", ["Windows 7系统"], 0, 1 / 2),
        ("1,000人", ["1,000"], 0, 2 / 3),  # a number is one word
        ("a, b", ["a b"], 0, 2 * 1 / (3 + 2)),  # but a comma between words stands alone
        ("50%", ["50"], 0, 2 / 3),
        ("don't", ["don"], 0, 0),  # "do", "n't"
        ("john's", ["john"], 0, 2 / 3),
        ("j. smith", ["j. smith."], 0, 4 / 5),  # only the last full stop stands alone
        ("(abc)", ["abc"], 0, 2 / 4),
        ("a…b", ["a…b。"], 1, 1),
        ("a…", ["a"], 0, 0),  # "…" is not in the script's list
        ("１２年", ["12年"], 0, 1 / 2),
        ("。", ["，"], 1, 0),  # noqa: RUF001  nothing is left of either: no run to share
        ("", ["北京"], 0, 0),
        ("臺灣", ["台灣"], 0, 1 / 2),
        ("𠮷野家", ["野家"], 0, 4 / 5),  # beyond U+9FA5: a word
    ],
)
def test_chinese_answers_are_compared_by_characters_and_words(prediction, answers, exact, f1):
    found = score_cmrc([prediction], [answers])
    assert (found["exact_match"], found["f1"]) == (exact, pytest.approx(f1))


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
    assert score_cmrc([prediction], [[answer]]) == {"exact_match": one == other, "f1": pytest.approx(expected)}


def test_scores_are_means_over_questions():
    predictions, answers = ["x", "y z", "w"], [["x"], ["y"], ["v"]]
    for score in (score_squad, score_cmrc, score_squad_v2):
        found = score(predictions, answers)
        assert (found["exact_match"], found["f1"]) == (pytest.approx(1 / 3), pytest.approx((1 + 2 / 3) / 3))


@pytest.mark.parametrize(
    ("score", "predictions", "answers", "message"),
    [
        *((score, [], [], "0 predictions for 0 questions") for score in (score_squad, score_squad_v2, score_cmrc)),
        *((score, ["x"], [["x"], ["y"]], "1 predictions for 2 questions") for score in (score_squad, score_cmrc)),
        *((score, ["x", ""], [["x"], []], r"no answer.*SQuAD 2\.0") for score in (score_squad, score_cmrc)),
        (lambda *rows: score_squad_v2(*rows, [0.1]), ["x", ""], [["x"], []], "for each of the 2 questions"),
        (lambda *rows: score_squad_v2(*rows, [0.1, math.nan]), ["x", ""], [["x"], []], "a finite no_answer_score"),
    ],
)
def test_what_cannot_be_scored_is_refused(score, predictions, answers, message):
    with pytest.raises(ValueError, match=message):
        score(predictions, answers)
