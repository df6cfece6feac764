"""Reading examples from files in the official layouts, datasets of the Hub and files of one's own."""

import csv
import gzip
import json
from pathlib import Path

import pytest
import zstandard
from datasets import ClassLabel, Dataset, Features, Value
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForSequenceClassification, pipeline

from hf_electra_rtd.base.cli import parse_arguments
from hf_electra_rtd.base.records import EvaluationRecord
from hf_electra_rtd.base.tasks import BENCHMARKS, Task, get_task
from hf_electra_rtd.finetuning import predict as predict_command
from hf_electra_rtd.finetuning import reading
from hf_electra_rtd.finetuning.arguments import FineTuningArguments, OwnTaskArguments, TaskArguments
from hf_electra_rtd.finetuning.data import Split, encode_task, load_split, load_task, own_task
from hf_electra_rtd.finetuning.kinds import make_kind
from hf_electra_rtd.finetuning.plan import _name_of_data
from tests.finetuning.conftest import run_finetune


TASKS = {task.name: task for tasks in BENCHMARKS.values() for task in tasks}
PAIR = {"sentence1": "借呗", "sentence2": "花呗"}
ABSTRACT = {"id": 3, "abst": "归责原则。", "keyword": ["环境", "侵权"]}
NOUN = {"span1_text": "杨百顺", "span1_index": 0, "span2_text": "他", "span2_index": 9}
SHE = {"text": "She", "answer_start": 2}  # the place is wrong
WHO = {"id": "a", "question": "Who?", "answers": [SHE, {"text": "her", "answer_start": 0}]}
NONE = {"id": "b", "question": "Why?", "answers": [], "is_impossible": True}
HIDDEN = {"id": "c", "question": "Why?", "answers": [{"text": "FAKE_ANSWER_1", "answer_start": -1}]}
C3 = [["男:去。", "女:好。"], [{"question": "谈什么?", "choice": ["旅行", "工作"], "answer": "工作"}], "d-1"]
C3_NUMBER = [["文。"], [{"question": "几个?", "choice": ["3", "2", "5"], "answer": "2"}], "m-1"]
C3_TEST = [["文。"], [{"question": "谈什么?", "choice": ["旅行", "工作"], "id": 508}]]
CHID = {"content": ["他#idiom000378#;又#idiom000379#。"], "candidates": ["一心一意", "三心二意"]}
RTE = "sentence1\tsentence2"
STSB = "index\tgenre\tsentence1\tsentence2"
MNLI = "index\tgenre\tsentence1\tsentence2\tlabel1"


def squad(*questions):
    return json.dumps({"data": [{"paragraphs": [{"context": "I, She.", "qas": list(questions)}]}]})


def entities(**spans):
    return {"text": "叶老桂说", "label": spans}


def text(id, *texts, label=None):
    return {"id": id, "texts": list(texts), "label": label}


def answer(id, question, answers, starts):
    return {"id": id, "question": question, "context": "I, She.", "label": answers, "starts": starts}


def choice(id, context, question, choices, label):
    return {"id": id, "context": context, "question": question, "choices": choices, "label": label}


def tagged(id, words, tags):
    return {"id": id, "texts": words.split(), "label": tags and tags.split()}


SHE_OR_HER = answer("a", "Who?", ["She", "her"], [3, -1])
WORK = choice("d-1-0", "男:去。\n女:好。", "谈什么?", ["旅行", "工作"], 1)
FIRST_BLANK = choice("#idiom000378#", "他____;又□□□□。", "", CHID["candidates"], 1)
SECOND_BLANK = choice("#idiom000379#", "他□□□□;又____。", "", CHID["candidates"], 0)

# Each row: task, split and file; the lines of the file (dicts become JSON); the expected examples (strings:
# id|texts|label).
OFFICIAL = [
    ("cola train CoLA/train.tsv", ["gj04\t0\t*\tThey drank."], "0|They drank.|unacceptable"),
    ("cola test CoLA/test.tsv", ["index\tsentence", "7\tBill left."], "7|Bill left.|"),
    ("sst2 train SST-2/train.tsv", ["sentence\tlabel", 'a "film \t1'], '0|a "film |positive'),
    ("sst2 test SST-2/test-labeled.tsv", ["sentence\tlabel\r", "bad\t0\r"], "0|bad|negative"),
    (
        *("mrpc train MRPC/train.tsv", ["\ufeffQuality\t#1 ID\t#1 String\t#2 String", '1\t7\tOne "x.\tTwo.']),
        '0|One "x.|Two.|equivalent',
    ),
    ("mrpc test MRPC/test.tsv", ["index\t#1 String\t#2 String", "4\tA\tB"], "4|A|B|"),
    ("stsb dev STS-B/dev.tsv", [f"{STSB}\tscore", "5\tm\tOne.\tTwo.\t4.750"], text("5", "One.", "Two.", label=4.75)),
    ("stsb test STS-B/test.tsv", [STSB, "6\tm\tOne.\tTwo."], "6|One.|Two.|"),
    (  # a lone \r, U+0085 and U+2028 do not end a line
        "qqp train QQP/train.tsv",
        ["id\tqid1\tquestion1\tquestion2\tis_duplicate", "9\t1\tHow\r\x85\u2028?\tB?\t1", "8\t2\tcut", "in two\t1"],
        "9|How\r\x85\u2028?|B?|duplicate",
    ),
    (
        "mnli dev_matched MNLI/dev_slice.tsv",
        [f"{MNLI}\tgold_label", "3\tg\tOne.\tTwo.\tneutral\tentailment", "4\tg\tA\tB\tneutral\t-"],
        "3|One.|Two.|entailment",
    ),
    ("qnli train QNLI/train.tsv", ["question\tsentence\tlabel", "W\tH\tentailment"], "0|W|H|entailment"),
    ("rte train RTE/train.tsv", [f"index\t{RTE}\tlabel", "2\tA\tB\tentailment"], "2|A|B|entailment"),
    ("wnli dev WNLI/dev.tsv", [f"index\t{RTE}\tlabel", "2\tA\tB\t1"], "2|A|B|entailment"),
    ("ax test diagnostic/diagnostic.tsv", [f"index\t{RTE}", "0\tA\tB"], "0|A|B|"),
    ("afqmc train afqmc/train.json", [PAIR | {"label": "1"}], "0|借呗|花呗|1"),
    ("tnews dev tnews/dev.json", [{"label": "102", "sentence": "新闻"}], "0|新闻|102"),
    ("iflytek train iflytek_few/train_few_all.json", [{"label": 10, "sentence": "小区", "id": 5}], "5|小区|10"),
    ("cmnli train cmnli/train.json", [PAIR | {"label": "neutral"}], "0|借呗|花呗|neutral"),
    (
        *("ocnli train ocnli/train.3k.json", [PAIR | {"label": "-", "id": 7}, PAIR | {"label": "neutral", "id": 8}]),
        "8|借呗|花呗|neutral",
    ),
    (  # the place of the pronoun is wrong, and the second text has no pronoun
        "cluewsc2020 dev cluewsc2020/dev.json",
        [{"target": NOUN, "label": "true", "text": text, "idx": 4} for text in ("杨百顺不在。叫他来。", "杨百顺。")],
        "0|_杨百顺_不在。叫[他]来。|true",
    ),
    ("csl train csl/train.json", [ABSTRACT | {"label": "1"}], "3|环境 侵权|归责原则。|1"),
    ("csl test csl_few/test_public.json", [ABSTRACT], "3|环境 侵权|归责原则。|"),
    ("cmrc2018 dev cmrc2018/cmrc2018_dev.json", [squad(WHO)], SHE_OR_HER),
    ("cmrc2018 test cmrc2018/test.json", [squad(HIDDEN)], answer("c", "Why?", None, None)),
    ("drcd test drcd_public/DRCD_test.json", [squad(WHO)], SHE_OR_HER),
    ("c3 dev c3/m-dev.json+c3/d-dev.json", [json.dumps([C3])], WORK, WORK),
    ("c3 train c3/train.json", [json.dumps([C3_NUMBER])], choice("m-1-0", "文。", "几个?", ["3", "2", "5"], 1)),
    ("c3 test c3/test1.1.json", [json.dumps([C3_TEST])], choice("508", "文。", "谈什么?", ["旅行", "工作"], None)),
    ("chid dev chid/dev.json", [CHID], FIRST_BLANK, SECOND_BLANK),
    (  # the second row has a span at a wrong place, the third has overlapping spans
        "cluener2020 train cluener/train.json",
        [
            entities(name={"叶老桂": [[0, 2]]}),
            entities(name={"叶老": [[1, 2]]}),
            entities(name={"叶老桂": [[0, 2]]}, game={"老": [[1, 1]]}),
        ],
        tagged("0", "叶 老 桂 说", "B-name I-name I-name O"),
    ),
    ("cluener2020 test cluener/test.json", [{"id": 6, "text": "天"}], tagged("6", "天", None)),
    ("chnsenticorp train chnsenticorp/train.tsv", ["不错\tpositive"], "0|不错|positive"),
    ("chnsenticorp test chnsenticorp/test.tsv", ["qid\ttext_a", "5\t一般"], "5|一般|"),
    ("lcqmc dev LCQMC/dev.txt", ["问一\t问二\t1"], "0|问一|问二|1"),
    ("bq test bq_corpus/test.tsv", ["问一\t问二\t0"], "0|问一|问二|0"),
    (
        *("xnli train xnli/multinli.train.zh.tsv", ["premise\thypo\tlabel", "一。\t二。\tcontradictory"]),
        "0|一。|二。|contradiction",
    ),
    (
        "xnli dev XNLI-1.0/xnli.dev.tsv",
        ["language\tgold_label\tsentence1\tsentence2", "de\tneutral\tA\tB", "zh\tneutral\t一\t二"],
        "1|一|二|neutral",
    ),
    ("squad1 train train-v1.1.json", [squad(WHO)], SHE_OR_HER),
    (
        "squad2 dev squad2/dev-v2.0.json",
        [squad(WHO, NONE, {"id": "d", "question": "?"}, {"id": "e", "question": "How?", "answers": []})],
        SHE_OR_HER,
        *(answer("b", "Why?", [], []), answer("d", "?", None, None), answer("e", "How?", [], [])),
    ),
    (
        "conll2000 test conll2000/test.txt",
        ["-DOCSTART- -X- O", "", "He PRP B-NP", "is VBZ B-VP", "", "", "So RB O"],
        *(tagged("0", "He is", "B-NP B-VP"), tagged("1", "So", "O")),
    ),
]
SKIPPED = {"qqp": 2, "mnli": 1, "ocnli": 1, "cluewsc2020": 1, "cluener2020": 2}


def write(directory, name, lines):
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [line if isinstance(line, (str, bytes)) else json.dumps(line, ensure_ascii=False) for line in lines]
    path.write_bytes(b"".join((line.encode() if isinstance(line, str) else line) + b"\n" for line in texts))
    return str(path)


def example_of(row):
    """Parses a string `id|text|label` or `id|text|text|label`, in which an empty label means unknown. Returns other
    rows unchanged."""
    if not isinstance(row, str):
        return row
    id, *texts, label = row.split("|")
    return text(id, *texts, label=label or None)


@pytest.mark.parametrize("row", OFFICIAL, ids=[row[0] for row in OFFICIAL])
def test_files_in_the_official_layout_become_examples(tmp_path, row):
    where, lines, *examples = row
    name, split, file = where.split()
    for part in file.split("+"):
        write(tmp_path, part, lines)
    if name == "chid":
        write(tmp_path, "chid/dev_answer.json", [{"#idiom000378#": 1, "#idiom000379#": 0}])
    loaded = load_split(TASKS[name], split, str(tmp_path))
    assert loaded.examples.to_list() == list(map(example_of, examples))
    assert loaded.skipped == (0 if split.startswith("test") else SKIPPED.get(name, 0))
    names = {part.rpartition("/")[2] for part in file.split("+")} | ({"dev_answer.json"} if name == "chid" else set())
    assert loaded.source["files"].keys() == names


def test_every_task_is_tried_in_its_layout():
    assert {where.split()[0] for where, *_ in OFFICIAL} == set(TASKS)


def test_the_first_file_that_exists_is_read(tmp_path):
    for name, split, files in (  # later files take precedence
        ("sst2", "test", ["SST-2/test.tsv", "SST-2/test-labeled.tsv"]),
        ("ocnli", "train", [f"ocnli/train{size}.json" for size in (".3k", ".10k", ".50k", "")]),
        ("csl", "dev", ["csl_few/dev_few_all.json", "csl_public/dev.json", "csl/dev.json"]),
        ("c3", "test", ["c3/test.json", "c3/test1.1.json"]),
    ):
        for file in files:
            write(tmp_path, file, [])
            assert reading.find_files(TASKS[name], split, str(tmp_path)) == [str(tmp_path / file)]


def test_files_may_be_compressed(tmp_path):
    lines = b"He PRP B-NP\n\nSo RB O\n"
    (tmp_path / "conll2000").mkdir()
    (tmp_path / "conll2000/test.txt.gz").write_bytes(gzip.compress(lines))
    (tmp_path / "own.CONLL.ZST").write_bytes(zstandard.compress(lines))
    own = own_task("t", flags(train_file=str(tmp_path / "own.CONLL.ZST"), task_kind="tagging"))
    for split in (load_split(TASKS["conll2000"], "test", str(tmp_path)), load_split(own, "train")):
        assert split.examples["texts"] == [["He"], ["So"]]
        assert split.examples["label"] == [["B-NP"], ["O"]]


def test_a_second_run_finds_the_examples_in_the_cache_unless_the_file_changed(tmp_path, monkeypatch):
    write(tmp_path, "lcqmc/dev.tsv", [f"{number}\tx\t{number % 2}" for number in range(5003)])
    first = load_split(TASKS["lcqmc"], "dev", str(tmp_path)).examples.to_list()
    assert [row["texts"][0] for row in first] == [str(number) for number in range(5003)]  # in the file's order
    with monkeypatch.context() as patch:
        patch.setattr(reading, "make_examples", None)
        assert load_split(TASKS["lcqmc"], "dev", str(tmp_path)).examples.to_list() == first
    write(tmp_path, "lcqmc/dev.tsv", ["问一\t问三\t1"])
    assert load_split(TASKS["lcqmc"], "dev", str(tmp_path)).examples[0]["texts"] == ["问一", "问三"]


@pytest.mark.parametrize(
    ("where", "lines", "message"),
    [
        ("cola dev CoLA/dev.tsv", ["a\t0\t*\tx", "b\t1"], r"dev\.tsv, line 2 "),
        ("rte dev RTE/dev.tsv", [f"{RTE}\tlabel", "a\tb\tentailmen"], "line 2.*'entailment'"),
        ("rte dev RTE/dev.tsv", [f"{RTE}\tlabel"], r"dev\.tsv .*no row"),
        ("rte dev RTE/dev.tsv", [f"{RTE}\tlabel", "a\tb\t"], "'dev'"),
        ("ocnli dev ocnli/dev.json", [PAIR | {"label": "-"}], "'dev' .*1 skipped"),
        ("stsb dev STS-B/dev.tsv", [f"{STSB}\tscore", "5\tm\tA\tB\tnan"], "'nan'"),
        ("lcqmc dev lcqmc/other.tsv", [], r"'dev' .*lcqmc/dev\.tsv, lcqmc/dev\.txt"),
        ("afqmc dev afqmc/dev.json", [PAIR | {"label": "0"}, "{"], r"dev\.json, line 2 .*JSON"),
        ("drcd dev drcd/dev.json", ["{}"], r"dev\.json .*'data'.*squad"),
        ("conll2000 train conll2000/train.txt", ["He PRP B-NP", "is VBZ"], "line 2 "),
        ("lcqmc dev lcqmc/dev.tsv", ["问一\t问二\t1".encode("gbk")], r"dev\.tsv, line 1 .*UTF-8"),
        ("rte dev", [], "nyu-mll/glue.*'validation'.*data_dir"),
    ],
)
def test_errors_name_the_file_and_the_line_or_the_remedy(tmp_path, where, lines, message):
    name, split, *files = where.split()
    directories = [str(tmp_path) for file in files if write(tmp_path, file, lines)]
    with pytest.raises(ValueError, match=message) as caught:
        load_split(TASKS[name], split, *directories)
    assert all(directory in str(caught.value) for directory in directories)


def test_a_text_is_found_at_the_nearest_place():
    cases = [("a b a", "a", 3), ("aXXXa", "a", 2), ("aaa", "aa", 1), ("b", "a", 0), ("a", "", 0)]
    assert [reading.find_text(*case) for case in cases] == [4, 0, 1, -1, -1]


def test_marks_stand_around_the_noun_and_the_pronoun_in_either_order_unless_they_overlap():
    for noun, at, pronoun, place, marked in (
        ("甲", 0, "丁戊", 3, "_甲_乙丙[丁戊]甲"),
        ("甲", 5, "乙", 1, "甲[乙]丙丁戊_甲_"),
        ("乙丙", 1, "丙丁", 2, None),
        ("", 1, "丙", 2, None),
    ):
        target = {"span1_text": noun, "span1_index": at, "span2_text": pronoun, "span2_index": place}
        assert reading.mark_spans({"text": "甲乙丙丁戊甲", "target": target}) == marked


def test_far_text_of_a_blank_is_left_out_so_that_truncation_does_not_lose_it(tmp_path):
    content = "甲" * 90 + "#idiom000001#" + "乙" * 90
    write(tmp_path, "chid/test.json", [{"content": [content], "candidates": ["a", "b"]}])
    [example] = load_split(TASKS["chid"], "test", str(tmp_path)).examples
    assert example["context"] == "甲" * 56 + "____" + "乙" * 56


# ---- The Hub ----


@pytest.mark.parametrize(
    ("name", "row", "example"),
    [
        ("mrpc", {"sentence1": "A", "sentence2": "B", "label": 1, "idx": 6}, "6|A|B|equivalent"),
        ("mnli", {"premise": "A", "hypothesis": "B", "label": -1, "idx": 6}, "6|A|B|"),
        ("stsb", {"sentence1": "A", "sentence2": "B", "label": -1.0, "idx": 6}, "6|A|B|"),
        ("tnews", {"sentence": "新闻", "label": 5, "idx": 6}, "6|新闻|106"),
        ("csl", {"keyword": ["环", "境"], "abst": "摘", "label": 0, "idx": 6}, "6|环 境|摘|0"),
        (
            "squad2",
            NONE | {"context": "I, She.", "answers": {"text": [], "answer_start": []}},
            answer("b", "Why?", [], []),
        ),
        ("chid", CHID | {"idx": 1, "answers": {"candidate_id": [1, 0]}}, FIRST_BLANK),
    ],
)
def test_rows_of_the_hub_become_the_same_examples(monkeypatch, name, row, example):
    task = TASKS[name]
    dataset = Dataset.from_list([row])
    if task.labels:
        dataset = dataset.cast_column("label", ClassLabel(names=list(task.labels)))
    monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: dataset)
    split = load_split(task, "test_matched" if name == "mnli" else task.test_splits[0] if task.test_splits else "dev")
    assert split.examples[0] == example_of(example)
    assert split.source["dataset"] == task.dataset


# ---- Own tasks ----


def flags(**options):
    return OwnTaskArguments(**{"validation_share": 0.0, **options})


def write_csv(path, *rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return str(path)


@pytest.fixture
def weather(tmp_path):
    return write_csv(tmp_path / "w+1.csv", ("text", "label"), ("it rains", "bad"), ('sun,\n"sun"', "good"), ("", ""))


def test_own_files_need_nothing_but_their_names(tmp_path, weather, monkeypatch):
    dev = write(tmp_path, "dev.tsv", ["label\ttext", 'good\ta "fine" day'])
    monkeypatch.chdir(tmp_path)
    task = own_task("weather", flags(train_file="w+1.csv", validation_file=dev))
    monkeypatch.chdir("/")
    assert (task.benchmark, task.labels, task.metrics) == ("own", ("bad", "good"), ("accuracy", "macro_f1"))
    assert (list(task.files), task.dev_splits, task.test_splits) == (["train", "dev"], ("dev",), ())
    expected = [text("0", "it rains", label="bad"), text("1", 'sun,\n"sun"', label="good"), text("2", "")]
    assert load_split(task, "train").examples.to_list() == expected
    assert load_split(task, "dev").examples[0]["texts"] == ['a "fine" day']
    assert str(tmp_path) not in str(load_split(task, "train").source)


@pytest.mark.parametrize("row", ["a mill,,", "a mill,the mill,"])
def test_a_text_without_a_partner_or_a_number_trains_embeddings_from_every_format(tmp_path, row):
    file = write(tmp_path, "pairs.csv", ["text,other,label", "a river,the river,1.0", row])
    task = own_task("t", flags(train_file=file, task_kind="embedding", second_text_column_name="other"))
    first, second = load_split(task, "train").examples["texts"]
    assert (first, second) == (["a river", "the river"], [part for part in row.split(",") if part])


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([10, 9, 100], ("9", "10", "100")),
        ([True, False], ("false", "true")),
        ([" b", "a ", "b"], ("a", "b")),
        (["/person/artist", "place"], ("/person/artist", "place")),
        (list(range(20)), tuple(map(str, range(20)))),
    ],
)
def test_labels_are_those_of_the_training_examples_in_order(tmp_path, values, labels):
    train = write(tmp_path, "t.jsonl", [{"text": "x", "label": value} for value in values * 5])
    task = own_task("t", flags(train_file=train))
    assert task.labels == labels
    assert set(load_split(task, "train").examples["label"]) == set(labels)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["0.5", "1.25", "2"], "'2'.*--task_kind regression"),
        (list(range(21)), "21 .*--labels A B .*--task_kind regression"),
        (["1", "1.0"], "'1.0'"),
        (["a", "b", "None"], "6 .*--labels"),
        (["a", "b", ""], "6 .*--labels"),
        (["10", "9", "x"], "'10'.*'x'"),
        ([0.5, 1.5], "0.5 .*regression"),
        (["x"], "'x'"),
    ],
)
def test_labels_that_may_not_be_classes_are_a_question(tmp_path, values, message):
    train = write(tmp_path, "t.jsonl", [{"text": "x", "label": value} for value in values * 6])
    with pytest.raises(ValueError, match=message) as caught:
        own_task("t", flags(train_file=train))
    assert train in str(caught.value)
    if not isinstance(values[0], float):
        classes = [*dict.fromkeys(str(value) for value in [*values, "z"] if value)]
        assert own_task("t", flags(train_file=train, labels=classes)).labels == tuple(classes)


def test_more_classes_than_a_fifth_of_the_rows_are_a_question(tmp_path):
    rows = [{"text": "x", "label": f"c{number % 5}"} for number in range(25)]
    assert len(own_task("t", flags(train_file=write(tmp_path, "t.jsonl", rows))).labels) == 5
    with pytest.raises(ValueError, match="5 different labels for 24 examples"):
        own_task("t", flags(train_file=write(tmp_path, "t.jsonl", rows[1:])))


def test_an_unknown_number_is_an_index_only_where_no_label_is_a_number(tmp_path):
    file = write(tmp_path, "t.jsonl", [{"text": "x", "label": 0}])
    task = own_task("t", flags(train_file=file, labels=["good", "bad"]))
    assert list(load_split(task, "train").examples["label"]) == ["good"]
    for labels in (["1", "2"], ["1.0", "many"], ["-1", "x"]):
        with pytest.raises(ValueError, match="no label '0'"):
            load_split(own_task("t", flags(train_file=file, labels=labels)), "train")


def test_pairs_ids_and_labels_go_by_the_names_given(tmp_path):
    rows = [{"key": "007", "q1": "a", "q2": "b", "same": "1"}, {"key": "x", "q1": "c", "q2": None, "same": "0"}]
    names = {"text_column_name": "q1", "second_text_column_name": "q2", "label_column_name": "same"}
    names["id_column_name"] = "key"
    expected = [text("007", "a", "b", label="1"), text("x", "c", "", label="0")]
    Dataset.from_list(rows).to_parquet(tmp_path / "t.parquet")
    for file in (write(tmp_path, "t.json", [json.dumps(rows)]), str(tmp_path / "t.parquet")):
        task = own_task("t", flags(train_file=file, labels=["1", "0"], **names))
        assert (task.labels, task.describe()["text_columns"]) == (("1", "0"), ["q1", "q2"])
        assert load_split(task, "train").examples.to_list() == expected


def test_numbers_and_tags_are_read_from_any_format(tmp_path):
    train = write_csv(tmp_path / "t.csv", ("text", "label"), ("a", "2.50"), ("b", "-1"), ("c", " "))
    task = own_task("t", flags(train_file=train, task_kind="regression"))
    assert (task.labels, task.metrics) == ((), ("pearson", "spearman"))
    assert list(load_split(task, "train").examples["label"]) == [2.5, -1.0, None]
    files = [
        write(tmp_path, "l.jsonl", [{"text": ["It", "rains"], "label": ["O", "B-VP"]}]),
        write_csv(tmp_path / "s.csv", (), ("text", "label"), (), ("It rains", "O B-VP")),  # with empty lines
        write(tmp_path, "c.bio", ["It\tPRP\tO", "rains\tVBZ\tB-VP"]),
    ]
    for file in files:
        task = own_task("t", flags(train_file=file, task_kind="tagging"))
        assert (task.labels, task.metrics) == (("B-VP", "I-VP", "O"), ("f1",))
        assert load_split(task, "train").examples.to_list() == [tagged("0", "It rains", "O B-VP")]


def test_equal_texts_are_in_one_part_of_what_is_drawn_for_validation(tmp_path):
    rows = [(f"text {number % 300}", "yes" if number % 3 else "no") for number in range(600)]
    train = write_csv(tmp_path / "t.csv", ("text", "label"), *rows, ("text 1", "rare"))
    parts = load_task(own_task("t", flags(train_file=train, validation_share=0.2)), None)
    texts = {split: [texts[0] for texts in part.examples["texts"]] for split, part in parts.items()}
    assert not set(texts["train"]) & set(texts["dev"])
    assert len(texts["train"]) + len(texts["dev"]) == 601
    assert parts["train"].source != load_split(own_task("t", flags(train_file=train)), "train").source


@settings(deadline=None, max_examples=25)
@given(st.lists(st.sampled_from("abcd"), min_size=2, max_size=60), st.floats(0.01, 0.9), st.randoms())
def test_each_class_is_in_both_parts_as_often_as_its_share_and_in_any_order(tmp_path_factory, labels, share, draw):
    rows, order = [{"text": f"text {index}", "label": label} for index, label in enumerate(labels)], []
    for _ in range(2):
        file = write(tmp_path_factory.mktemp("t"), "t.jsonl", rows)
        task = own_task("t", flags(train_file=file, validation_share=share, labels=list("abcd")))
        parts = {"train": [], "dev": []}
        for split, part in parts.items():
            if split == "train" or max(map(labels.count, labels)) > 1:
                part += load_split(task, split).examples.select_columns(["texts", "label"]).to_list()
        order.append(sorted(row["texts"][0] for row in parts["dev"]))
        draw.shuffle(rows)
    assert order[0] == order[1]
    for label in set(labels):
        number, held = labels.count(label), sum(row["label"] == label for row in parts["dev"])
        assert held == 0 if number == 1 else 0 < held < number
        assert abs(held - share * number) < 1 or held in (1, number - 1)


def test_a_dataset_of_the_hub_has_the_splits_that_are_there(tmp_path):
    features = Features({"text": Value("string"), "label": ClassLabel(names=["bad", "good"])})
    dataset, hub = Dataset.from_dict({"text": list("abcd"), "label": [0, 1, 1, 0]}, features), str(tmp_path / "hub")
    for name in ("train", "test"):
        dataset.to_parquet(tmp_path / "hub" / f"{name}.parquet")
    task = own_task("t", flags(dataset=hub))
    assert (task.splits, task.dev_splits, task.labels) == ({"train": "train", "test": "test"}, (), ("bad", "good"))
    assert load_split(task, "test").examples[1] == text("1", "b", label="good")
    assert load_split(task, "test").source["dataset"] == "hub"  # only the name of the directory
    assert own_task("t", flags(dataset=hub, validation_share=None)).validation_share == 0.1
    sliced = own_task("t", flags(dataset=hub, dataset_splits=["train=train[:75%]", "dev=train[75%:]"]))
    assert list(load_split(sliced, "dev").examples["label"]) == ["bad"]
    with pytest.raises(ValueError, match="names of splits are train, dev and test"):
        own_task("t", flags(dataset=hub, dataset_splits=["training=train"]))
    with pytest.raises(ValueError, match=r"nowhere cannot be read.*give files instead"):
        own_task("t", flags(dataset=str(tmp_path / "nowhere")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "--task_name is 'submission'"),
        ({"validation_file": "{w}", "validation_share": 0.2}, "--validation_share"),
        ({"labels": ["a", "a"]}, "labels must"),
        ({"metrics": ["f2"]}, "metrics: "),
        ({"metrics": ["f1"], "labels": ["a", "b", "c"]}, "f1 .* 3"),
        ({"train_file": "single.csv", "labels": ["A", "B"], "validation_share": 0.5}, "'dev' .*validation_share"),
        ({"train_file": "none.csv"}, "none.csv"),
        ({"train_file": "t.xlsx"}, "t.xlsx .*tsv"),
        ({"text_column_name": "txt"}, "line 2: .*'txt'.*'text'"),
        ({"label_column_name": "text", "validation_file": "{w}", "labels": ["a", "b"]}, "line 3: .*labels"),
        ({"train_file": None, "test_file": "{w}"}, "--labels"),
        ({"train_file": None, "test_file": "{w}", "labels": ["A", "B", "C"]}, "--train_file"),
        ({"task_kind": "tagging", "labels": ["O", "S-x"]}, "'S-x'"),
        ({"train_file": "long.csv"}, "line 2 "),
        ({"train_file": "open.csv"}, "open.csv .*csv"),
        ({"train_file": "german.csv"}, "german.csv .*semicolons"),
    ],
    ids=str,
)
def test_own_flags_and_files_that_make_no_task_are_refused(tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "long.csv", ["text,label", "a,b,c"])
    write(tmp_path, "open.csv", ["text,label", '"a,b'])
    write(tmp_path, "german.csv", ["text;label", "a, too;b"])
    write(tmp_path, "t.xlsx", [])
    write(tmp_path, "single.csv", ["text,label", "a,A", "b,B"])
    file = write_csv(tmp_path / "w.csv", ("text", "label"), *((x * n, x.upper()) for x in "abc" for n in range(1, 6)))
    options = {key: file if value == "{w}" else value for key, value in options.items()}
    with pytest.raises(ValueError, match=message):
        load_task(own_task("t" if options else "submission", flags(**{"train_file": file, **options})), None)


# ---- Own tasks of every kind, and files of flags ----

EXAMPLES = Path(__file__).parents[2] / "examples/tasks"
CHOICES = [
    {"question": "Where?", "context": "the river", "choice_a": "a mill", "choice_b": "river", "label": answer}
    for answer in ("river", "1", 1)
]
OPTIONS = {"question": "2 + 2?", "choices": ["4", "5"]}


@pytest.mark.parametrize(
    ("kind", "rows", "wanted"),
    [
        (
            "question_answering",
            {"answers": {"text": ["She", "her"], "answer_start": [2, 0]}},
            (["She", "her"], [3, -1]),
        ),
        ("question_answering", {"answers": [SHE]}, (["She"], [3])),
        ("question_answering", {"answers": ["She"]}, (["She"], [3])),
        ("question_answering", {"answers": {"text": ["She"]}}, (["She"], [3])),
        ("question_answering", {"answers": {"text": "She", "answer_start": 3}}, "row 1: .*list"),
        ("question_answering", {"answers": "She"}, (["She"], [3])),
        ("question_answering", {"answers": ""}, ([], [])),
        ("question_answering", {"answers": None}, (None, None)),
        *(("multiple_choice", row, ("the river", ["a mill", "river"], 1)) for row in CHOICES),
        ("multiple_choice", OPTIONS | {"label": "5"}, ("", ["4", "5"], 1)),
        ("multiple_choice", OPTIONS | {"choices": ["x", "y", ""], "label": 0}, ("", ["x", "y"], 0)),
        ("multi_label", {"text": "x", "label": " b|a|b"}, (["x"], ["a", "b"])),
        ("multi_label", {"text": "x", "label": [1]}, (["x"], ["b"])),
        ("multi_label", {"text": "x", "label": [1, 1.0]}, "row 1: .*twice"),  # a 1 for each label
        ("multi_label", {"text": "x", "label": ""}, (["x"], [])),
        ("multi_label", {"text": "x", "label": None}, (["x"], None)),
        ("multi_label", {"text": "x", "label": 1}, (["x"], ["b"])),
        ("multi_label", {"text": "x", "label": 1.0}, (["x"], ["b"])),  # pandas writes 1 as 1.0 in a column with gaps
        ("multi_label", {"text": "x", "label": "['a', 'b']"}, "row 1: .*list"),  # as pandas writes lists
        ("multi_label", {"text": "x", "label": "[]"}, "row 1: .*list"),
        ("multi_label", {"text": "x\ud83d", "label": "a"}, "row 1: .*surrogate"),
        ("multi_label", {"text": "x", "label": 0.5}, "the label 0.5 is not text or a whole number"),
        ("multiple_choice", OPTIONS | {"label": "0"}, "row 1: there is no choice '0'. Known choices: 4, 5"),
        ("multiple_choice", OPTIONS | {"label": 0, "choices": ["4"]}, "are not two or more texts"),
        ("multiple_choice", OPTIONS | {"label": "A", "choices": {"text": ["4", "5"]}}, "not two or more texts"),
        ("multiple_choice", OPTIONS | {"label": 1, "choices": ["", "x", "y"]}, "not two or more texts"),
        ("multiple_choice", OPTIONS | {"label": "2", "choices": ["2", "4", "0"]}, "and the index of another"),
    ],
    ids=str,
)
def test_rows_of_ones_own_become_examples_of_any_kind_or_are_refused(kind, rows, wanted):
    columns = {
        "question_answering": ("label", "starts"),
        "multiple_choice": ("context", "choices", "label"),
        "multi_label": ("texts", "label"),
    }[kind]
    labels, column = ("a", "b") if kind == "multi_label" else (), "answers" if "starts" in columns else "label"
    task = Task("t", "T", "own", kind=kind, labels=labels, columns=("text",), label_column=column)
    row = {"question": "Who?", "context": "I, She."} | rows if kind == "question_answering" else rows
    found = reading.make_examples(task, "train", iter([("row 1", row)]))
    if isinstance(wanted, tuple):
        assert [tuple(example[name] for name in columns) for example in found] == [wanted]
    else:
        with pytest.raises(ValueError, match=wanted):
            list(found)


def test_the_column_of_the_right_choice_is_no_choice_whatever_its_name():
    task = Task("t", "T", "own", kind="multiple_choice", label_column="choice")
    row = {"question": "2 + 2?", "choice_a": "4", "choice_b": "5", "choice": "4"}
    (example,) = reading.make_examples(task, "train", iter([("row 1", row)]))
    assert (example["choices"], example["label"]) == (["4", "5"], 0)


@pytest.mark.parametrize(("answers", "found"), [(["She"], False), ([], True)])
def test_questions_may_have_no_answer_by_the_data_or_a_flag_and_those_of_one_context_stay_together(
    tmp_path, answers, found
):
    row = {"question": "?", "answers": answers}
    rows = [row | {"context": f"I, She {n % 9}."} for n in range(90)] + [
        row | {"context": "I, She 0.", "answers": ["She"]}
    ]
    given = {"train_file": write(tmp_path, "t.jsonl", rows), "task_kind": "question_answering"}
    task = own_task("t", flags(**given, validation_share=0.3))
    assert (task.unanswerable, task.metrics, task.max_seq_length) == (found, ("f1", "exact_match"), 512)
    assert own_task("t", flags(**given, unanswerable=not found)).unanswerable is not found
    contexts = [set(load_split(task, split).examples["context"]) for split in ("train", "dev")]
    assert [len(of_split) for of_split in contexts] == [6, 3]
    assert not contexts[0] & contexts[1]


@pytest.mark.parametrize(("kind", "label"), [("question_answering", "She"), ("multi_label", "a|b")])
def test_a_test_split_with_nothing_but_empty_labels_is_not_labeled(tmp_path, kind, label):
    column = "answers" if kind == "question_answering" else "label"
    row = ("I, She", "?", "I, She")
    names = ("text", "question", "context", column)
    train = write_csv(tmp_path / "train.csv", names, *[(*row, label)] * 9)
    test = write_csv(tmp_path / "test.csv", names, *[(*row, "")] * 2)
    task = own_task("t", flags(train_file=train, test_file=test, task_kind=kind))
    assert not task.unanswerable
    assert list(load_split(task, "test").examples["label"]) == [None, None]
    write_csv(tmp_path / "test.csv", names, (*row, ""), (*row, label))
    assert list(load_split(task, "test").examples["label"]) == [[], label.split("|")]


ASKED = {"question": "where ?"}
OWN = {  # a row, the changes for a second row, and the key of a prediction
    "question_answering": (ASKED | {"context": "the old river", "answers": "river"}, {"answers": ""}, "answer"),
    "multiple_choice": (ASKED | {"choices": ["a mill", "the river"], "label": 1}, {"label": 0}, "choice"),
    "multi_label": ({"text": "the old river", "label": "wet|old"}, {"text": "a mill", "label": "dry"}, "labels"),
    "regression": ({"text": "the old river", "label": 2}, {"text": "a mill", "label": 1.5}, "number"),
    "tagging": ({"text": "the old river", "label": "O O B-X"}, {"text": ["a"], "label": ["O"]}, "tags"),
}


@pytest.mark.parametrize("kind", OWN)
def test_own_files_of_every_kind_are_trained_reported_and_predicted(kind, encoder, tmp_path, capsys):
    row, other, answer = OWN[kind]
    file, run = write(tmp_path, "t.jsonl", [row, {**row, **other}] * 9), tmp_path / "run"
    given = {"train_file": file, "validation_file": file, "test_file": file, "task_kind": kind, "max_seq_length": 32}
    given |= {"max_steps": 1, "output_dir": run}
    given |= {"doc_stride": 4, "max_query_length": 8} if kind == "question_answering" else {}
    assert run_finetune(model_name_or_path=encoder, **given) == 0
    seed = run / "t/seed_42"
    report = json.loads((seed / "report_dev.json").read_text())
    assert EvaluationRecord.load(seed).reports["dev"].get("mae") == report.get("mae")
    main = {"multiple_choice": "accuracy", "multi_label": "micro_f1", "regression": "pearson"}
    assert report["metric"] == main.get(kind, "f1")
    lines = [json.loads(line) for line in (seed / "predictions_test.jsonl").read_text().splitlines()]
    assert len(lines) == 18
    if kind == "multi_label":
        assert list(report["classes"]) == ["dry", "old", "wet"]
        assert "confusion" not in report
        for line in lines:
            assert line["prediction"] == [name for name, share in line["probabilities"].items() if share > 0.5]
        model = AutoModelForSequenceClassification.from_pretrained(seed / "model")
        assert model.config.problem_type == "multi_label_classification"
        stock = pipeline("text-classification", model, tokenizer=encoder, top_k=None)(["the old river"])[0]
        shares = {found["label"]: found["score"] for found in stock}
        assert shares == pytest.approx(lines[0]["probabilities"], abs=1e-5)
    capsys.readouterr()
    assert predict_command.main(["--model_name_or_path", str(run), "--file", file, "--use_cpu"]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = [line[answer] for line in answers]
    if kind == "tagging":
        assert [len(line["probabilities"]) for line in answers] == [3, 1] * 9
        assert all(1 / 3 < share < 1 for line in answers for share in line["probabilities"])
    if kind == "multiple_choice":
        for line in answers:
            assert sum(line["probabilities"]) == pytest.approx(1)
            assert line["probabilities"][line["choice"]] == max(line["probabilities"])
    wanted = [line["prediction"] for line in lines]
    assert found == ([one["text"] for one in wanted] if kind == "question_answering" else wanted)
    if kind == "question_answering":  # files of SQuAD can be predicted, too
        file = write(tmp_path, "squad.json", [squad({"id": "a", "question": "where ?"})])
        assert predict_command.main(["--model_name_or_path", str(run), "--file", file, "--use_cpu"]) == 0
        assert {"id", "question", "answer", "nbest"} <= json.loads(capsys.readouterr().out).keys()


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"train_file": "data/film reviews.csv.gz", "test_file": "b.csv"}, "film-reviews"),
        ({"test_file": "KorQuAD_v1.0_dev.json"}, "KorQuAD_v1.0_dev"),
        ({"dataset": "org/reviews"}, "reviews"),
        ({"train_file": "टिप्पणियाँ.csv"}, "टिप्पणियाँ"),
        ({"train_file": "ความ คิดเห็น.csv"}, "ความ-คิดเห็น"),
    ],
)
def test_a_task_of_ones_own_is_called_as_its_file_or_dataset(given, name):
    assert _name_of_data(OwnTaskArguments(**given)) == name


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_tasks_of_the_examples_are_valid(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--config", str(path), "--model_name_or_path", "x", "--output_dir", "x"]
    chosen, own, _ = parse_arguments((TaskArguments, OwnTaskArguments, FineTuningArguments), words)
    task = own_task(chosen.task_name[0], own)  # no file has to be read
    assert (task.name, task.benchmark, task.dev_splits) == (path.stem, "own", ("dev",))
    assert task.language in ("ko", "zh")
    if path.stem == "nsmc":
        for split in ("train", "test"):
            rows = [f"{n}\tx{n}\t{n % 2}" for n in range(9)]
            write(tmp_path, f"ratings_{split}.txt", ["id\tdocument\tlabel", *rows])
        assert [len(split.examples) for split in load_task(task, None).values()] == [7, 2]


# ---- A run's splits ----


def test_a_run_has_its_splits_in_order_with_guests_and_without_what_is_optional(tmp_path, caplog):
    rows = [f"{MNLI}\tgold_label", "3\tg\tOne.\tTwo.\tneutral\tentailment"]
    for name in ("train", "dev_matched", "test_matched", "test_mismatched"):
        write(tmp_path, f"MNLI/{name}.tsv", rows)
    write(tmp_path, "diagnostic/diagnostic.tsv", ["index\tsentence1\tsentence2", "0\tA\tB"])
    mnli = get_task("glue", "mnli")
    assert list(load_task(mnli, str(tmp_path))) == ["train", "dev_matched"]
    assert "runs without its split dev_mismatched" in caplog.text
    names = ["train", "dev_matched", "test_matched", "test_mismatched", "ax"]
    assert list(load_task(mnli, str(tmp_path), test=True)) == names
    (tmp_path / "MNLI/test_matched.tsv").unlink()
    assert "test_matched" not in load_task(mnli, str(tmp_path), test=True, optional_test=True)
    with pytest.raises(ValueError, match="test_matched"):
        load_task(mnli, str(tmp_path), test=True)


def test_a_record_tells_the_source_and_how_many_examples_were_skipped_or_truncated(tokenizer):
    kind = make_kind(Task("t", "T", labels=("no", "yes")), tokenizer, max_seq_length=6)
    rows = [text(str(n), " ".join(["river"] * n), label="yes" if n % 2 else "no") for n in (3, 1, 9, 2)]
    split = Split(Dataset.from_list(rows), 2, {"files": {"dev.tsv": "1" * 64}})
    encode_task(kind, {"dev": split})
    described = {"files": {"dev.tsv": "1" * 64}, "examples": 4, "features": 4, "skipped": 2, "truncated": 1}
    assert split.describe() == described | {"unknown_share": 0}
    empty = {"train": Split(Dataset.from_list([text("0", "", label="yes")]), 0, {})}
    with pytest.raises(ValueError, match="no example of the training split can be learned"):
        encode_task(kind, empty)
