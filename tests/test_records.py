"""Records: complete, read back unchanged, and free of what must not be published."""

from dataclasses import replace
from types import SimpleNamespace

import accelerate
import pytest
import torch

from hf_electra_rtd.base.records import (
    EvaluationRecord,
    FractionRecord,
    PretrainingRecord,
    collect_hardware,
    describe_hardware,
    hub_id,
    public,
    public_command,
)
from tests.publishing.card_records import evaluation_record, run_record


@pytest.mark.parametrize(
    "make",
    [
        lambda: run_record("rtd", "tiny"),
        lambda: FractionRecord(0.5, 10, 160, 1.25),
        lambda: evaluation_record("mrpc", 42, 0.7),
    ],
)
def test_a_record_survives_its_file_and_directory(make, tmp_path):
    record = make()
    path = record.save(tmp_path)
    assert path == tmp_path / type(record).FILE
    assert type(record).load(path) == type(record).load(tmp_path) == record
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_records_are_found_through_links(tmp_path):
    for place in ("run/mrpc/seed_42", "elsewhere/seed_42"):
        evaluation_record("mrpc", 42, 0.7).save(tmp_path / place)
    (tmp_path / "run/rte").symlink_to(tmp_path / "elsewhere")
    found = EvaluationRecord.find(tmp_path / "run", 2)
    assert [path.relative_to(tmp_path / "run").parts[0] for path in found] == ["mrpc", "rte"]
    assert EvaluationRecord.find(tmp_path / "run", 1) == []


def test_records_of_numbered_places_are_in_the_order_of_their_numbers(tmp_path):
    for place in ("100", "12.5", "1.0.1", "25", "6.25", "run"):
        evaluation_record("mrpc", 42, 0.7).save(tmp_path / place)
    assert [path.parent.name for path in EvaluationRecord.find(tmp_path)] == [
        "1.0.1",
        "run",
        "6.25",
        "12.5",
        "25",
        "100",
    ]


def test_numbers_that_are_not_finite_become_null(tmp_path):
    record = replace(run_record("rtd", "tiny"), metrics={"eval_discriminator_auc": float("nan")})
    record.save(tmp_path)
    assert PretrainingRecord.load(tmp_path).metrics == {"eval_discriminator_auc": None}


@pytest.mark.parametrize("text", ["", "[1]", "{", "3", '{"step": 1e999}', '{"step": NaN}'])
def test_a_file_that_is_no_record_is_refused_by_name(text, tmp_path):
    (tmp_path / "fraction.json").write_text(text)
    with pytest.raises(ValueError, match=r"fraction\.json cannot be read: .* must be a FractionRecord"):
        FractionRecord.load(tmp_path)


@pytest.mark.parametrize(
    ("flag", "value", "published"),
    [
        ("train_files", "home/alice/*.jsonl,weight=2", "*.jsonl,weight=2"),
        ("train_files", r"\\server\share\corpus.txt", "corpus.txt"),
        ("train_files", r"C:\Users\alice\corpus.txt", "corpus.txt"),
        ("train_files", "/data/acme,inc/corpus.txt,weight=2", "corpus.txt,weight=2"),
        ("data_dir", "/", "."),
        ("pairs", "clients/acme/pairs.tsv", "pairs.tsv"),
        ("counted_on", "clients/acme/train.blocks", "train.blocks"),
        ("data_dir", "../..", "."),
        ("_name_or_path", "../../home/alice/model", "model"),
        ("run_name", r"..\alice\first", "first"),
        ("tokenizer", "google/electra-small-generator", "google/electra-small-generator"),
        ("tokenizer", "~/vocab.txt", "vocab.txt"),
        ("resume_from_checkpoint", "latest", "latest"),
        ("dataset", "https://alice:secret@example.org/data", "https://example.org/data"),
        ("dataset", "https://example.org/data?a=b&token=abc", "https://example.org/data?a=b&token=<secret>"),
        ("run_name", "API_KEY=abc", "API_KEY=<secret>"),
        ("run_name", "PGPASSWORD=abc", "PGPASSWORD=<secret>"),
        ("run_name", "OPENAIKEY=abc", "OPENAIKEY=<secret>"),
        ("run_name", "openai_key=abc", "openai_key=<secret>"),
        ("run_name", "monkey=animal", "monkey=animal"),
        ("run_name", "hf_" + "a" * 34, "<token>"),
        ("note", "a\n  /home/alice/notes.txt", "a\nnotes.txt"),
        ("note", r"\\server\share\alice", "alice"),
        ("labels", "/home/artist", "/home/artist"),
        ("objective", "rtd", "rtd"),
    ],
)
def test_a_published_value_has_no_directory_password_or_token(flag, value, published):
    assert public({flag: [value, {"deep": 1}]}) == {flag: [published, {"deep": 1}]}


def test_an_id_of_the_hub_is_no_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "imdb").mkdir()
    names = ["nyu-mll/glue", "glue", "imdb", "../../home/alice/private", "~/private", str(tmp_path), None]
    assert [hub_id(name) for name in names] == ["nyu-mll/glue", "glue", *[None] * 5]


def test_a_published_command_has_names_in_place_of_paths(tmp_path):
    argv = [str(tmp_path / "pretrain.py"), "--train_files", str(tmp_path / "a b.txt"), "c/d.txt", "--output_dir=x/run"]
    command = public_command(
        [*argv, "--tokenizer", "org/name", "--model", "./acme/run", "--run_name", str(tmp_path)]
    )  # the run name is a path, since it exists
    assert (
        public_command(["a", "--train-files", "c/d.txt", "--output-dir=x/run"])
        == "a --train_files d.txt --output_dir=run"
    )
    options = f"--output_dir=run --tokenizer org/name --model run --run_name {tmp_path.name}"
    assert command == f"python pretrain.py --train_files 'a b.txt' d.txt {options}"
    assert public_command([""]) == ""  # Python was started without a script


@pytest.mark.parametrize(("device", "processes", "count"), [("cuda:1", 16, 16), ("cuda:0", 1, 1), ("cpu", 2, 0)])
def test_the_gpus_of_a_run_are_those_of_its_processes(device, processes, count, monkeypatch):
    state = SimpleNamespace(device=torch.device(device), num_processes=processes)
    monkeypatch.setattr(accelerate, "PartialState", lambda: state)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    hardware = collect_hardware()
    assert hardware["accelerators"] == ["a GPU"] * count
    assert describe_hardware(hardware).startswith(f"{count} x a GPU") == bool(count)
