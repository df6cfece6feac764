"""The script that publishes, as its user sees it."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil

import pytest
from huggingface_hub import ModelCard

from hf_electra_rtd.publishing.cards import Details
from hf_electra_rtd.publishing.hub import Publisher
from hf_electra_rtd.publishing.outbox import DIRECTORY, Outbox
from hf_electra_rtd.publishing.privacy import find_private
from hf_electra_rtd.publishing.runs import towers_at_fraction
from hf_electra_rtd.records import EVALUATION_FILE, EvaluationRecord, PretrainingRecord
from tests.publishing.conftest import log_in, nowhere
from tests.publishing.fake_hub import TOKEN


import publish  # isort: skip  # in examples/

PREFIX = "lab/tiny"
DISCRIMINATOR, GENERATOR = f"{PREFIX}-discriminator", f"{PREFIX}-generator"
COMMIT = "POST /api/models/.*/commit/"
TOWER = {"README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt"}
PLANTED = "hf_" + "x" * 34


def send(run, *flags, details=("--license", "mit", "--languages", "en"), prefix=PREFIX):
    return publish.main(["--run", str(run), "--repo_prefix", prefix, *details, *flags])


def everything(hub):
    """Files by repository and branch."""
    return {
        (repo_id, branch): {path: content for path, content in hub.files(repo_id, branch).items() if path[0] != "."}
        for (_, repo_id), repository in hub.repositories.items()
        for branch in repository.branches
    }


def tuned_by(record_file, **changes):
    """Has a record tell of another model."""
    record = EvaluationRecord.load(record_file)
    changed = dataclasses.replace(record, model={**record.model, **changes})
    changed.save(record_file.parent)


# ---- What is published ----


def test_each_tower_becomes_a_private_repository_with_its_card_in_one_commit(runs, hub):
    assert send(runs / "tiny") == 0
    there = everything(hub)
    assert set(there) == {
        (repo_id, branch) for repo_id in (DISCRIMINATOR, GENERATOR) for branch in ("main", "step-2", "step-4")
    }
    for (repo_id, branch), files in there.items():
        assert hub.repositories["models", repo_id].private
        assert len(hub.log(repo_id, branch)) == 2  # the Hub's own first one, and ours
        tower = repo_id.rpartition("-")[2]
        directory = runs / "tiny" / ("" if branch != "step-2" else "fractions/50") / tower
        more = {"run_record.json", "training_curves.png"} if branch == "main" else {"training_curves.png"}
        assert set(files) - {"special_tokens_map.json"} == TOWER | more
        assert files["model.safetensors"] == (directory / "model.safetensors").read_bytes()
        card = ModelCard(files["README.md"].decode())
        assert card.data.license == "mit"
        assert card.data.language == ["en"]
        assert "hf-electra-rtd" in card.data.tags


def test_a_picture_that_is_gone_is_drawn_anew(runs, hub):
    (runs / "tiny/training_curves.png").unlink()
    assert send(runs / "tiny", "--revisions", "False") == 0
    for repo_id in (DISCRIMINATOR, GENERATOR):
        assert hub.files(repo_id)["training_curves.png"].startswith(b"\x89PNG")


def test_the_pair_is_published_where_it_is_asked_for(runs, hub):
    assert send(runs / "tiny", "--parts", "pair", "--revisions", "False", "--private", "False") == 0
    ((key, files),) = everything(hub).items()
    assert key == (f"{PREFIX}-pair", "main")
    assert files["model.safetensors"] == (runs / "tiny/model.safetensors").read_bytes()
    assert not hub.repositories["models", f"{PREFIX}-pair"].private


def test_a_dry_run_uploads_nothing_lists_what_a_push_sends_and_leaves_pages(runs, hub, capsys):
    assert send(runs / "tiny", "--dry_run") == 0
    assert hub.requests == []
    lists = re.split(r"^(\S+/\S+), branch (\S+)$", capsys.readouterr().out, flags=re.MULTILINE)[1:]
    listed = {
        (repo_id, branch): {
            name: int(size.replace(",", ""))
            for name, size in re.findall(r"^  (\S+) +([\d,]+) *$", text, flags=re.MULTILINE)
            if name != "together"
        }
        for repo_id, branch, text in zip(lists[::3], lists[1::3], lists[2::3], strict=True)
    }
    assert send(runs / "tiny") == 0
    sent = {key: {path: len(content) for path, content in files.items()} for key, files in everything(hub).items()}
    assert listed == sent
    pages = sorted(path.name for path in (runs / "tiny/publish_preview").iterdir())
    names = [repo_id.replace("/", "--") for repo_id in (DISCRIMINATOR, GENERATOR)]
    assert pages == sorted(f"{name}{branch}.html" for name in names for branch in ("", "--step-2", "--step-4"))


def test_nothing_leaves_that_is_private(runs, hub, capsys):
    for directory in (runs / "tiny", runs / "tiny/discriminator", runs / "tiny/fractions/50/discriminator"):
        for name in ("training_args.bin", "optimizer.pt", "events.out.tfevents.1", "train.log"):
            (directory / name).write_text(f"{directory} {PLANTED}")
        path = directory / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "_name_or_path": str(directory)}))
    assert send(runs / "tiny", "--dry_run", "--parts", "discriminator", "generator", "pair") == 0
    assert "training_args.bin" in capsys.readouterr().out.partition("stays here:")[2]
    assert send(runs / "tiny", "--parts", "discriminator", "generator", "pair") == 0
    for files in everything(hub).values():
        assert not set(files) & {"training_args.bin", "optimizer.pt", "events.out.tfevents.1", "train.log"}
        for name, content in files.items():
            assert str(runs.parent).encode() not in content
            assert PLANTED.encode() not in content
            if name not in ("model.safetensors", "training_curves.png", "tokenizer.json", "vocab.txt"):
                assert find_private(content.decode()) == []


def test_a_token_among_the_files_stops_everything(runs, hub):
    path = runs / "tiny/generator/tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "access": PLANTED}))
    with pytest.raises(ValueError, match=r"tokenizer_config\.json.*token") as told:
        send(runs / "tiny")
    assert PLANTED not in str(told.value)
    assert hub.requests == []


def test_publishing_again_makes_no_commit(runs, hub, capsys):
    assert send(runs / "tiny") == 0
    before = everything(hub)
    capsys.readouterr()
    assert send(runs / "tiny") == 0
    assert everything(hub) == before
    assert hub.asked(COMMIT) == 6
    assert capsys.readouterr().out.count("as it was") == 6


def test_a_repository_that_holds_something_else_is_refused_before_any_upload(runs, hub):
    hub.add(GENERATOR, {"README.md": b"# A cat\n", "cat.png": b"meow"})
    with pytest.raises(ValueError, match=rf"{GENERATOR} holds something else.*cat\.png.*--force"):
        send(runs / "tiny")
    assert hub.asked("^(POST|PUT|DELETE) ") == 0
    assert send(runs / "tiny", "--force") == 0
    assert hub.files(GENERATOR)["cat.png"] == b"meow"
    assert b"licen" in hub.files(GENERATOR)["README.md"]


def test_another_run_is_refused_before_any_upload(runs, hub):
    path = runs / "tiny/run_record.json"
    assert send(runs / "tiny", "--parts", "generator") == 0
    there, sent = everything(hub), hub.asked("^(POST|PUT|DELETE) ")
    record = json.loads(path.read_text())
    record["arguments"]["training"]["seed"] = 7
    path.write_text(json.dumps(record))
    with pytest.raises(ValueError, match=rf"{GENERATOR} holds another run \(seed 42, here 7\).*--force"):
        send(runs / "tiny")
    assert (everything(hub), hub.asked("^(POST|PUT|DELETE) ")) == (there, sent)
    assert send(runs / "tiny", "--force") == 0
    assert json.loads(hub.files(GENERATOR)["run_record.json"])["arguments"]["training"]["seed"] == 7


def test_an_unforeseen_error_keeps_its_repository_and_holds_no_other_up(runs, hub, monkeypatch, caplog, capsys):
    push = Publisher.push

    def defective(self, repository, *arguments):
        if repository.repo_id == DISCRIMINATOR:
            raise KeyError("a defect")
        return push(self, repository, *arguments)

    monkeypatch.setattr(Publisher, "push", defective)
    assert send(runs / "tiny", "--revisions", "False") == 1
    assert set(everything(hub)) == {(GENERATOR, "main")}
    assert "Traceback" in caplog.text
    assert "an unforeseen error (KeyError: 'a defect')" in " ".join(capsys.readouterr().out.split())
    assert [item.repo_id for item in Outbox(runs / "tiny").pending()] == [DISCRIMINATOR]


def test_force_and_private_count_when_what_was_kept_is_sent(runs, hub):
    hub.fail(".", status=500, times=float("inf"))
    assert send(runs / "tiny", "--parts", "generator", "--revisions", "False") == 1
    hub.failures.clear()
    hub.add(GENERATOR, {"README.md": b"# A cat\n", "cat.png": b"meow"}, private=False)
    resume = ["--run", str(runs / "tiny"), "--resume"]
    for flags in ([], ["--force"], ["--private", "False"], ["--private", "True", "--force"]):
        assert publish.main([*resume, *flags]) == 1
    assert publish.main([*resume, "--force", "--private", "False"]) == 0
    assert b"mit" in hub.files(GENERATOR)["README.md"]
    assert hub.files(GENERATOR)["cat.png"] == b"meow"


def test_without_generator_there_is_no_generator_on_the_way_but_the_rest_is_published(runs):
    record = PretrainingRecord.load(runs / "tiny")
    alone = dataclasses.replace(record, model={**record.model, "objective": "mlm", "generator_config": None})
    halfway, details = runs / "tiny/fractions/50", Details("mit", ("en",))
    assert towers_at_fraction(halfway, alone, PREFIX, details, ["generator", "pair"]) == []
    both = towers_at_fraction(halfway, record, PREFIX, details, ["generator", "pair"])
    assert [(item.repository.repo_id, item.repository.revision) for item in both] == [(GENERATOR, "step-2")]


def test_who_may_not_write_there_is_told_before_any_upload(runs, hub, monkeypatch, waits):
    with pytest.raises(ValueError, match="maria may only read in museum"):
        send(runs / "tiny", prefix="museum/tiny")
    log_in(monkeypatch, hub.endpoint, "hf_unknown", waits)
    with pytest.raises(ValueError, match="does not accept the token"):
        send(runs / "tiny")
    assert hub.asked("^(POST|PUT|DELETE) ") == 0


# ---- Evaluations ----


def test_evaluations_find_their_tower_by_its_weights(runs, hub):
    assert send(runs / "tiny", "--evaluations", str(runs / "tuned"), str(runs / "halfway")) == 0
    card = hub.files(DISCRIMINATOR)["README.md"].decode()
    on_the_way = hub.files(DISCRIMINATOR, "step-2")["README.md"].decode()
    generator = hub.files(GENERATOR)["README.md"].decode()
    assert "reviews" in card
    assert "reviews" in on_the_way
    assert "reviews" not in generator
    final = EvaluationRecord.load(runs / "tuned/reviews/seed_42")
    half = EvaluationRecord.load(runs / "halfway/reviews/seed_42")
    assert final.model["sha256"] != half.model["sha256"]


def test_evaluations_of_the_published_discriminator_find_it_by_its_id(runs, hub):
    for path in (runs / "tuned").rglob(EVALUATION_FILE):
        record = EvaluationRecord.load(path)
        model = {name: value for name, value in record.model.items() if name != "sha256"}
        model |= {"name_or_path": DISCRIMINATOR, "revision": "0" * 40}
        dataclasses.replace(record, model=model).save(path.parent)
    with pytest.raises(ValueError, match=f"are of {DISCRIMINATOR}.*--compared"):
        send(runs / "tiny", "--evaluations", str(runs / "tuned"), prefix="lab/another")
    assert send(runs / "tiny", "--evaluations", str(runs / "tuned")) == 0
    assert "reviews" in hub.files(DISCRIMINATOR)["README.md"].decode()
    assert "reviews" not in hub.files(DISCRIMINATOR, "step-2")["README.md"].decode()


def test_a_strangers_evaluations_are_refused_by_name_and_can_be_compared(runs, hub):
    for path in (runs / "halfway").rglob(EVALUATION_FILE):
        tuned_by(path, sha256="0" * 64, name_or_path="stranger/foreign")
    with pytest.raises(ValueError, match=r"reviews, seed 42, are of stranger/foreign.*--compared"):
        send(runs / "tiny", "--evaluations", str(runs / "halfway"))
    assert hub.requests == []
    assert send(runs / "tiny", "--evaluations", str(runs / "tuned"), "--compared", str(runs / "halfway")) == 0
    assert "| foreign" in hub.files(DISCRIMINATOR)["README.md"].decode()


# ---- Fine-tuned models ----


def test_fine_tuned_models_are_named_by_their_task(runs, hub):
    assert send(runs / "tuned", "--base_model", DISCRIMINATOR, details=("--license", "mit")) == 0
    ((key, files),) = everything(hub).items()
    assert key == (f"{PREFIX}-reviews", "main")
    (kept,) = (runs / "tuned").glob("reviews/*/model")
    assert files["model.safetensors"] == (kept / "model.safetensors").read_bytes()
    assert files.keys() >= {EVALUATION_FILE, "README.md", "config.json", "vocab.txt"}
    card = ModelCard(files["README.md"].decode())
    assert (card.data.base_model, card.data.language) == (DISCRIMINATOR, ["en"])
    assert "42:" in card.text
    assert "43:" in card.text


@pytest.mark.parametrize("below", ["reviews", "reviews/seed_42"])
def test_one_task_of_several_can_be_published(runs, hub, below):
    (kept,) = (runs / "tuned").glob("reviews/*/model")
    kept.rename(runs / "tuned/reviews/seed_42/model")
    assert send(runs / "tuned" / below, "--base_model", DISCRIMINATOR) == 0
    assert set(everything(hub)) == {(f"{PREFIX}-reviews", "main")}


def test_two_models_of_one_name_are_refused_by_directory(runs, hub):
    below = runs / "several"
    for name in ("base", "small"):
        shutil.copytree(runs / "tuned", below / name)
    with pytest.raises(ValueError, match=rf"{below}/base/reviews and {below}/small/reviews .* {PREFIX}-reviews"):
        send(below, "--base_model", DISCRIMINATOR)
    assert hub.requests == []
    assert send(below / "small", "--base_model", DISCRIMINATOR) == 0


def test_adapters_need_their_base_model(runs, hub):
    with pytest.raises(ValueError, match="--base_model"):
        send(runs / "adapted")
    assert hub.requests == []
    assert send(runs / "adapted", "--base_model", DISCRIMINATOR) == 0
    files = hub.files(f"{PREFIX}-reviews")
    assert json.loads(files["adapter_config.json"])["base_model_name_or_path"] == DISCRIMINATOR
    assert "adapter_model.safetensors" in files
    assert "model.safetensors" not in files


def test_a_fine_tuning_that_kept_no_model_is_told(runs, hub):
    with pytest.raises(ValueError, match="--keep_models best"):
        send(runs / "halfway", "--base_model", DISCRIMINATOR)


# ---- A Hub that fails ----


@pytest.mark.parametrize("failure", ["always 500", "no network", "403 in the middle", "429"])
def test_what_the_hub_does_not_take_is_kept_and_sent_later(failure, runs, hub, waits, monkeypatch, capsys):
    if failure == "always 500":
        hub.fail(".", status=500, times=float("inf"))
    elif failure == "no network":
        log_in(monkeypatch, nowhere(), TOKEN, waits)
    elif failure == "429":
        hub.fail("POST", status=429, times=float("inf"), headers={"Retry-After": "100000"})
    else:
        hub.fail(f"POST /api/models/{GENERATOR}/commit/", status=403, times=float("inf"))
    assert send(runs / "tiny") == 1
    outbox = Outbox(runs / "tiny")
    kept = {(item.repo_id, item.revision) for item in outbox.pending()}
    towers = [GENERATOR] if failure == "403 in the middle" else [DISCRIMINATOR, GENERATOR]
    assert kept == {(repo_id, branch) for repo_id in towers for branch in (None, "step-2", "step-4")}
    told = capsys.readouterr().out
    assert told.count("not sent:") == len(kept)
    assert f"--run {runs / 'tiny'} --resume" in " ".join(told.split())
    assert max(waits, default=0) <= 1

    again = ["--run", str(runs / "tiny"), "--resume"]
    assert publish.main(again) == 1  # nothing is better yet
    assert {(item.repo_id, item.revision) for item in outbox.pending()} == kept

    hub.failures.clear()
    log_in(monkeypatch, hub.endpoint, TOKEN, waits)
    assert publish.main(again) == 0
    assert outbox.pending() == []
    assert [path.name for path in (runs / "tiny" / DIRECTORY).iterdir()] == []
    sent, commits = everything(hub), hub.asked(COMMIT)
    assert send(runs / "tiny") == 0  # finds everything as it was
    assert (everything(hub), hub.asked(COMMIT)) == (sent, commits)
    with pytest.raises(ValueError, match="Nothing waits"):
        publish.main(again)


def test_what_was_kept_goes_when_something_newer_got_through(runs, hub):
    hub.fail(".", status=500, times=float("inf"))
    assert send(runs / "tiny") == 1
    hub.failures.clear()
    assert send(runs / "tiny") == 0
    assert Outbox(runs / "tiny").pending() == []


# ---- Mistakes ----


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--repo_prefix", PREFIX], "--run OUTPUT_DIR"),
        (["--run", "{tiny}"], "--repo_prefix ORG/NAME"),
        (["--run", "{tiny}", "--repo_prefix", PREFIX, "--languages", "en"], "--license"),
        (["--run", "{tiny}", "--repo_prefix", PREFIX, "--license", "mit"], "--languages"),
        (["--run", "{tiny}", "--repo_prefix", PREFIX, "--license", "mine", "--languages", "en"], "no licence"),
        (["--run", "{tiny}", "--repo_prefix", "tiny", "--license", "mit", "--languages", "en"], "OWNER/NAME"),
        (["--run", "{tiny}", "--repo_prefix", PREFIX, "--parts", "trunk"], "discriminator, generator, pair"),
        (["--run", "{tiny}", "--repo_prefix", PREFIX, "--base_model", "a/b"], "--base_model is for fine-tuned"),
        (["--run", "{tiny}/absent", "--repo_prefix", PREFIX], "no directory"),
        (["--run", "{tiny}/blocks", "--repo_prefix", PREFIX], "neither"),
        (["--run", "{tiny}", "--resume"], "Nothing waits"),
    ],
)
def test_mistakes_are_told_before_anything_is_asked(flags, message, runs, hub):
    with pytest.raises(ValueError, match=message):
        publish.main([flag.replace("{tiny}", str(runs / "tiny")) for flag in flags])
    assert hub.requests == []


def test_a_run_that_lost_a_tower_is_told(runs, hub):
    shutil.rmtree(runs / "tiny/discriminator")
    with pytest.raises(ValueError, match="discriminator"):
        send(runs / "tiny")
    assert hub.requests == []
