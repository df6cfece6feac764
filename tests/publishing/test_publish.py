"""The command, from finished runs to repositories, and back into another process."""

import dataclasses
import json
import re
import shlex
import shutil

import pytest
from huggingface_hub import ModelCard

from hf_electra_rtd.publishing import publish
from hf_electra_rtd.publishing.card import PROJECT_URL, CardArguments, pretraining_card
from hf_electra_rtd.records import EvaluationRecord, PretrainingRecord
from hf_electra_rtd.training import pretrain
from tests.finetuning.conftest import review_flags, run_finetune
from tests.publishing.fake_hub import COMMIT, DISCRIMINATOR, GENERATOR, PREFIX, TOKEN


pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

MODEL = {"README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt"}
PLANTED = "hf_" + "x" * 34


@pytest.fixture(scope="module")
def finished(finished_run, tmp_path_factory):
    """`run`, a pre-training; `tuned`, its discriminator fine-tuned with two seeds; `halfway`, the same for the export
    at half of the run; `adapted`, adapters for it."""
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


# ---- What is published ----


def test_a_push_sends_what_a_dry_run_lists_and_is_completed_by_resume_and_repeated_without_a_commit(
    runs, hub, monkeypatch, capsys, caplog
):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    assert send(runs / "run", "--dry_run") == 0
    assert hub.requests == []
    told = capsys.readouterr().out
    with monkeypatch.context() as patch:
        patch.setattr("huggingface_hub.HfApi.create_commit", interrupt)
        with pytest.raises(KeyboardInterrupt):
            send(runs / "run")
    assert TOKEN not in (runs / "run/publish.json").read_text()
    hub.fail("collections", status=500, times=1)
    assert publish.main(["--run", str(runs / "run"), "--resume"]) == 0
    assert "the collection tiny" in caplog.text  # a warning: the models are there
    there = hub.everything()
    branches = ("main", "step-2", "step-4")
    assert set(there) == {(name, branch) for name in (DISCRIMINATOR, GENERATOR) for branch in branches}
    assert re.findall(r"^(\S+), branch (\S+):", told, re.MULTILINE) == list(there)
    sizes = [(path, f"{len(content):,}") for files in there.values() for path, content in sorted(files.items())]
    assert re.findall(r"(\S+) +(\S+) bytes", told) == sizes
    for (repo_id, branch), files in there.items():
        more = {"run_record.json", "training_curves.png"} if branch == "main" else {"training_curves.png"}
        assert set(files) == MODEL | more
        part = ("fractions/50/" if branch == "step-2" else "") + repo_id.rpartition("-")[2]
        assert files["model.safetensors"] == (runs / "run" / part / "model.safetensors").read_bytes()
        preview = runs / "run/publish_preview" / repo_id.replace("/", "--") / branch / "README.md"
        assert files["README.md"] == preview.read_bytes()
        assert card(hub, repo_id, branch).data.license == "mit"
    assert all(repository.private for repository in hub.repositories.values())
    assert send(runs / "run") == 0
    assert hub.asked(COMMIT) == len(there)  # nothing has changed
    text = card(hub, DISCRIMINATOR).text
    assert f'from_pretrained("{DISCRIMINATOR}", revision="step-2")' in text
    assert f"{GENERATOR})" in text
    assert "in [the collections of lab](https://huggingface.co/lab/collections)" in text
    shutil.rmtree(runs / "run/fractions/50")
    (repository, *_) = publish.pretraining_repositories(runs / "run", {"hub_model_id": PREFIX})
    assert b"`step-2`" not in repository.files["README.md"]  # the record has it, but it is not there


def test_a_run_is_one_collection_and_a_private_run_stays_out_of_a_public_one(runs, hub, caplog):
    for _ in range(2):
        assert send(runs / "run") == 0
    ((slug, collection),) = hub.collections.items()
    assert slug.startswith(f"{PREFIX}-")
    assert collection["private"]
    assert [item["id"] for item in collection["items"]] == [DISCRIMINATOR, GENERATOR]
    collection.update(private=False, items=[])
    assert send(runs / "run") == 0
    assert "The collection tiny is public, so this run stays out of it" in caplog.text
    assert collection["items"] == []
    assert send(runs / "run", "--private", "False") == 0
    assert len(collection["items"]) == 2


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
    assert "films: no model was kept: it is not published. Fine-tune with --keep_models best." in caplog.text


def test_evaluations_are_of_this_model_and_stay_unless_removed_with_force(runs, hub):
    tuned, halfway = str(runs / "tuned"), str(runs / "halfway")
    with pytest.raises(ValueError, match=r"reviews, seed 42, is a result of .*--compared"):
        send(runs / "run", "--evaluations", tuned, halfway)
    assert send(runs / "run", "--evaluations", tuned, "--compared", halfway) == 0
    before = hub.everything()
    assert {key for key, files in before.items() if b"| model | runs | reviews |" in files["README.md"]} == {
        (DISCRIMINATOR, "main")
    }
    assert send(runs / "run") == 0
    assert publish.main(["--run", str(runs / "run"), "--resume"]) == 0
    with pytest.raises(ValueError, match=r"tuned are published and would be gone.*--force"):
        send(runs / "run", "--evaluations", halfway)
    assert hub.everything() == before
    record = EvaluationRecord.load(runs / "halfway/reviews/seed_42")
    model = {**record.model, "sha256": None, "name_or_path": DISCRIMINATOR}  # evaluated from the Hub
    dataclasses.replace(record, model=model).save(runs / "halfway/reviews/seed_42")
    (runs / "run/publish.json").unlink()
    assert send(runs / "run", "--evaluations", halfway, "--force") == 0
    (runs / "run/publish.json").unlink()
    assert send(runs / "run", "--force") == 0
    assert b"reviews" not in hub.files(DISCRIMINATOR)["README.md"]


def test_the_command_of_a_card_repeats_the_run(finished_run, corpus, tmp_path, monkeypatch):
    record, card_args = PretrainingRecord.load(finished_run), CardArguments()
    text = pretraining_card(record, "generator", GENERATOR, card_args)
    command = re.search(rf"git clone {PROJECT_URL}\ncd \S+\npip install -e .\n(.*?)```", text, re.DOTALL)[1]
    for path in (corpus, finished_run.parent / "vocab.txt", finished_run.parent / "config"):
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command.replace("\\\n", " "))
    assert words[:2] == ["hf-electra-rtd", "pretrain"]
    assert pretrain.main([*words[2:], "--use_cpu", "True", "--disable_tqdm", "True", "--output_dir", "again"]) == 0
    for path in ("model.safetensors", "fractions/50/generator/model.safetensors"):
        assert (tmp_path / "again" / path).read_bytes() == (finished_run / path).read_bytes()


def test_card_only_uploads_cards_and_results_and_leaves_every_other_file(runs, hub):
    results = ["--evaluations", str(runs / "tuned"), "--card_only"]
    assert send(runs / "run") == 0
    before, sent = hub.everything(), hub.asked("PUT")
    assert send(runs / "run", *results, "--license", "apache-2.0") == 0
    assert hub.asked("PUT") == sent
    for key, files in hub.everything().items():
        assert {path for path in files if files[path] != before[key].get(path)} == {"README.md"}
        assert files.keys() == before[key].keys()
        assert card(hub, *key).data.license == "apache-2.0"


# ---- What must not leave ----


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


GENERATION, NOWHERE = "run/generator/generation_config.json", "cannot be read: No such file"
PRIVATE = "it holds a path of this machine, a password or a token"


def note(text):
    return json.dumps({"note": text}).encode()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("run/generator/tokenizer.json", note(PLANTED), PRIVATE),
        (GENERATION, note("/usr"), PRIVATE),
        (GENERATION, note("../../ada/notes.txt"), PRIVATE),
        (GENERATION, b'{"_name_or_path": "/home/ada/old"}', PRIVATE),
        (GENERATION, note("a\n  /home/ada/notes.txt"), PRIVATE),
        (GENERATION, note(r"C:\data"), PRIVATE),
        (GENERATION, note(r"\\server\share\ada"), PRIVATE),
        (GENERATION, note("a\n  API_KEY=abc"), PRIVATE),
        (GENERATION, b'{"https://ada:abc@example.org/a": 1}', PRIVATE),
        ("run/generator/tokenizer_config.json", b'{"tokenizer_file": "/Users/ada/t.json"}', PRIVATE),
        ("run/generator/config.json", b'{"id2label": "x"}', "cannot be read"),
        ("run/generator/config.json", br'{"a": "https:\/\/ada:abc@b.c"}', PRIVATE),
        ("run/generator/tokenizer.json", b'"\xff"', "cannot be read"),
        ("run/generator/tokenizer.json", None, NOWHERE),
        ("run/generator/model.safetensors", None, NOWHERE),
        ("tuned/reviews/seed_43/evaluation_record.json", None, NOWHERE),
        ("adapted/reviews/seed_42/model", None, "holds no model.safetensors"),
    ],
)  # fmt: skip
def test_a_file_that_must_not_or_cannot_be_published_stops_everything(name, content, message, runs, hub):
    shutil.rmtree(runs / name) if (runs / name).is_dir() else (runs / name).unlink(missing_ok=True)
    if content is None:
        (runs / name).symlink_to("nowhere")
    else:
        (runs / name).write_bytes(content)
    for flags in ([], ["--dry_run"]):
        with pytest.raises(ValueError, match=re.escape(name.rpartition("/")[2])) as told:
            send(runs / name.partition("/")[0], *flags)
        assert message in str(told.value)
        assert PLANTED not in str(told.value)
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
    ("flags", "message"),
    [
        (["--run", "{run}"], "--hub_model_id is missing: give ORG/NAME"),
        (["--run", "{run}", "--hub_model_id", "tiny"], "give the owner.*ORG/NAME"),
        (["--run", "{run}", "--hub_model_id", PREFIX, "--parts", "trunk"], "no part 'trunk'"),
        (["--run", "{run}/blocks", "--hub_model_id", PREFIX], r"no run_record\.json.*--resume_from"),
        (["--run", "{run}", "--resume"], "never published"),
        (["--run", "{run}", "--hub_model_id", PREFIX, "--base_model", "a/b"], "--base_model has no place"),
        (["--run", "{run}/../halfway", "--hub_model_id", PREFIX, "--parts", "pair"], "--parts has no place"),
        (["--run", "{run}", "--hub_model_id", PREFIX, "--compared", "{run}"], "--compared has no place"),
        (["--run", "{run}/../halfway", "--hub_model_id", PREFIX], "--keep_models best"),
        (["--run", "{run}/../adapted", "--hub_model_id", PREFIX], "adapter.*--base_model"),
        (["--run", "{run}/lost", "--hub_model_id", PREFIX], r"generator holds no model\.safetensors.*Save.*--parts"),
    ],
)
def test_mistakes_are_named_before_anything_is_asked(flags, message, runs, hub):
    shutil.copytree(runs / "run", runs / "run/lost", ignore=shutil.ignore_patterns("lost", "fra*", "check*"))
    (runs / "run/lost/generator/model.safetensors").rename(runs / "run/lost/generator/pytorch_model.bin")
    with pytest.raises(ValueError, match=message):
        publish.main([flag.replace("{run}", str(runs / "run")) for flag in flags])
    assert hub.requests == []
