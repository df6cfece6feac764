"""The `publish` command: from finished runs to repositories, and from a card back to its run."""

import dataclasses
import json
import os
import re
import shlex
import shutil

import pytest
from huggingface_hub import ModelCard

from hf_electra_rtd.base.records import EvaluationRecord, PretrainingRecord
from hf_electra_rtd.inference import likelihood
from hf_electra_rtd.publishing import publish
from hf_electra_rtd.publishing.card import CardArguments, pretraining_card
from hf_electra_rtd.training import pretrain
from tests.finetuning.conftest import review_flags, run_finetune
from tests.publishing.hub_server import COMMIT, DISCRIMINATOR, GENERATOR, PREFIX, TOKEN


MODEL = {"README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt"}
PLANTED = "hf_" + "x" * 34


@pytest.fixture(scope="module")
def finished(finished_run, tmp_path_factory):
    """A directory with `run`, a pre-training; `tuned`, its discriminator fine-tuned with two seeds; `halfway`, the
    discriminator at half of the run fine-tuned, with no model kept; and `adapted`, adapters for the discriminator."""
    directory = tmp_path_factory.mktemp("runs")
    shutil.copytree(finished_run, directory / "run")
    flags = {**review_flags(directory), "benchmark": "own", "language": "en", "max_steps": 2}
    for name, part, more in (
        ("tuned", "discriminator", {"seeds": 2}),
        ("halfway", "fractions/50/discriminator", {"keep_models": "none"}),
        ("adapted", "discriminator", {"lora": True}),
    ):
        where = {"model_name_or_path": directory / "run" / part, "output_dir": directory / name}
        assert run_finetune(**flags, **where, **more) == 0
    return directory


@pytest.fixture
def runs(finished, tmp_path):
    """A copy of the finished runs, to write into."""
    return shutil.copytree(finished, tmp_path / "runs")


def send(run, *flags, prefix=PREFIX):
    return publish.main(["--run", str(run), "--hub_model_id", prefix, "--license", "mit", *flags])


def card(hub, repo_id, branch="main"):
    return ModelCard(hub.files(repo_id, branch)["README.md"].decode())


# ---- Published files ----


def test_a_push_sends_what_a_dry_run_lists_and_is_completed_by_the_same_command(runs, hub, capsys):
    assert send(runs / "run", "--dry_run") == 0
    assert hub.requests == []
    listed = capsys.readouterr().out
    hub.failures[f"POST /api/models/{GENERATOR}/commit"] = (503, "Out of order")
    assert send(runs / "run") == 1
    command = shlex.join(["--run", str(runs / "run"), "--hub_model_id", PREFIX, "--license", "mit"])
    assert f"hf-electra-rtd publish {command}" in capsys.readouterr().err
    hub.failures.clear()
    assert send(runs / "run") == 0
    there = hub.everything()
    branches = ("main", "step-2", "step-4")
    assert set(there) == {(name, branch) for name in (DISCRIMINATOR, GENERATOR) for branch in branches}
    sizes = {
        (f"{repo_id}, branch {branch}:", path, f"{len(content):,}")
        for (repo_id, branch), files in there.items()
        for path, content in files.items()
    }
    title = ""
    shown = set()
    for line in listed.splitlines()[:-1]:
        if line.startswith(" "):
            shown.add((title, *line.split()[:2]))
        else:
            title = line
    assert shown == sizes
    for (repo_id, branch), files in there.items():
        more = {"run_record.json", "training_curves.png"} if branch == "main" else {"training_curves.png"}
        assert set(files) == MODEL | more
        part = ("fractions/50/" if branch == "step-2" else "") + repo_id.rpartition("-")[2]
        assert files["model.safetensors"] == (runs / "run" / part / "model.safetensors").read_bytes()
        preview = runs / "run/publish_preview" / repo_id.replace("/", "--") / branch / "README.md"
        assert files["README.md"] == preview.read_bytes()
        assert card(hub, repo_id, branch).data.license == "mit"
    assert all(repository.private for repository in hub.repositories.values())
    commits = hub.asked(COMMIT)
    assert send(runs / "run") == 0
    assert hub.asked(COMMIT) == commits  # nothing has changed
    text = card(hub, DISCRIMINATOR).text
    assert f'from_pretrained("{DISCRIMINATOR}", revision="step-2")' in text
    assert f"{GENERATOR})" in text


def test_each_task_of_a_fine_tuning_with_a_kept_model_becomes_a_repository(runs, hub, caplog):
    shutil.copytree(next((runs / "halfway").glob("reviews")), runs / "tuned/films")
    assert send(runs / "tuned", "--base_model", DISCRIMINATOR) == 0
    ((key, files),) = hub.everything().items()
    assert key == (f"{PREFIX}-reviews", "main")
    (kept,) = (runs / "tuned").glob("reviews/*/model")
    assert files["model.safetensors"] == (kept / "model.safetensors").read_bytes()
    assert files["evaluation_record.json"] == (kept.parent / "evaluation_record.json").read_bytes()
    data = card(hub, f"{PREFIX}-reviews").data
    assert (data.base_model, data.language) == (DISCRIMINATOR, ["en"])
    assert "films" in caplog.text  # a warning: no model of it was kept


def test_evaluations_are_of_this_model(runs, hub, caplog):
    tuned = str(runs / "tuned")
    halfway = str(runs / "halfway")
    with pytest.raises(ValueError, match="reviews"):
        send(runs / "run", "--evaluations", tuned, halfway)
    (runs / "pairs.tsv").write_text("she came .\tcame she .\n")
    judged = ["--model", str(runs / "run/generator"), "--pairs", str(runs / "pairs.tsv")]
    likelihood.main([*judged, "--output_dir", str(runs / "judged")])
    with pytest.raises(ValueError, match="pairs"):
        send(runs / "run", "--evaluations", str(runs / "judged"))
    with pytest.raises(ValueError, match="judged holds no fine-tuned model"):
        send(runs / "judged")
    assert send(runs / "run", "--parts", "generator", "--evaluations", tuned, "--dry_run") == 0
    assert "evaluations" in caplog.text
    assert hub.requests == []
    assert send(runs / "run", "--evaluations", tuned, "--compared", halfway) == 0
    with_results = [
        key for key, files in hub.everything().items() if b"| model | runs | reviews |" in files["README.md"]
    ]
    assert with_results == [(DISCRIMINATOR, "main")]
    record = EvaluationRecord.load(runs / "halfway/reviews/seed_42")
    model = {**record.model, "sha256": None, "name_or_path": DISCRIMINATOR}  # as if evaluated from the Hub
    dataclasses.replace(record, model=model).save(runs / "halfway/reviews/seed_42")
    assert send(runs / "run", "--evaluations", halfway) == 0


def test_the_command_of_a_card_repeats_the_run(finished_run, corpus, tmp_path, monkeypatch):
    record, card_args = PretrainingRecord.load(finished_run), CardArguments()
    text = pretraining_card(record, "generator", GENERATOR, card_args)
    command = re.search(r"pip install -e .\n(.*?)```", text, re.DOTALL)[1]
    for path in (corpus, finished_run.parent / "vocab.txt", finished_run.parent / "config"):
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command.replace("\\\n", " "))
    assert words[:2] == ["hf-electra-rtd", "pretrain"]
    assert pretrain.main([*words[2:], "--use_cpu", "True", "--disable_tqdm", "True", "--output_dir", "again"]) == 0
    for path in ("model.safetensors", "fractions/50/generator/model.safetensors"):
        assert (tmp_path / "again" / path).read_bytes() == (finished_run / path).read_bytes()


# ---- Private data ----


def test_nothing_private_leaves(runs, hub):
    for directory in (runs / "run", runs / "run/discriminator", runs / "run/fractions/50/discriminator"):
        for name in ("training_args.bin", "optimizer.pt", "events.out.tfevents.1", "train.log"):
            (directory / name).write_text(f"{directory} {PLANTED}")
    assert send(runs / "run", "--parts", "discriminator", "generator", "pair") == 0
    assert send(runs / "adapted", "--base_model", DISCRIMINATOR) == 0
    adapter = hub.files(f"{PREFIX}-reviews")
    assert json.loads(adapter["adapter_config.json"])["base_model_name_or_path"] == DISCRIMINATOR
    allowed = MODEL | {"run_record.json", "training_curves.png", "evaluation_record.json"}
    for files in hub.everything().values():
        assert set(files) <= allowed | {"adapter_config.json", "adapter_model.safetensors"}
        for content in files.values():
            assert not any(private.encode() in content for private in (str(runs), PLANTED, TOKEN))


GENERATION = "run/generator/generation_config.json"


def note(text):
    return json.dumps({"note": text}).encode()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("run/generator/tokenizer.json", note(PLANTED)),
        (GENERATION, note("/usr")),
        (GENERATION, b'{"_name_or_path": "/home/ada/old"}'),
        (GENERATION, note("a\n  /home/ada/notes.txt")),
        (GENERATION, b'{"https://ada:abc@example.org/a": 1}'),
        ("run/generator/tokenizer_config.json", b'{"tokenizer_file": "/Users/ada/t.json"}'),
        ("run/generator/config.json", br'{"a": "https:\/\/ada:abc@b.c"}'),
    ],
)  # fmt: skip
def test_a_file_that_must_not_or_cannot_be_published_stops_everything(name, content, runs, hub):
    (runs / name).write_bytes(content)
    for flags in ([], ["--dry_run"]):
        with pytest.raises(ValueError, match=re.escape(name.rpartition("/")[2])) as raised:
            send(runs / name.partition("/")[0], *flags)
        assert PLANTED not in str(raised.value)
    assert hub.requests == []


def test_labels_tokens_and_pieces_of_a_vocabulary_are_no_paths(runs, hub):
    directory = runs / "run/generator"
    for name, values in (
        ("tokenizer_config.json", {"extra_special_tokens": ["./", "/home/x"], "pattern": r"[\u4e00-\u9fff]\d+"}),
        ("config.json", {"id2label": {"0": "/person/artist", "1": "/home/garden", "2": "/usr"}}),
    ):
        (directory / name).write_text(json.dumps({**json.loads((directory / name).read_text()), **values}))
    (directory / "vocab.txt").write_text((directory / "vocab.txt").read_text() + "/home/x/y\n")
    assert send(runs / "run", "--parts", "generator") == 0
    assert b"/home/x/y" in hub.files(GENERATOR)["vocab.txt"]


# ---- Mistakes ----


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (["--run", "{run}", "--hub_model_id", "tiny"], "hub_model_id is tiny"),
        (["--run", "{run}", "--hub_model_id", PREFIX, "--parts", "trunk"], "trunk"),
        (["--run", "{run}/blocks", "--hub_model_id", PREFIX], r"run_record\.json"),
        (["--run", "{run}/../halfway", "--hub_model_id", PREFIX], "--keep_models"),
        (["--run", "{run}/..", "--hub_model_id", PREFIX], r"Name one of \S+/adapted, \S+/halfway, \S+/tuned\."),
        (["--run", "{run}/lost", "--hub_model_id", PREFIX], r"generator holds no model\.safetensors"),
        (["--run", "{run}/cut", "--hub_model_id", PREFIX], r"generator/model\.safetensors"),
        (["--run", "{run}/discriminator", "--hub_model_id", PREFIX], "ElectraForPreTraining"),
    ],
)
def test_mistakes_are_named_before_anything_is_asked(flags, name, runs, hub):
    shutil.copytree(runs / "run", runs / "run/lost", ignore=shutil.ignore_patterns("lost", "fra*", "check*"))
    shutil.copytree(runs / "run/lost", runs / "run/cut")
    os.truncate(runs / "run/cut/generator/model.safetensors", 90)
    (runs / "run/lost/generator/model.safetensors").rename(runs / "run/lost/generator/pytorch_model.bin")
    with pytest.raises(ValueError, match=name):
        publish.main([flag.replace("{run}", str(runs / "run")) for flag in flags])
    assert hub.requests == []
