import itertools
import json

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from hf_electra_rtd.finetuning.clue import (
    AFQMC,
    C3,
    CHID,
    CLUE,
    CLUENER2020,
    CLUEWSC2020,
    CMNLI,
    CMRC2018,
    CSL,
    DRCD,
    IFLYTEK,
    OCNLI,
    TNEWS,
)
from hf_electra_rtd.finetuning.converters import convert_chid, find_text, mark_spans, split_blanks
from hf_electra_rtd.finetuning.examples import Answer, ChoiceExample, QuestionExample, TextExample
from hf_electra_rtd.finetuning.layouts import RowSkippedError
from hf_electra_rtd.finetuning.loading import load_split
from hf_electra_rtd.finetuning.reading import Row
from hf_electra_rtd.finetuning.submission import write_submission


def write(directory, name, *rows):
    path = directory / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def load(directory, task, split, name, *rows):
    write(directory, name, *rows)
    return load_split(task, split, str(directory)).examples


# ---- Texts ----

PAIR = {"sentence1": "借呗", "sentence2": "花呗"}
ABSTRACT = {"id": 3, "abst": "归责原则是核心。", "keyword": ["环境", "侵权"]}
OFFICIAL = [
    (AFQMC, "train", "afqmc/train.json", {**PAIR, "label": "1"}, "0", ("借呗", "花呗"), "1"),
    (AFQMC, "test", "afqmc_public/test.json", {"id": 8, **PAIR}, "8", ("借呗", "花呗"), None),
    (CMNLI, "train", "cmnli/train.json", {**PAIR, "label": "neutral"}, "0", ("借呗", "花呗"), "neutral"),
    (
        OCNLI,
        "train",
        "ocnli/train.3k.json",
        {**PAIR, "label": "entailment", "id": 7},
        "7",
        ("借呗", "花呗"),
        "entailment",
    ),
    (
        IFLYTEK,
        "dev",
        "iflytek_public/dev.json",
        {"label": "118", "label_des": "其他", "sentence": "小区"},
        "0",
        ("小区",),
        "118",
    ),
    (
        IFLYTEK,
        "train",
        "iflytek_few/train_few_all.json",
        {"label": 10, "label_des": "社区", "sentence": "小区", "id": 5},
        "5",
        ("小区",),
        "10",
    ),
    (
        TNEWS,
        "dev",
        "tnews/dev.json",
        {"label": "102", "label_desc": "news_entertainment", "sentence": "新闻", "keywords": "甜甜圈"},
        "0",
        ("新闻",),
        "102",
    ),
    (CSL, "train", "csl/train.json", {**ABSTRACT, "label": "1"}, "3", ("环境 侵权", "归责原则是核心。"), "1"),
    (CSL, "test", "csl_few/test_public.json", {**ABSTRACT, "label": "0"}, "3", ("环境 侵权", "归责原则是核心。"), "0"),
    (CSL, "test", "csl/test.json", ABSTRACT, "3", ("环境 侵权", "归责原则是核心。"), None),
]


@pytest.mark.parametrize(
    ("task", "split", "name", "row", "id", "texts", "label"), OFFICIAL, ids=[row[2] for row in OFFICIAL]
)
def test_official_files_are_read(tmp_path, task, split, name, row, id, texts, label):
    assert load(tmp_path, task, split, name, row) == [TextExample(id, texts, label)]


@pytest.mark.parametrize(
    ("task", "row", "texts"),
    [
        (AFQMC, PAIR, ("借呗", "花呗")),
        (TNEWS, {"sentence": "新闻"}, ("新闻",)),
        (IFLYTEK, {"sentence": "小区"}, ("小区",)),
        (CSL, {"abst": "摘要", "keyword": ["环境", "侵权"], "corpus_id": 9}, ("环境 侵权", "摘要")),
    ],
)
def test_rows_of_the_hub_become_the_same_examples(task, row, texts):
    for value, label in [(task.labels[1], task.labels[1]), (None, None), (-1, None)]:
        example = task.dataset.to_example(Row({**row, "label": value, "idx": 6}), 0)
        assert example == TextExample("6", texts, label)


def test_splits_of_the_hub_are_called_as_there():
    assert CSL.dataset.splits == {"train": "train", "dev": "validation", "test": "test"}
    assert CMRC2018.dataset.splits == {**CSL.dataset.splits, "trial": "trial"}
    assert {task.dataset.config for task in CLUE if task.dataset} == {task.name for task in CLUE} - {"cluener2020"}


def test_the_classes_are_those_of_the_benchmark():
    assert TNEWS.labels == tuple(str(code) for code in range(100, 117) if code not in (105, 111))
    assert IFLYTEK.labels == tuple(str(code) for code in range(119))


def test_the_largest_training_set_of_ocnli_is_taken(tmp_path):
    for size in ("3k", "10k", "50k"):
        [example] = load(
            tmp_path, OCNLI, "train", f"ocnli/train.{size}.json", {**PAIR, "label": "neutral", "id": size}
        )
        assert example.id == size
    write(tmp_path, "ocnli/train.3k.json", {**PAIR, "label": "neutral", "id": "changed"})
    assert load_split(OCNLI, "train", str(tmp_path)).examples[0].id == "50k"


def test_pairs_on_which_annotators_did_not_agree_are_counted_and_left_out(tmp_path):
    write(tmp_path, "ocnli/dev.json", {**PAIR, "label": "-", "id": 0}, {**PAIR, "label": "neutral", "id": 1})
    split = load_split(OCNLI, "dev", str(tmp_path))
    assert [example.id for example in split.examples] == ["1"]
    assert split.skipped == {"its label is `-`: the annotators did not agree": 1}


@pytest.mark.parametrize("keywords", ["环境", ["环境", 3], None, {"环境": 1}])
def test_keywords_must_be_a_list_of_texts(tmp_path, keywords):
    with pytest.raises(ValueError, match=r"train\.json, line 1: 'keyword' is .*, not a list of texts"):
        load(tmp_path, CSL, "train", "csl/train.json", {**ABSTRACT, "keyword": keywords, "label": "1"})


@pytest.mark.parametrize("directory", ["{}", "{}_public"])
@pytest.mark.parametrize("task", [CLUEWSC2020, C3, CHID], ids=lambda task: task.name)
def test_the_test_set_of_clue_1_1_is_taken_before_the_one_that_it_replaced(tmp_path, task, directory):
    rows = {
        "cluewsc2020": coreference("他说他来了。", "他", 0, "他", 2),
        "c3": [[["文。"], [{"question": "谈什么?", "choice": ["旅行", "工作"], "id": 508}]]],
        "chid": BLANKS,
    }
    for name in ("test1.0.json", "test.json", "test1.1.json"):  # each before those that are there already
        write(tmp_path, f"{directory.format(task.name)}/{name}", rows[task.name])
        assert list(load_split(task, "test", str(tmp_path)).source["files"]) == [name]


def test_a_test_set_of_tnews_of_which_nobody_could_tell_the_version_is_not_taken(tmp_path):
    write(tmp_path, "tnews/test1.0.json", {"sentence": "旧闻"})
    with pytest.raises(ValueError, match=r"no file for its split 'test'.*holds: test1\.0\.json"):
        load_split(TNEWS, "test", str(tmp_path))
    [example] = load(tmp_path, TNEWS, "test", "tnews/test.json", {"sentence": "新闻"})
    assert example.texts == ("新闻",)


def test_few_shot_files_come_after_the_official_ones(tmp_path):
    write(tmp_path, "csl_few/dev_few_all.json", {**ABSTRACT, "id": 1, "label": "0"})
    [example] = load(tmp_path, CSL, "dev", "csl_public/dev.json", {**ABSTRACT, "id": 2, "label": "0"})
    assert example.id == "2"


@pytest.mark.parametrize("task", [task for task in CLUE if task.kind == "classification"], ids=lambda task: task.name)
def test_the_server_takes_every_label(tmp_path, task):
    examples = [TextExample(str(index), ("文",), None) for index in range(len(task.labels))]
    path = write_submission(task, "test", list(task.labels), examples, tmp_path)
    assert [json.loads(line)["label"] for line in path.read_text("utf-8").splitlines()] == list(task.labels)


# ---- CLUEWSC2020 ----


def coreference(text, span1, begin1, span2, begin2):
    target = {"span1_text": span1, "span1_index": begin1, "span2_text": span2, "span2_index": begin2}
    return Row(text=text, target=target, label="true", idx=1)


def test_the_noun_and_the_pronoun_are_marked(tmp_path):
    row = coreference("杨百顺他爹是个卖豆腐的。别人叫他老杨。", "杨百顺", 0, "他", 15)
    [example] = load(tmp_path, CLUEWSC2020, "dev", "cluewsc2020/dev.json", row)
    assert example == TextExample("0", ("_杨百顺_他爹是个卖豆腐的。别人叫[他]老杨。",), "true")


@given(st.text("甲乙丙丁,。", min_size=2, max_size=20), st.data())
def test_marks_stand_around_their_spans_in_either_order(text, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), min_size=4, max_size=4)))
    places = [(cuts[0], cuts[1], 1), (cuts[2], cuts[3], 2)]
    if data.draw(st.booleans()):
        places = [(cuts[2], cuts[3], 1), (cuts[0], cuts[1], 2)]
    (begin1, end1, _), (begin2, end2, _) = places
    assume(begin1 < end1 and begin2 < end2)
    [marked] = mark_spans(coreference(text, text[begin1:end1], begin1, text[begin2:end2], begin2))
    assert marked.replace("_", "").replace("[", "").replace("]", "") == text
    assert marked.split("_")[1].strip("[]") == text[begin1:end1]
    assert marked[marked.index("[") + 1 : marked.index("]")].strip("_") == text[begin2:end2]
    assert len(marked.split("_")[0].replace("[", "").replace("]", "")) == begin1


@pytest.mark.parametrize(("place1", "place2"), [(1, 4), (-1, 9), (0, 3)])
def test_a_wrong_place_of_a_span_is_put_right(place1, place2):
    assert mark_spans(coreference("他们说他来了。", "他们", place1, "他", place2)) == ("_他们_说[他]来了。",)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (coreference("他说他来了。", "她", 0, "他", 2), "span1 is not in its text"),
        (coreference("他说他来了。", "他", 0, "", 2), "span2 is not in its text"),
        (coreference("他说他来了。", "他说他", 0, "他", 2), "its spans overlap"),
        (coreference("他说他来了。", "他", 3, "他", 2), "its spans overlap"),
    ],
)
def test_a_row_whose_spans_do_not_fit_is_skipped_with_the_reason(row, reason):
    with pytest.raises(RowSkippedError, match=reason):
        mark_spans(row)


# ---- CMRC 2018, DRCD ----


def squad(context, question, *answers):
    answers = [{"text": text, "answer_start": start} for text, start in answers]
    qas = [{"id": "Q_0", "question": question, "answers": answers}]
    return {"data": [{"paragraphs": [{"id": "P", "context": context, "qas": qas}]}]}


@pytest.mark.parametrize(
    ("task", "name"),
    [
        (CMRC2018, "cmrc2018/cmrc2018_dev.json"),
        (CMRC2018, "cmrc2018_public/dev.json"),
        (DRCD, "drcd/DRCD_dev.json"),
        (DRCD, "drcd_public/dev.json"),
    ],
)
def test_questions_are_read_from_either_name(tmp_path, task, name):
    examples = load(tmp_path, task, "dev", name, squad("天很蓝。", "天呢?", ("很蓝", 1)))
    assert examples == [QuestionExample("Q_0", "天呢?", "天很蓝。", (Answer("很蓝", 1),))]


def test_a_wrong_place_of_an_answer_is_put_right(tmp_path):
    context = "他来了。她来了。他走了。"
    [example] = load(tmp_path, CMRC2018, "dev", "cmrc2018/dev.json", squad(context, "谁?", ("他", 7)))
    assert example.answers == (Answer("他", 8),)


def test_an_answer_that_the_context_does_not_have_is_not_the_one_to_learn(tmp_path):
    file = squad("天很蓝。", "天呢?", ("蓝色", -1), ("很蓝", 1), ("39764.0", -1))
    [example] = load(tmp_path, CMRC2018, "dev", "cmrc2018/dev.json", file)
    assert example.answers == (Answer("很蓝", 1), Answer("蓝色", -1), Answer("39764.0", -1))


def test_the_hidden_answers_of_cmrc_are_not_taken_for_answers(tmp_path):
    hidden = squad("天很蓝。", "天呢?", ("FAKE_ANSWER_1", -1), ("FAKE_ANSWER_2", -1))
    [example] = load(tmp_path, CMRC2018, "test", "cmrc2018/test.json", hidden)
    assert example.answers is None


@example("aaa", "aa", 1)
@given(st.text("ab", max_size=12), st.text("ab", max_size=3), st.integers(-2, 14))
def test_a_text_is_found_at_the_nearest_place_that_has_it(context, text, start):
    places = [place for place in range(len(context)) if text and context[place : place + len(text)] == text]
    found = find_text(context, text, start)
    if places:
        assert found in places
        assert abs(found - start) == min(abs(place - start) for place in places)
    else:
        assert found == -1


def test_questions_of_the_hub_become_the_same_examples():
    row = Row(
        id="Q", question="天呢?", context="天很蓝。", answers={"text": ["蓝色", "很蓝"], "answer_start": [-1, 0]}
    )
    for task in (CMRC2018, DRCD):
        example = task.dataset.to_example(row, 0)
        assert example == QuestionExample("Q", "天呢?", "天很蓝。", (Answer("很蓝", 1), Answer("蓝色", -1)))
    row = Row({**row, "answers": {"text": ["FAKE_ANSWER_1"], "answer_start": [-1]}})
    assert CMRC2018.dataset.to_example(row, 0).answers is None


# ---- C3 ----

DIALOGUE = [
    ["男:你去工作?", "女:是。"],
    [{"question": "谈什么?", "choice": ["旅行", "工作"], "answer": "工作"}],
    "47-275",
]


def test_files_of_both_parts_of_c3_are_joined(tmp_path):
    write(tmp_path, "c3/m-train.json", [DIALOGUE])
    write(tmp_path, "c3/d-train.json", [DIALOGUE, DIALOGUE])
    examples = load_split(C3, "train", str(tmp_path)).examples
    assert len(examples) == 3
    assert examples[0].context == "男:你去工作?\n女:是。"
    assert examples[0].question == "谈什么?"
    assert examples[0].choices == ("旅行", "工作")
    assert examples[0].label == 1


def test_test_questions_of_c3_have_an_id_and_no_answer(tmp_path):
    entry = [["文。"], [{"question": "谈什么?", "choice": ["旅行", "工作"], "id": 508}]]
    assert load(tmp_path, C3, "test", "c3/test.json", [entry]) == [
        ChoiceExample("508", "文。", "谈什么?", ("旅行", "工作"), None)
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answer": "家庭"}, "the answer '家庭' is none of the choices 旅行, 工作"),
        ({"choice": ["工作"]}, "at least two choices, not 1"),
    ],
)
def test_a_question_of_c3_that_has_no_right_choice_is_refused(tmp_path, change, message):
    entry = [DIALOGUE[0], [{**DIALOGUE[1][0], **change}], "1"]
    with pytest.raises(ValueError, match=message):
        load(tmp_path, C3, "dev", "c3/dev.json", [entry])


def test_questions_of_c3_on_the_hub_become_the_same_examples():
    row = Row(id=4, context=["甲。", "乙。"], question="谁?", choice=["甲", "乙"], answer="乙")
    assert C3.dataset.to_example(row, 0) == ChoiceExample("4", "甲。\n乙。", "谁?", ("甲", "乙"), 1)
    assert C3.dataset.to_example(Row({**row, "answer": ""}), 0).label is None


# ---- ChID ----

IDIOMS = ["一心一意", "二话不说", "三心二意"]
BLANKS = {"content": ["他#idiom000001#地学。", "他#idiom000002#就走,#idiom000003#。"], "candidates": IDIOMS}
ANSWERS = {"#idiom000001#": 0, "#idiom000002#": 1, "#idiom000003#": 2}


def test_every_blank_of_chid_is_a_question(tmp_path):
    write(tmp_path, "chid/train_answer.json", ANSWERS)
    examples = load(tmp_path, CHID, "train", "chid/train.json", BLANKS)
    assert examples == [
        ChoiceExample("#idiom000001#", "他____地学。", "", tuple(IDIOMS), 0),
        ChoiceExample("#idiom000002#", "他____就走,□□□□。", "", tuple(IDIOMS), 1),
        ChoiceExample("#idiom000003#", "他□□□□就走,____。", "", tuple(IDIOMS), 2),
    ]
    assert [example.label for example in load(tmp_path, CHID, "test", "chid/test.json", BLANKS)] == [None] * 3


def test_rows_of_chid_on_the_hub_give_the_same_blanks(tmp_path):
    write(tmp_path, "chid/train_answer.json", ANSWERS)
    from_files = load(tmp_path, CHID, "train", "chid/train.json", BLANKS)
    row = Row(BLANKS, idx=0, answers={"candidate_id": [0, 1, 2], "text": IDIOMS})
    assert [convert_chid(Row(blank), 0) for blank in CHID.dataset.expand(row)] == from_files
    row = Row(BLANKS, idx=0, answers={"candidate_id": [], "text": []})
    assert [convert_chid(Row(blank), 0).label for blank in CHID.dataset.expand(row)] == [None] * 3


def test_text_far_from_a_blank_is_left_out_so_that_the_blank_is_not_cut():
    content = "前" * 300 + "#idiom000001#" + "后" * 300
    example = convert_chid(Row(id="#idiom000001#", content=content, candidates=IDIOMS, answer=0), 0)
    room = CHID.max_length - 3 - len(IDIOMS[0])  # [CLS] and twice [SEP]
    before, after = example.context.split("____")
    assert len(example.context) <= room
    assert len(before) == len(after) >= 50


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"candidate_id": [0, 1], "text": IDIOMS[:2]}, "there are 3 blanks and 2 answers"),
        ({"candidate_id": [0, 1, 1], "text": IDIOMS}, "the answer '三心二意' is not candidate 1"),
        ({"candidate_id": [0, 1, 3], "text": IDIOMS}, "the answer '三心二意' is not candidate 3"),
    ],
)
def test_answers_that_do_not_fit_the_blanks_are_refused(answers, message):
    with pytest.raises(ValueError, match=message):
        list(split_blanks(Row(BLANKS, answers=answers)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answer": 3}, "the answer of #idiom000001# is 3: there are 3 candidates"),
        ({"content": "没有"}, "#idiom000001# is 0 times in its text"),
        ({"content": "#idiom000001##idiom000001#"}, "#idiom000001# is 2 times in its text"),
    ],
)
def test_a_blank_that_cannot_be_filled_is_refused(change, message):
    row = Row(id="#idiom000001#", content=BLANKS["content"][0], candidates=IDIOMS, answer=0)
    with pytest.raises(ValueError, match=message):
        convert_chid(Row({**row, **change}), 0)


# ---- CLUENER ----


def test_spans_become_a_tag_a_character(tmp_path):
    row = {"text": "浙商银行叶老桂", "label": {"name": {"叶老桂": [[4, 6]]}, "company": {"浙商银行": [[0, 3]]}}}
    [example] = load(tmp_path, CLUENER2020, "dev", "cluener2020/dev.json", row)
    assert example.words == tuple("浙商银行叶老桂")
    assert example.tags == ("B-company", *["I-company"] * 3, "B-name", "I-name", "I-name")
    [example] = load(tmp_path, CLUENER2020, "test", "cluener_public/test.json", {"id": 7, "text": "无"})
    assert (example.id, example.words, example.tags) == ("7", ("无",), None)


@given(st.text("甲乙丙", min_size=1, max_size=20), st.data())
def test_tags_are_submitted_as_the_spans_that_they_came_from(tmp_path_factory, text, data):
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    label = {}
    for begin, end in itertools.pairwise(cuts):
        name = data.draw(st.sampled_from([None, "name", "address", "scene"]))
        if name is not None:
            label.setdefault(name, {}).setdefault(text[begin:end], []).append([begin, end - 1])
    example = CLUENER2020.files["train"].to_example(Row(text=text, label=label), 0)
    assert set(example.tags) <= set(CLUENER2020.labels)
    directory = tmp_path_factory.mktemp("submission")
    path = write_submission(CLUENER2020, "test", [list(example.tags)], [example], directory)
    assert json.loads(path.read_text("utf-8"))["label"] == label


@pytest.mark.parametrize(
    ("label", "reason"),
    [
        ({"name": {"甲乙": [[0, 1]], "乙": [[1, 1]]}}, "its spans overlap"),
        ({"name": {"甲乙": [[0, 1]]}, "scene": {"甲乙": [[0, 1]]}}, "its spans overlap"),
        ({"name": {"甲乙": [[1, 2]]}}, "the text of a span is not where its place says"),
        ({"name": {"": [[2, 1]]}}, "the text of a span is not where its place says"),
        ({"name": {"丙": [[-1, -1]]}}, "the text of a span is not where its place says"),
        ({"name": {"丙丁": [[2, 3]]}}, "the text of a span is not where its place says"),
    ],
)
def test_a_row_that_cannot_be_tagged_is_skipped_with_the_reason(label, reason):
    with pytest.raises(RowSkippedError, match=reason):
        CLUENER2020.files["train"].to_example(Row(text="甲乙丙", label=label), 0)


def test_an_unknown_name_of_a_span_is_refused():
    with pytest.raises(ValueError, match="there is no label 'planet'"):
        CLUENER2020.files["train"].to_example(Row(text="甲", label={"planet": {"甲": [[0, 0]]}}), 0)


def test_rows_to_learn_from_must_have_spans():
    with pytest.raises(ValueError, match="there is no column 'label'"):
        CLUENER2020.files["train"].to_example(Row(text="甲"), 0)
