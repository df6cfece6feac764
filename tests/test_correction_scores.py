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


# Source, prediction, reference. Eight sentences, of which five are wrong (with seven wrong characters).
SENTENCES = [
    ("今天新情很好", "今天心情很好", "今天心情很好"),  # wrong, corrected
    ("他跑的很快吗", "他跑得很快吗", "他跑得很快吗"),  # wrong, corrected
    ("机七学习分知", "机器学习分知", "机器学习分支"),  # two wrong characters, one of them corrected
    ("平净的河面上", "平净的何面上", "平静的河面上"),  # wrong; another character was changed
    ("老人让坐因该", "老人让座因改", "老人让座应该"),  # two wrong characters; one corrected, and a right one changed
    ("天气晴朗极了", "天气晴朗极了", "天气晴朗极了"),  # right, left alone
    ("我们去看电影", "我们去看店影", "我们去看电影"),  # right, changed: the false positive
    ("你好吗我很好", "你好吗我很好", "你好吗我很好"),  # right, left alone
]
# Detection: in sentences 1 and 2 the changed places are the wrong ones; in 3, 4 and 5 they are not.
# Flagged are 1, 2, 3, 4, 5 and 7. Changes: 1 + 1 + 1 + 1 + 2 + 0 + 1 = 7; wrong characters: 1 + 1 + 2 + 1 + 2 = 7.
# Of the changes those of 1, 2, 3 and one of 5 are at wrong places, and right there.
EXPECTED = {
    "bakeoff": {"precision": 2 / 3, "recall": 2 / 5, "f1": 1 / 2, "accuracy": 4 / 8, "hits": 2},
    "sentence": {"precision": 2 / 6, "recall": 2 / 5, "f1": 4 / 11, "hits": 2},
    "character": {"precision": 4 / 7, "recall": 4 / 7, "f1": 4 / 7, "hits": 4},
}


def score(sentences, **options):
    return score_correction(*zip(*sentences, strict=True), **options)


@pytest.mark.parametrize("family", EXPECTED)
def test_the_families_give_the_scores_worked_out_by_hand_and_differ(family):
    scores = score(SENTENCES)
    assert scores[family] == {level: pytest.approx(EXPECTED[family]) for level in LEVELS}
    counts = {"sentences": 8, "wrong_sentences": 5, "flagged_sentences": 6, "false_positives": 1}
    counts |= {"wrong_parts": 7, "changed_parts": 7}
    assert {name: scores[name] for name in counts} == counts
    assert scores["false_positive_rate"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("family", "detection", "correction"),
    [("bakeoff", (3 / 4, 3 / 5), (2 / 3, 2 / 5)), ("sentence", (3 / 6, 3 / 5), (2 / 6, 2 / 5)),
     ("character", (4 / 6, 4 / 6), (3 / 6, 3 / 6))],
)  # fmt: skip
def test_a_wrong_character_at_the_right_place_is_detected_and_not_corrected(family, detection, correction):
    sentences = [
        ("今天新情很好", "今天心情很好", "今天心情很好"),
        ("他跑的很快吗", "他跑得很快吗", "他跑得很快吗"),
        ("平净的河面上", "平经的河面上", "平静的河面上"),  # detected alone
        ("机七学习分知", "机器学习分知", "机器学习分支"),
        ("大家都睡的香", "大家都睡的想", "大家都睡得香"),
        ("天气晴朗极了", "天气晴朗极了", "天气晴朗极了"),
        ("我们去看电影", "我们去看店影", "我们去看电影"),
        ("你好吗我很好", "你好吗我很好", "你好吗我很好"),
    ]
    scores = score(sentences)
    for level, (precision, recall) in zip(LEVELS, (detection, correction), strict=True):
        found = scores[family][level]
        assert (found["precision"], found["recall"]) == pytest.approx((precision, recall))
        assert found["f1"] == pytest.approx(2 * precision * recall / (precision + recall))


def test_a_corrector_that_changes_nothing_scores_0_and_the_reference_scores_1():
    identity = score([(source, source, right) for source, _, right in SENTENCES])
    gold = score([(source, right, right) for source, _, right in SENTENCES])
    for scores, value in ((identity, 0), (gold, 1)):
        assert scores["false_positive_rate"] == 0
        for family in EXPECTED:
            for level in LEVELS:
                assert {scores[family][level][name] for name in ("precision", "recall", "f1")} == {value}
    assert identity["bakeoff"]["correction"]["accuracy"] == 3 / 8  # the right sentences


def test_the_rule_of_sighan_2013_takes_back_changes_to_de():
    sentences = [("他跑的快", "他跑得快", "他跑的快"), ("高兴的笑新", "高兴地笑心", "高兴的笑心")]
    assert score(sentences)["sentence"]["correction"]["hits"] == 0
    scores = score(sentences, ignored=SIGHAN13)
    assert scores["sentence"]["correction"] == {"precision": 1, "recall": 1, "f1": 1, "hits": 1}
    assert scores["false_positive_rate"] == 0


def test_english_is_scored_by_words_whatever_their_lengths():
    scores = score([("I saw teh recieved letter", "I saw the received letter", "I saw the received letter")])
    assert scores["wrong_parts"] == scores["character"]["correction"]["hits"] == 2
    assert align('"teh!', '"three!') == [('"teh!', '"three!')]  # one word, too
    assert align("a b", "c dd") == [("a", "c"), ("b", "dd")]
    assert align("a新", "b心") == [("a", "b"), ("新", "心")]


def test_scores_are_readable_and_what_cannot_be_scored_is_refused(tmp_path):
    assert "8 sentences, 5 of them wrong; 6 flagged, 1 of them right" in describe_scores(score(SENTENCES))
    with pytest.raises(ValueError, match=r"Sentence 2: '他跑快' has 3 parts .* in place of 4"):
        score([SENTENCES[0], ("他跑的快", "他跑快", "他跑的快")])
    with pytest.raises(ValueError, match="1 predictions for 2 references"):
        score_correction(["a", "b"], ["a"], ["a", "b"])
    path = tmp_path / "pairs.tsv"
    path.write_text("text\tright\n今天新情\t今天心情\n")
    assert read_pairs(str(path)) == (["今天新情"], ["今天心情"])
    for text, message in (
        ("text\tright\n今天新情\t今天心\n", "pairs.tsv, line 2: .* has 3 parts"),
        ("wrong\tright\na\tb\n", "there is no column 'text'"),
        ("text\tright\n今\t \n", "pair 1 has no `right` sentence"),
        ("text\tright\n", "it has no row"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_pairs(str(path))
