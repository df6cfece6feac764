"""The three families of metrics of spelling correction, on sentences whose scores were worked out by hand."""

import pytest

from hf_electra_rtd.data.units import align
from hf_electra_rtd.finetuning.correction_scores import (
    LEVELS,
    SIGHAN13,
    describe_scores,
    read_pairs,
    score_correction,
)


# Source, prediction, reference. Nine sentences, of which six are wrong (with eight wrong characters).
SENTENCES = [
    ("今天新情很好", "今天心情很好", "今天心情很好"),  # wrong, corrected
    ("他跑的很快吗", "他跑得很快吗", "他跑得很快吗"),  # wrong, corrected
    ("机七学习分知", "机器学习分知", "机器学习分支"),  # two wrong characters, one of them corrected
    ("平净的河面上", "平净的何面上", "平静的河面上"),  # wrong; another character was changed
    ("老人让坐因该", "老人让座因改", "老人让座应该"),  # two wrong characters; one corrected, and a right one changed
    ("他坐在车理面", "他坐在车力面", "他坐在车里面"),  # wrong; found, and changed to another one
    ("天气晴朗极了", "天气晴朗极了", "天气晴朗极了"),  # right, left alone
    ("我们去看电影", "我们去看店影", "我们去看电影"),  # right, changed: the false positive
    ("你好吗我很好", "你好吗我很好", "你好吗我很好"),  # right, left alone
]
# Detection: in sentences 1, 2 and 6 the changed places are exactly the wrong ones; in 3, 4 and 5 they are not.
# Flagged: 1 to 6 and 8. Changes: 1 + 1 + 1 + 1 + 2 + 1 + 0 + 1 = 8; wrong characters: 1 + 1 + 2 + 1 + 2 + 1 = 8.
# The changes in 1, 2, 3 and 6 and one in 5 are at wrong places. All of these but the one in 6 are right.
EXPECTED = {
    "bakeoff": (
        {"precision": 3 / 4, "recall": 3 / 6, "f1": 6 / 10, "accuracy": 5 / 9, "hits": 3},
        {"precision": 2 / 3, "recall": 2 / 6, "f1": 4 / 9, "accuracy": 4 / 9, "hits": 2},
    ),
    "sentence": (
        {"precision": 3 / 7, "recall": 3 / 6, "f1": 6 / 13, "hits": 3},
        {"precision": 2 / 7, "recall": 2 / 6, "f1": 4 / 13, "hits": 2},
    ),
    "character": (
        {"precision": 5 / 8, "recall": 5 / 8, "f1": 5 / 8, "hits": 5},
        {"precision": 4 / 8, "recall": 4 / 8, "f1": 4 / 8, "hits": 4},
    ),
}


def score(sentences, **options):
    return score_correction(*zip(*sentences, strict=True), **options)


def test_the_families_give_the_scores_worked_out_by_hand_and_differ():
    scores = score(SENTENCES)
    for family, expected in EXPECTED.items():
        for level, values in zip(LEVELS, expected, strict=True):
            found = {name: scores[f"{family}_{level}_{name}"] for name in values}
            assert found == pytest.approx(values), (family, level)
    counts = {"sentences": 9, "wrong_sentences": 6, "flagged_sentences": 7, "false_positives": 1}
    counts |= {"wrong_parts": 8, "changed_parts": 8}
    assert {name: scores[name] for name in counts} == counts
    assert scores["false_positive_rate"] == pytest.approx(1 / 3)
    assert "9 sentences, 6 of them wrong; 7 flagged, 1 of them right" in describe_scores(scores)


def test_a_corrector_that_changes_nothing_scores_0_and_the_reference_scores_1():
    identity = score([(source, source, right) for source, _, right in SENTENCES])
    gold = score([(source, right, right) for source, _, right in SENTENCES])
    for scores, value in ((identity, 0), (gold, 1)):
        assert scores["false_positive_rate"] == 0
        for family in EXPECTED:
            for level in LEVELS:
                assert {scores[f"{family}_{level}_{name}"] for name in ("precision", "recall", "f1")} == {value}
    assert identity["bakeoff_correction_accuracy"] == 3 / 9  # the right sentences


def test_the_rule_of_sighan_2013_takes_back_changes_to_de():
    sentences = [("他跑的快", "他跑得快", "他跑的快"), ("高兴的笑新", "高兴地笑心", "高兴的笑心")]
    assert score(sentences)["sentence_correction_hits"] == 0
    scores = score(sentences, ignored=SIGHAN13)
    assert scores["sentence_correction_f1"] == scores["sentence_correction_hits"] == 1
    assert scores["false_positive_rate"] == 0


def test_english_is_scored_by_words_whatever_their_lengths():
    scores = score([("I saw teh recieved letter", "I saw the received letter", "I saw the received letter")])
    assert scores["wrong_parts"] == scores["character_correction_hits"] == 2
    assert align('"teh!', '"three!') == [('"teh!', '"three!')]  # this is one word, too
    assert align("a新", "b心") == [("a", "b"), ("新", "心")]


def test_what_cannot_be_scored_is_refused(tmp_path):
    with pytest.raises(ValueError, match="Sentence 2: '他跑快'"):
        score([SENTENCES[0], ("他跑的快", "他跑快", "他跑的快")])
    path = tmp_path / "pairs.tsv"
    path.write_text("text\tright\n今天新情\t今天心情\n")
    assert read_pairs(str(path)) == (["今天新情"], ["今天心情"])
    for text, message in (
        ("text\tright\n今天新情\t今天心\n", "pairs.tsv, line 2: "),
        ("wrong\tright\na\tb\n", "'text'"),
        ("text\tright\n今\t \n", "pair 1 .*`right`"),
        ("text\tright\n", "pairs.tsv"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_pairs(str(path))
