import csv
import json

import pytest

from hf_electra_rtd.finetuning.examples import TaggedExample, TextExample
from hf_electra_rtd.finetuning.loading import load_split
from hf_electra_rtd.finetuning.own import OwnTask, make_own_task


def write_csv(path, header, rows, delimiter=","):
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter).writerows([header, *rows])
    return str(path)


def write_json(path, rows):
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture
def train(tmp_path):
    return write_csv(tmp_path / "train.csv", ["text", "label"], [["it rains", "bad"], ["sun, sun", "good"], ["", ""]])


def test_a_classification_of_files_needs_nothing_but_their_names(tmp_path, train):
    dev = write_csv(tmp_path / "dev.tsv", ["label", "text"], [["good", 'a "fine" day']], "\t")
    task = make_own_task(OwnTask("weather", "classification", train_file=train, dev_file=dev))
    assert (task.benchmark, task.labels) == ("own", ("bad", "good"))
    assert (task.metrics, task.main_metric) == (("accuracy", "macro_f1"), "accuracy")
    assert (task.train_split, task.dev_splits, task.test_splits) == ("train", ("dev",), ())
    assert load_split(task, "train", None).examples == [
        TextExample("0", ("it rains",), "bad"),
        TextExample("1", ("sun, sun",), "good"),
        TextExample("2", ("",), None),
    ]
    assert str(tmp_path) not in str(load_split(task, "train", None).source)


def test_relative_names_are_of_the_directory_at_the_time(tmp_path, train, monkeypatch):
    monkeypatch.chdir(tmp_path)
    task = make_own_task(OwnTask("weather", "classification", train_file="train.csv"))
    monkeypatch.chdir("/")
    assert len(load_split(task, "train", None).examples) == 3


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([10, 9, 100], ("9", "10", "100")),
        ([True, False, True], ("false", "true")),
        ([" b", "a ", "b"], ("a", "b")),
        (["10", "9", "x"], ("10", "9", "x")),
    ],
)
def test_labels_are_those_of_the_training_rows_in_order(tmp_path, values, labels):
    train = write_json(tmp_path / "t.jsonl", [{"text": "x", "label": value} for value in values])
    task = make_own_task(OwnTask("t", "classification", train_file=train))
    assert task.labels == labels
    assert {example.label for example in load_split(task, "train", None).examples} == set(labels)


def test_pairs_ids_and_columns_go_by_the_names_given(tmp_path):
    rows = [{"key": 7, "q1": "a", "q2": "b", "same": "1"}, {"key": "x", "q1": "c", "q2": None, "same": "0"}]
    train = write_json(tmp_path / "t.jsonl", rows)
    own = OwnTask("t", "classification", "q1", "same", "q2", "key", train_file=train, labels=("1", "0"))
    task = make_own_task(own)
    assert task.labels == ("1", "0")
    assert load_split(task, "train", None).examples == [
        TextExample("7", ("a", "b"), "1"),
        TextExample("x", ("c", ""), "0"),
    ]


def test_a_regression_has_numbers(tmp_path):
    train = write_csv(tmp_path / "t.csv", ["text", "label"], [["a", "2.50"], ["b", "-1"], ["c", " "]])
    task = make_own_task(OwnTask("t", "regression", train_file=train))
    assert (task.labels, task.metrics) == ((), ("pearson", "spearman"))
    assert [example.label for example in load_split(task, "train", None).examples] == [2.5, -1.0, None]
    write_csv(tmp_path / "t.csv", ["text", "label"], [["a", "2.50"], ["b", "much"]])
    with pytest.raises(ValueError, match=r"t\.csv, line 3: column 'label': 'much' is not a finite number"):
        load_split(task, "train", None)


def test_tagging_takes_lists_or_words_with_spaces_or_conll(tmp_path):
    expected = [TaggedExample("0", ("It", "rains"), ("O", "B-VP"))]
    lists = write_json(tmp_path / "t.jsonl", [{"w": ["It", "rains"], "t": ["O", "B-VP"]}])
    spaced = write_csv(tmp_path / "t.csv", ["w", "t"], [["It rains", "O B-VP"]])
    (tmp_path / "t.conll").write_text("It PRP O\nrains VBZ B-VP\n")
    for file in (lists, spaced, str(tmp_path / "t.conll")):
        task = make_own_task(OwnTask("t", "tagging", "w", "t", train_file=file))
        assert (task.labels, task.metrics) == (("B-VP", "I-VP", "O"), ("f1",))
        assert load_split(task, "train", None).examples == expected
    write_json(tmp_path / "t.jsonl", [{"w": ["It", "rains"], "t": ["O"]}])
    with pytest.raises(ValueError, match=r"t\.jsonl, line 1: there are 2 words, but 1 tags"):
        load_split(
            make_own_task(OwnTask("t", "tagging", "w", "t", train_file=lists, labels=("O", "B-X"))), "train", None
        )
    write_json(tmp_path / "t.jsonl", [{"w": ["It", "rains"], "t": [0, 1]}])
    with pytest.raises(ValueError, match="t: 'S-VP' is not a BIO tag"):
        make_own_task(
            OwnTask("t", "tagging", "w", "t", train_file=write_json(tmp_path / "s.jsonl", [{"w": "a", "t": "S-VP"}]))
        )
    with pytest.raises(ValueError, match=r"t\.jsonl, line 1: column 't': \[0, 1\] is neither a list of words nor"):
        make_own_task(OwnTask("t", "tagging", "w", "t", train_file=lists))


def test_a_label_of_dev_that_training_has_not_is_told_with_its_place(tmp_path, train):
    dev = write_csv(tmp_path / "dev.csv", ["text", "label"], [["a", "good"], ["b", "worse"]])
    task = make_own_task(OwnTask("weather", "classification", train_file=train, dev_file=dev))
    with pytest.raises(
        ValueError, match=r"dev\.csv, line 3: there is no label 'worse'.* bad, good\..*unless they are named"
    ):
        load_split(task, "dev", None)
    named = make_own_task(
        OwnTask("weather", "classification", train_file=train, dev_file=dev, labels=("good", "bad", "worse"))
    )
    assert load_split(named, "dev", None).examples[1].label == "worse"


@pytest.mark.parametrize(("column", "told"), [("text_column", "'Text'"), ("label_column", "'Label'")])
def test_a_wrong_column_is_told_with_those_that_are_there(train, column, told):
    with pytest.raises(
        ValueError, match=rf"train\.csv, line 2: there is no column {told}\. Columns: text, label\. Did you"
    ):
        make_own_task(OwnTask("t", "classification", train_file=train, **{column: told.strip("'")}))


def test_a_test_file_alone_may_be_labelled_or_not(tmp_path):
    test = write_csv(tmp_path / "test.csv", ["text", "label"], [["a", "good"], ["b", ""]])
    own = OwnTask("weather", "classification", test_file=test, labels=("bad", "good"))
    task = make_own_task(own)
    assert (task.train_split, task.dev_splits, task.test_splits) == (None, (), ("test",))
    assert [example.label for example in load_split(task, "test", None).examples] == ["good", None]
    write_csv(tmp_path / "test.csv", ["text"], [["a"], ["b"]])
    assert [example.label for example in load_split(task, "test", None).examples] == [None, None]
    with pytest.raises(ValueError, match="nothing to train on, so the labels must be named"):
        make_own_task(OwnTask("weather", "classification", test_file=test))


def test_a_share_is_held_out_by_text_always_the_same(tmp_path):
    texts = [f"text {index % 500}" for index in range(2000)]
    rows = [[text, str(index % 2)] for index, text in enumerate(texts)]
    train = write_csv(tmp_path / "t.csv", ["text", "label"], rows)
    task = make_own_task(OwnTask("t", "classification", train_file=train, dev_share=0.2))
    assert task.dev_splits == ("dev",)
    learnt, held_out = load_split(task, "train", None), load_split(task, "dev", None)
    ids = [{int(example.id) for example in split.examples} for split in (learnt, held_out)]
    assert ids[0] | ids[1] == set(range(2000))
    assert not ids[0] & ids[1]
    assert 0.14 < len(ids[1]) / 2000 < 0.26  # 500 draws: three deviations of 1.8 %
    assert not {example.texts for example in learnt.examples} & {example.texts for example in held_out.examples}
    assert learnt.skipped == {"held out for dev": len(ids[1])}
    write_csv(tmp_path / "t.csv", ["text", "label"], rows[::-1])
    again = load_split(task, "dev", None).examples
    assert {example.texts for example in again} == {example.texts for example in held_out.examples}


@pytest.mark.parametrize("kind", ["classification", "tagging"])
def test_a_rare_class_whose_rows_are_all_held_out_is_one_of_the_labels(tmp_path, kind):
    common = [{"text": f"text {index}", "label": f"B-{'AB'[index % 2]}"} for index in range(100)]
    rows = common if kind == "classification" else [{**row, "label": f"{row['label']} O"} for row in common]
    train = write_json(tmp_path / "t.jsonl", rows)
    held_out = load_split(make_own_task(OwnTask("t", kind, train_file=train, dev_share=0.2)), "dev", None).examples[0]
    rows[int(held_out.id)]["label"] = rows[int(held_out.id)]["label"].replace("B-", "B-RARE-")
    task = make_own_task(OwnTask("t", kind, train_file=write_json(tmp_path / "t.jsonl", rows), dev_share=0.2))
    assert [label for label in task.labels if label.startswith("B-RARE-")]
    assert len(load_split(task, "train", None).examples) + len(load_split(task, "dev", None).examples) == 100


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "ranking"}, "kind of t is 'ranking'. Known are: classification, regression, tagging"),
        ({"train_file": None}, "name either files .* or a dataset"),
        ({"dataset": "some/thing"}, "name either files .* or a dataset"),
        ({"kind": "tagging", "second_text_column": "b"}, "tagging takes no second text"),
        ({"kind": "regression", "labels": ("a", "b")}, "regression has no labels"),
        ({"labels": ("a", "a")}, "must be two or more different ones"),
        ({"labels": ("a",)}, "must be two or more different ones"),
        ({"kind": "tagging", "labels": ("O", "NN")}, "'NN' is not a BIO tag"),
        (
            {"metrics": ("accuracy", "pearson")},
            "'pearson' is no metric of classification. Known are: accuracy, macro_f1",
        ),
        (
            {"kind": "regression", "metrics": ("accuracy",)},
            "'accuracy' is no metric of regression. Known are: pearson",
        ),
        ({"metrics": ("f1",), "labels": ("a", "b", "c")}, "f1 is of two labels, but there are 3: ask for macro_f1"),
        ({"dev_share": 1.0}, "dev_share is 1.0: it must be at least 0 and below 1"),
        ({"dev_share": 0.1, "dev_file": "b.csv"}, "dev_share needs a file to train on, and no dev file"),
        ({"train_file": None, "dataset": "some/thing", "dev_share": 0.1}, r"by its splits: train\[:90%\]"),
        ({"train_file": "t.parquet"}, r"t\.parquet: .*must end in \.tsv, \.csv, \.jsonl, \.json\."),
        ({"train_file": "t.conll"}, r"t\.conll: .*must end in \.tsv, \.csv, \.jsonl, \.json\."),
        ({"train_file": "/nowhere/t.csv"}, r"no file for its split 'train': there is no /nowhere/t\.csv"),
    ],
)
def test_options_that_make_no_task_are_refused(train, options, message):
    with pytest.raises(ValueError, match=message):
        make_own_task(OwnTask(**{"name": "t", "kind": "classification", "train_file": train, **options}))


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("one", "all rows to train on have the same label, 'one'"),
        (2.5, "column 'label': 2.5 is no label.*regression?"),
    ],
)
def test_labels_that_cannot_be_learnt_are_refused(tmp_path, label, message):
    train = write_json(tmp_path / "t.jsonl", [{"text": "x", "label": label}] * 3)
    with pytest.raises(ValueError, match=message):
        make_own_task(OwnTask("t", "classification", train_file=train))


def test_text_that_is_no_text_is_refused(tmp_path):
    train = write_json(tmp_path / "t.jsonl", [{"text": 3, "label": "a"}])
    with pytest.raises(ValueError, match=r"t\.jsonl, line 1: column 'text': 3 is not text"):
        make_own_task(OwnTask("t", "classification", train_file=train))


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    """A local directory that `datasets` loads as it does one of the Hub."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    datasets.disable_progress_bars()
    features = datasets.Features({"text": datasets.Value("string"), "mood": datasets.ClassLabel(names=["sad", "gay"])})
    (tmp_path / "moods").mkdir()
    for split, labels in {"train": [0, 1, 1, 0], "validation": [1, 0]}.items():
        rows = datasets.Dataset.from_dict({"text": list("abcd")[: len(labels)], "mood": labels}, features=features)
        rows.to_parquet(str(tmp_path / "moods" / f"{split}.parquet"))
    return str(tmp_path / "moods")


def test_a_dataset_has_the_splits_that_are_there(dataset):
    task = make_own_task(OwnTask("moods", "classification", label_column="mood", dataset=dataset))
    assert (task.train_split, task.dev_splits, task.test_splits) == ("train", ("dev",), ())
    assert task.labels == ("gay", "sad")
    assert [example.label for example in load_split(task, "dev", None).examples] == ["gay", "sad"]


def test_the_splits_of_a_dataset_can_be_named_and_sliced(dataset):
    splits = {"train": "train[:50%]", "dev": "train[50%:]", "test": "validation"}
    own = OwnTask("moods", "classification", label_column="mood", dataset=dataset, dataset_splits=splits)
    task = make_own_task(own)
    texts = {split: [example.texts[0] for example in load_split(task, split, None).examples] for split in splits}
    assert texts == {"train": ["a", "b"], "dev": ["c", "d"], "test": ["a", "b"]}
    with pytest.raises(ValueError, match="splits are named train, dev, test, not validation"):
        make_own_task(OwnTask("m", "regression", dataset=dataset, dataset_splits={"validation": "validation"}))


def test_a_dataset_that_cannot_be_had_is_told(dataset, tmp_path):
    with pytest.raises(
        ValueError, match=r"The dataset nobody/nothing, its splits, cannot be loaded: .*name files instead"
    ):
        make_own_task(OwnTask("t", "classification", dataset="nobody/nothing"))
    with pytest.raises(ValueError, match=r"row 1: there is no column 'label'\. Columns: text, mood"):
        make_own_task(OwnTask("t", "classification", dataset=dataset))
