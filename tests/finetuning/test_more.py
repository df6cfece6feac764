import json
import zipfile

import pytest

from hf_electra_rtd.finetuning.examples import Answer, QuestionExample, TaggedExample, TextExample
from hf_electra_rtd.finetuning.loading import load_split
from hf_electra_rtd.finetuning.more import BQ, CHNSENTICORP, CONLL2000, LCQMC, SQUAD1, SQUAD2, XNLI
from hf_electra_rtd.finetuning.reading import Row


def load(directory, task, split, name, text):
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return load_split(task, split, str(directory)).examples


def test_chnsenticorp_has_a_header_in_its_test_file_only(tmp_path):
    train = load(tmp_path, CHNSENTICORP, "train", "chnsenticorp/train.tsv", "不错\tpositive\n太小\tnegative\n")
    assert train == [TextExample("0", ("不错",), "positive"), TextExample("1", ("太小",), "negative")]
    test = load(tmp_path, CHNSENTICORP, "test", "chnsenticorp/test.tsv", "qid\ttext_a\n5\t一般\n")
    assert test == [TextExample("5", ("一般",), None)]


@pytest.mark.parametrize(
    ("task", "name"),
    [(LCQMC, "lcqmc/dev.tsv"), (LCQMC, "LCQMC/dev.txt"), (BQ, "bq/dev.tsv"), (BQ, "bq_corpus/dev.txt")],
)
def test_pairs_have_no_header(tmp_path, task, name):
    assert load(tmp_path, task, "dev", name, "问一\t问二\t1\n") == [TextExample("0", ("问一", "问二"), "1")]


def test_a_header_where_there_should_be_none_is_told(tmp_path):
    with pytest.raises(ValueError, match=r"dev\.tsv, line 1: there is no label 'label'"):
        load(tmp_path, LCQMC, "dev", "lcqmc/dev.tsv", "text_a\ttext_b\tlabel\n问一\t问二\t1\n")


def test_only_the_chinese_rows_of_xnli_are_taken(tmp_path):
    lines = [
        "language\tgold_label\tsentence1\tsentence2",
        "de\tneutral\tEins.\tZwei.",
        "zh\tcontradiction\t一。\t二。",
    ]
    examples = load(tmp_path, XNLI, "dev", "XNLI-1.0/xnli.dev.tsv", "\n".join(lines))
    assert examples == [TextExample("1", ("一。", "二。"), "contradiction")]
    assert load_split(XNLI, "dev", str(tmp_path)).skipped == {"its language is not zh": 1}


def test_the_translated_training_set_has_its_own_name_for_contradictions(tmp_path):
    text = "premise\thypo\tlabel\n一。\t二。\tcontradictory\n一。\t三。\tneutral\n"
    examples = load(tmp_path, XNLI, "train", "XNLI-MT-1.0/multinli/multinli.train.zh.tsv", text)
    assert [example.label for example in examples] == ["contradiction", "neutral"]


def test_rows_of_xnli_on_the_hub_become_the_same_examples():
    row = Row(premise="一。", hypothesis="二。", label="entailment")
    assert XNLI.dataset.to_example(row, 3) == TextExample("3", ("一。", "二。"), "entailment")


@pytest.mark.parametrize("name", ["squad2/dev-v2.0.json", "dev-v2.0.json"])
def test_a_question_of_squad_2_may_have_no_answer(tmp_path, name):
    qas = [
        {"id": "a", "question": "Who?", "answers": [{"text": "She", "answer_start": 0}], "is_impossible": False},
        {"id": "b", "question": "Why?", "answers": [], "is_impossible": True},
    ]
    text = json.dumps({"version": "v2.0", "data": [{"paragraphs": [{"context": "She went.", "qas": qas}]}]})
    assert load(tmp_path, SQUAD2, "dev", name, text) == [
        QuestionExample("a", "Who?", "She went.", (Answer("She", 0),)),
        QuestionExample("b", "Why?", "She went.", ()),
    ]
    assert SQUAD2.unanswerable
    assert not SQUAD1.unanswerable


def test_a_question_whose_answer_is_not_known_is_not_one_without_answer(tmp_path):
    paragraph = {"context": "She went.", "qas": [{"id": "a", "question": "Who?"}]}
    labelled = {"context": "She went.", "qas": [{"id": "b", "question": "Why?", "answers": [], "is_impossible": True}]}
    text = json.dumps({"data": [{"paragraphs": [paragraph, labelled]}]})
    examples = load(tmp_path, SQUAD2, "dev", "dev-v2.0.json", text)
    assert [example.answers for example in examples] == [None, ()]


def test_questions_of_the_hub_become_the_same_examples():
    row = Row(id="a", title="T", question="Who?", context="She went.", answers={"text": ["She"], "answer_start": [0]})
    expected = QuestionExample("a", "Who?", "She went.", (Answer("She", 0),))
    assert SQUAD1.dataset.to_example(row, 0) == SQUAD2.dataset.to_example(row, 0) == expected
    row = Row({**row, "answers": {"text": [], "answer_start": []}})
    assert SQUAD2.dataset.to_example(row, 0).answers == ()


CHUNKS = "He PRP B-NP\nreckons VBZ B-VP\n. . O\n\nSo RB B-ADVP\n"
SENTENCES = [
    TaggedExample("0", ("He", "reckons", "."), ("B-NP", "B-VP", "O")),
    TaggedExample("1", ("So",), ("B-ADVP",)),
]


def test_chunks_are_read_from_text_or_from_the_archive(tmp_path):
    with zipfile.ZipFile(tmp_path / "conll2000.zip", "w") as archive:
        archive.writestr("conll2000/train.txt", CHUNKS)
    assert load_split(CONLL2000, "train", str(tmp_path)).examples == SENTENCES
    assert load(tmp_path, CONLL2000, "test", "conll2000/test.txt", CHUNKS) == SENTENCES


def test_the_tags_of_chunks_are_those_of_the_shared_task():
    # Eleven types of chunks in its training and test files together, each with both positions, and O.
    assert len(CONLL2000.labels) == 23
    assert CONLL2000.labels[0] == "O"
    assert {"B-UCP", "I-UCP", "B-LST", "I-LST", "I-PRT"} < set(CONLL2000.labels)


def test_an_unknown_tag_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"test\.txt, line 1: there is no label 'B-XP'"):
        load(tmp_path, CONLL2000, "test", "conll2000/test.txt", "He PRP B-XP\n")


def test_sentences_without_tags_can_be_predicted():
    row = Row(words=["He"], tags=None)
    assert CONLL2000.files["test"].to_example(row, 2) == TaggedExample("2", ("He",), None)
