import hashlib
import json
from collections import Counter

import pytest

from hf_electra_rtd.finetuning.benchmarks import get_task
from hf_electra_rtd.finetuning.examples import (
    Answer,
    ChoiceExample,
    QuestionExample,
    TaggedExample,
    TextExample,
)
from hf_electra_rtd.finetuning.layouts import DatasetLayout, FileLayout, RowSkippedError
from hf_electra_rtd.finetuning.loading import is_labelled, load_split
from hf_electra_rtd.finetuning.tasks import Task


def pair(row, index):
    if row["label"] == "-":
        raise RowSkippedError("no gold label")
    return TextExample(str(index), (row["first"], row["second"]), row["label"] or None)


def make_task(kind="classification", to_example=pair, labels=("no", "yes"), format="tsv", files=None, **options):
    splits = {"train": ("T/train.tsv", "T/train.full.tsv"), "dev": ("T/dev.tsv",), "test": ("T/test.tsv",)}
    files = (
        {split: FileLayout(paths, format, to_example) for split, paths in splits.items()} if files is None else files
    )
    defaults = {"name": "pairs", "benchmark": "toys", "title": "Pairs", "language": "en"}
    return Task(**defaults, kind=kind, metrics=("m",), main_metric="m", labels=labels, files=files, **options)


def write(tmp_path, name, content):
    (tmp_path / "T").mkdir(exist_ok=True)
    (tmp_path / "T" / name).write_text(content, encoding="utf-8")
    return str(tmp_path)


def test_rows_become_examples_and_what_is_skipped_is_counted_by_reason(tmp_path):
    content = "first\tsecond\tlabel\na\tb\tyes\nc\td\t-\ne\tf\t\ng\th\t-\n"
    split = load_split(make_task(), "dev", write(tmp_path, "dev.tsv", content))
    assert split.examples == [TextExample("0", ("a", "b"), "yes"), TextExample("2", ("e", "f"), None)]
    assert split.skipped == Counter({"no gold label": 2})
    assert split.source == {"files": {"dev.tsv": hashlib.sha256(content.encode()).hexdigest()}, "rows": 4}
    assert json.loads(json.dumps(split.source)) == split.source


def test_rows_that_the_layout_lets_be_broken_are_counted_and_keep_their_number(tmp_path):
    files = {"train": FileLayout(("T/train.tsv",), "tsv", pair, skip_broken_rows=True)}
    content = "first\tsecond\tlabel\na\nb\tc\tno\n"
    split = load_split(make_task(files=files), "train", write(tmp_path, "train.tsv", content))
    assert split.examples == [TextExample("1", ("b", "c"), "no")]
    assert split.skipped == Counter({"too few or too many columns": 1})


def test_the_first_file_that_exists_is_read(tmp_path):
    row = "first\tsecond\tlabel\na\t{}\tno\n"
    data_dir = write(tmp_path, "train.full.tsv", row.format("full"))
    assert load_split(make_task(), "train", data_dir).examples[0].texts == ("a", "full")
    write(tmp_path, "train.tsv", row.format("short"))
    assert load_split(make_task(), "train", data_dir).examples[0].texts == ("a", "short")


def test_files_joined_with_a_plus_are_one_split(tmp_path):
    files = {"dev": FileLayout(("T/dev.tsv", "T/m.tsv+T/d.tsv"), "tsv", pair)}
    row = "first\tsecond\tlabel\na\t{}\tno\n"
    data_dir = write(tmp_path, "m.tsv", row.format("m"))
    with pytest.raises(ValueError, match=r"there is no T/dev\.tsv, no T/m\.tsv\+T/d\.tsv. .* holds: m\.tsv"):
        load_split(make_task(files=files), "dev", data_dir)
    write(tmp_path, "d.tsv", row.format("d"))
    split = load_split(make_task(files=files), "dev", data_dir)
    assert split.examples == [TextExample("0", ("a", "m"), "no"), TextExample("1", ("a", "d"), "no")]
    assert list(split.source["files"]) == ["m.tsv", "d.tsv"]
    write(tmp_path, "d.tsv", row.format("d").replace("no", "nay"))
    with pytest.raises(ValueError, match=r"T/d\.tsv, line 2: there is no label 'nay'"):
        load_split(make_task(files=files), "dev", data_dir)


def test_a_file_may_have_a_plus_in_its_name(tmp_path):
    files = {"dev": FileLayout(("T/c++.tsv",), "tsv", pair)}
    data_dir = write(tmp_path, "c++.tsv", "first\tsecond\tlabel\na\tb\tno\n")
    assert list(load_split(make_task(files=files), "dev", data_dir).source["files"]) == ["c++.tsv"]


def test_a_missing_file_is_told_with_what_was_looked_for_and_what_there_is(tmp_path):
    data_dir = write(tmp_path, "trian.tsv", "x")
    with pytest.raises(
        ValueError, match=r"no file for its split 'train' in .*: there is no T/train\.tsv, no T/train\.full\.tsv"
    ) as told:
        load_split(make_task(), "train", data_dir)
    assert "T holds: trian.tsv. Did you mean 'trian.tsv'?" in str(told.value)
    with pytest.raises(ValueError, match=r"There is no directory .*nowhere \(--data_dir\)"):
        load_split(make_task(), "train", str(tmp_path / "nowhere"))
    (tmp_path / "T" / "trian.tsv").rename(tmp_path / "moved.tsv")
    (tmp_path / "T").rmdir()
    with pytest.raises(ValueError, match=rf"{tmp_path.name} holds: moved\.tsv"):
        load_split(make_task(), "train", data_dir)
    with pytest.raises(ValueError, match=r"no file for a split 'dev2', only for: train, dev, test"):
        load_split(make_task(), "dev2", data_dir)


def test_without_a_directory_a_task_that_is_only_in_files_asks_for_it():
    with pytest.raises(ValueError, match=r"Pairs is not on the Hub: say where its files are \(--data_dir\)"):
        load_split(make_task(), "train", None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "first\tsecond\tlabel\na\tb\tno\nc\td\tYes\n",
            r"dev\.tsv, line 3: there is no label 'Yes'\. Labels of Pairs: no, yes\. Did you mean 'yes'\?",
        ),
        (
            "first\tsecnd\tlabel\na\tb\tno\n",
            r"dev\.tsv, line 2: there is no column 'second'\. Columns: first, secnd, label\. Did you mean 'secnd'",
        ),
        ("first\tsecond\tlabel\na\tb\t\n", r"dev\.tsv: no row is labelled"),
        ("first\tsecond\tlabel\na\tb\t-\n", r"dev\.tsv: none of the 1 rows can be used: no gold label \(1\)"),
        ("first\tsecond\tlabel\n", r"dev\.tsv has no row"),
    ],
)
def test_a_split_that_cannot_be_used_is_refused_by_file_and_place(tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        load_split(make_task(), "dev", write(tmp_path, "dev.tsv", content))


@pytest.mark.parametrize(
    "error", [KeyError("choice"), IndexError("no third"), TypeError("an int"), AttributeError("get")]
)
def test_a_row_of_another_shape_than_the_layout_says_is_refused_by_file_and_place(tmp_path, error):
    def convert(row, index):
        if row["label"] == "no":
            raise error
        return pair(row, index)

    content = "first\tsecond\tlabel\na\tb\tyes\nc\td\tno\n"
    data_dir = write(tmp_path, "dev.tsv", content)
    told = rf"T/dev\.tsv, line 3: the row is not of the layout \({type(error).__name__}: .*{error.args[0]}"
    with pytest.raises(ValueError, match=told) as caught:
        load_split(make_task(to_example=convert), "dev", data_dir)
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(
    ("task", "name", "row"),
    [
        ("cluewsc2020", "dev.json", {"text": "他", "target": "他", "label": "true"}),
        ("cluewsc2020", "dev.json", {"text": "他", "target": {"span1_text": "他"}, "label": "true"}),
        ("cluener2020", "dev.json", {"text": "他", "label": {"name": {"他": [[0]]}}}),
        ("cluener2020", "dev.json", {"text": "他", "label": ["name"]}),
    ],
)
def test_rows_of_the_benchmarks_may_be_of_any_shape(tmp_path, task, name, row):
    (tmp_path / task).mkdir()
    (tmp_path / task / name).write_text(json.dumps(row))
    with pytest.raises(ValueError, match=rf"{name}, line 1: "):
        load_split(get_task("clue", task), "dev", str(tmp_path))


def test_only_a_test_split_may_be_unlabelled(tmp_path):
    content = "first\tsecond\tlabel\na\tb\t\n"
    assert load_split(make_task(), "test", write(tmp_path, "test.tsv", content)).examples[0].label is None
    with pytest.raises(ValueError, match="no row is labelled, so Pairs cannot use it as its split 'train'"):
        load_split(make_task(), "train", write(tmp_path, "train.tsv", content))


@pytest.mark.parametrize(
    ("kind", "labels", "example", "message"),
    [
        ("tagging", ("O", "B-X"), TaggedExample("0", ("a", "b"), ("O", "B-Y")), "no label 'B-Y'"),
        ("tagging", ("O", "B-X"), TaggedExample("0", ("a", "b"), ("O",)), "2 words, but 1 tags"),
        ("multiple_choice", (), ChoiceExample("0", "c", "q", ("a", "b"), 2), "2 is not the index of one of 2 choices"),
        ("regression", (), TextExample("0", ("a",), float("nan")), "nan is not a finite number"),
        ("regression", (), TextExample("0", ("a",), "3"), "'3' is not a finite number"),
    ],
)
def test_a_label_that_the_task_cannot_take_is_refused(tmp_path, kind, labels, example, message):
    task = make_task(kind, lambda row, index: example, labels)
    with pytest.raises(ValueError, match=rf"dev\.tsv, line 2: .*{message}"):
        load_split(task, "dev", write(tmp_path, "dev.tsv", "first\tsecond\tlabel\na\tb\tno\n"))


def test_what_an_example_is_judged_by_is_its_label():
    assert is_labelled(ChoiceExample("0", "c", "q", ("a", "b"), 0))
    assert not is_labelled(ChoiceExample("0", "c", "q", ("a", "b"), None))
    assert is_labelled(TextExample("0", ("a",), 0.0))
    assert is_labelled(QuestionExample("0", "q", "c", ()))  # known to have no answer
    assert is_labelled(QuestionExample("0", "q", "c", (Answer("c", 0),)))
    assert not is_labelled(QuestionExample("0", "q", "c", None))
    assert not is_labelled(TaggedExample("0", ("a",), None))


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A local directory that `datasets` loads as it does a dataset of the Hub."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    datasets.disable_progress_bars()
    features = datasets.Features(
        {
            "text": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["no", "yes"]),
            "tags": datasets.List(datasets.ClassLabel(names=["O", "B-X"])),
        }
    )
    rows = {"text": ["a", "b", "c"], "label": [1, 0, -1], "tags": [[0, 1], [], [1]]}
    (tmp_path / "letters").mkdir()
    datasets.Dataset.from_dict(rows, features=features).to_parquet(str(tmp_path / "letters/validation.parquet"))
    return str(tmp_path / "letters")


def from_hub(path, split="validation", to_example=None, expand=None, **options):
    to_example = to_example or (lambda row, index: TextExample(str(index), (row["text"],), row["label"]))
    return make_task(dataset=DatasetLayout(path, None, {"dev": split}, to_example, expand=expand), **options)


def test_class_labels_of_the_hub_become_their_names(hub):
    split = load_split(from_hub(hub), "dev", None)
    assert [example.label for example in split.examples] == ["yes", "no", None]
    assert split.source.pop("fingerprint")
    assert split.source == {"dataset": "letters", "config": None, "split": "validation", "revision": None, "rows": 3}

    def tagged(row, index):
        return TaggedExample(str(index), tuple(row["tags"]), tuple(row["tags"]))

    tags = load_split(from_hub(hub, to_example=tagged, kind="tagging", labels=("O", "B-X")), "dev", None).examples
    assert [example.tags for example in tags] == [("O", "B-X"), (), ("B-X",)]


@pytest.mark.parametrize(
    ("error", "told"),
    [(ValueError("three is a crowd"), "three is a crowd"), (KeyError("third"), "the row is not of the layout")],
)
def test_a_row_of_the_hub_may_hold_several(hub, error, told):
    def expand(row):
        if row["text"] == "c":
            raise error
        yield from [row] * 2

    with pytest.raises(ValueError, match=rf"letters, split 'validation', row 3: {told}"):
        load_split(from_hub(hub, expand=expand), "dev", None)
    split = load_split(from_hub(hub, "validation[:2]", expand=expand), "dev", None)
    assert [(example.id, *example.texts) for example in split.examples] == [
        ("0", "a"),
        ("1", "a"),
        ("2", "b"),
        ("3", "b"),
    ]


def test_a_bad_row_of_the_hub_is_named(hub):
    with pytest.raises(ValueError, match=r"letters, split 'validation', row 1: there is no label 'yes'"):
        load_split(from_hub(hub, labels=("no", "maybe")), "dev", None)
    with pytest.raises(ValueError, match=r"row 1: there is no column 'body'\. Columns: text, label, tags"):
        load_split(from_hub(hub, to_example=lambda row, index: row["body"]), "dev", None)


def test_what_cannot_be_had_from_the_hub_is_told_with_the_remedy(hub):
    with pytest.raises(ValueError, match=r"letters, split 'dev2', cannot be loaded: .*--data_dir"):
        load_split(from_hub(hub, split="dev2"), "dev", None)
    with pytest.raises(
        ValueError, match=r"The dataset nobody/nothing, split .*cannot be loaded.*connection.*--data_dir"
    ):
        load_split(from_hub("nobody/nothing"), "dev", None)
    with pytest.raises(ValueError, match=r"name files instead"):
        load_split(from_hub("nobody/nothing", files={}), "dev", None)
    with pytest.raises(ValueError, match=r"no split 'train' on the Hub, only: dev"):
        load_split(from_hub(hub), "train", None)
