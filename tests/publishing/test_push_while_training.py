"""Both scripts that pre-train, and the one that fine-tunes, with `--push_to_hub`."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from safetensors import SafetensorError

from hf_electra_rtd.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.publishing.curves import CURVES_FILE
from hf_electra_rtd.publishing.outbox import Outbox
from hf_electra_rtd.records import PretrainingRecord
from hf_electra_rtd.training.emissions import EMISSIONS_FILE, read_emissions
from tests.publishing.conftest import EXAMPLES, fine_tuning_flags, log_in, nowhere, pretraining_flags
from tests.publishing.fake_hub import TOKEN


import finetune  # isort: skip  # in examples/
import pretrain  # isort: skip
import pretrain_no_trainer  # isort: skip
import publish  # isort: skip

PREFIX = "lab/tiny"
DISCRIMINATOR, GENERATOR = f"{PREFIX}-discriminator", f"{PREFIX}-generator"
DETAILS = ["--license", "mit", "--languages", "en"]
PUSHING = ["--push_to_hub", "True", "--hub_model_id", PREFIX, *DETAILS]
COMMIT = "POST /api/models/.*/commit/"
LOOPS = pytest.mark.parametrize("main", [pretrain.main, pretrain_no_trainer.main], ids=["trainer", "no_trainer"])
# As codecarbon 3.1 writes it.
MEASURED = """\
timestamp,project_name,run_id,experiment_id,duration,emissions,emissions_rate,cpu_power,gpu_power,ram_power,cpu_energy,\
gpu_energy,ram_energy,energy_consumed,water_consumed,country_name,country_iso_code,region,cloud_provider,cloud_region,os,\
python_version,codecarbon_version,cpu_count,cpu_model,gpu_count,gpu_model,longitude,latitude,ram_total_size,\
tracking_mode,cpu_utilization_percent,gpu_utilization_percent,ram_utilization_percent,ram_used_gb,on_cloud,pue,wue
2025-11-01T10:00:00,codecarbon,6a,5b,600.5,0.0125,2e-05,40.0,0,10.0,0.006,0,0.002,0.05,0.0,Iceland,ISL,,,,Linux,\
3.11.7,3.1.0,2,A processor,,,1.0,2.0,16.0,machine,50.0,0.0,20.0,3.2,N,1.0,0.0
2025-11-01T11:00:00,codecarbon,6a,5b,300.5,0.0075,2e-05,40.0,0,10.0,0.003,0,0.001,0.03,0.0,Iceland,ISL,,,,Linux,\
3.11.7,3.1.0,2,A processor,,,1.0,2.0,16.0,machine,50.0,0.0,20.0,3.2,N,1.0,0.0
"""


@pytest.fixture(autouse=True)
def _name_of_the_script(monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(EXAMPLES / "script.py")])


@pytest.fixture(autouse=True)
def _quick_pictures(monkeypatch):
    """Drawing takes longer than these runs; `test_publish.py` has true pictures."""

    def draw(record, directory):
        path = Path(directory) / CURVES_FILE
        path.write_bytes(b"picture of %d lines" % len(record.curves))
        return path

    for module in ("publishing.runs", "training.outputs"):
        monkeypatch.setattr(f"hf_electra_rtd.{module}.plot_curves", draw)


@pytest.fixture
def flags(training_files, tmp_path):
    return pretraining_flags(training_files, tmp_path / "run")


def everything(hub):
    return {
        (repo_id, branch): {path: content for path, content in hub.files(repo_id, branch).items() if path[0] != "."}
        for (_, repo_id), repository in hub.repositories.items()
        for branch in repository.branches
    }


def weights(directory):
    names = ("model.safetensors", "generator/model.safetensors", "discriminator/model.safetensors")
    return {name: (Path(directory) / name).read_bytes() for name in names}


def publish_run(directory, *more):
    return publish.main(["--run", str(directory), "--repo_prefix", PREFIX, *DETAILS, *more])


# ---- What is published, and when ----


@LOOPS
def test_a_run_publishes_its_towers_on_the_way_and_leaves_what_publishing_it_would(
    main, flags, finished, tmp_path, hub, capsys
):
    assert main([*flags, *PUSHING]) == 0
    assert f"{hub.endpoint}/{DISCRIMINATOR} (private)" in capsys.readouterr().out
    there = everything(hub)
    assert set(there) == {
        (repo_id, branch) for repo_id in (DISCRIMINATOR, GENERATOR) for branch in ("main", "step-2", "step-4")
    }
    for repo_id, branch in there:
        assert len(hub.log(repo_id, branch)) == 3  # the Hub's own, on the way, at the end
        tower = repo_id.rpartition("-")[2]
        halfway = tmp_path / "run/fractions/50" / tower / "model.safetensors"
        interim = hub.repositories["models", repo_id].history(branch)[1].tree
        if branch != "step-4":
            assert interim["model.safetensors"].content == halfway.read_bytes()
        assert b"mit" in interim["README.md"].content
    at_a_checkpoint = hub.repositories["models", DISCRIMINATOR].history("main")[1].tree
    assert json.loads(at_a_checkpoint["run_record.json"].content)["steps"] == 2
    assert publish_run(tmp_path / "run") == 0
    assert everything(hub) == there
    assert not [path for path in (tmp_path / "run/.publish").glob("**/*") if path.is_file()]
    if main is pretrain.main:  # the same run, without publishing
        assert weights(tmp_path / "run") == weights(finished / "tiny")


@LOOPS
def test_at_the_end_alone_where_that_is_asked_for(main, flags, tmp_path, hub):
    assert main([*flags, *PUSHING, "--hub_strategy", "end", "--parts", "discriminator"]) == 0
    there = everything(hub)
    assert set(there) == {(DISCRIMINATOR, branch) for branch in ("main", "step-2", "step-4")}
    assert [len(hub.log(*key)) for key in there] == [2, 2, 2]
    assert hub.asked(COMMIT) == 3


def test_what_is_still_on_its_way_is_not_overtaken_unless_asked(flags, hub):
    flags = [*flags, *PUSHING, "--max_steps", "12", "--parts", "generator", "--checkpoint_fractions", "1.0"]
    hub.fail(f"POST /api/models/{GENERATOR}/commit/main", delay=3)
    assert pretrain.main(flags) == 0
    assert len(hub.log(GENERATOR)) < 1 + 6  # of six times, some found the first one on its way


def test_every_checkpoint_is_published_where_that_is_asked_for(flags, hub):
    flags = [*flags, *PUSHING, "--max_steps", "6", "--parts", "generator", "--checkpoint_fractions", "1.0"]
    assert pretrain.main([*flags, "--hub_always_push", "True"]) == 0
    records = [
        json.loads(c.tree["run_record.json"].content)
        for c in hub.repositories["models", GENERATOR].history("main")[:-1]
    ]
    assert [record["steps"] for record in records] == [6, 4, 2]


def test_an_encoder_without_generator_is_called_an_encoder(flags, hub):
    flags = [*flags, *PUSHING, "--hub_strategy", "end", "--objective", "mlm"]
    at = flags.index("--model_config")
    hub.add(f"{PREFIX}-encoder", {"cat.png": b"meow"})
    size = ["--size", "tiny", "--max_steps", "1", "--checkpoint_fractions", "1.0"]
    with pytest.raises(ValueError, match=f"{PREFIX}-encoder holds something else"):
        pretrain.main([*flags[:at], *flags[at + 2 :], *size])


# ---- What is refused before training ----


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--hub_strategy", "checkpoint"], "state of the optimiser"),
        (["--hub_strategy", "all_checkpoints"], "state of the optimiser"),
        (["--hub_token", "hf_secret"], "written into the run's files"),
        (["--hub_model_id", "tiny"], "ORG/NAME"),
        (["--hub_revision", "dev"], "step-N"),
        (["--license", "mine"], "no licence"),
        (["--parts", "trunk"], "discriminator, generator, pair"),
        (["--hub_model_id", "museum/tiny"], "may only read in museum"),
    ],
)
@LOOPS
def test_what_cannot_be_published_is_refused_before_training(main, more, message, flags, tmp_path, hub):
    with pytest.raises(ValueError, match=message):
        main([*flags, *PUSHING, *more])
    assert not list((tmp_path / "run").glob("checkpoint-*"))
    assert hub.repositories == {}


@pytest.mark.parametrize("lacking", ["--hub_model_id", "--license", "--languages"])
def test_what_only_people_know_must_be_said_before_training(lacking, flags, tmp_path, hub):
    at = PUSHING.index(lacking)
    with pytest.raises(ValueError, match=lacking.lstrip("-")):
        pretrain.main([*flags, *PUSHING[:at], *PUSHING[at + 2 :]])
    assert not (tmp_path / "run/blocks").exists(), "not even the text was prepared"


@LOOPS
def test_a_wrong_token_or_a_foreign_repository_is_refused_before_training(
    main, flags, tmp_path, hub, monkeypatch, waits
):
    hub.add(GENERATOR, {"cat.png": b"meow"})
    with pytest.raises(ValueError, match=rf"{GENERATOR} holds something else.*--force"):
        main([*flags, *PUSHING])
    log_in(monkeypatch, hub.endpoint, "hf_unknown", waits)
    with pytest.raises(ValueError, match="does not accept the token"):
        main([*flags, *PUSHING])
    assert not list((tmp_path / "run").glob("checkpoint-*"))
    assert everything(hub).keys() == {(GENERATOR, "main")}


# ---- A Hub that fails ----


@pytest.mark.parametrize("failure", ["no network", "always 500", "403", "429", "cut", "nonsense"])
def test_no_failure_of_the_hub_stops_or_changes_the_run(
    failure, flags, finished, tmp_path, hub, monkeypatch, waits, caplog, capsys
):
    always = {"times": float("inf")}
    match failure:
        case "no network":
            log_in(monkeypatch, nowhere(), TOKEN, waits)
        case "always 500":
            hub.fail(".", status=500, **always)
        case "403":
            hub.fail("^POST", status=403, **always)
        case "429":
            hub.fail("^POST", status=429, headers={"Retry-After": "100000"}, **always)
        case "cut":
            hub.fail("/commit/", cut="request", **always)
        case "nonsense":
            hub.fail("/repos/create", status=200, body=b"<html>maintenance</html>", **always)
            hub.fail("/preupload/", status=200, body=b"<html>maintenance</html>", **always)
    assert pretrain.main([*flags, *PUSHING]) == 0
    if failure in ("no network", "always 500"):
        assert "The run begins all the same" in caplog.text
    run = tmp_path / "run"
    assert weights(run) == weights(finished / "tiny")
    assert PretrainingRecord.load(run).steps == 4
    assert everything(hub).keys() <= {(DISCRIMINATOR, "main"), (GENERATOR, "main")} | {
        (repo_id, branch) for repo_id in (DISCRIMINATOR, GENERATOR) for branch in ("step-2", "step-4")
    }
    assert len(Outbox(run).pending()) == 6
    told = " ".join(capsys.readouterr().out.split())
    assert f"publish.py --run {run} --resume" in told

    hub.failures.clear()
    log_in(monkeypatch, hub.endpoint, TOKEN, waits)
    assert publish.main(["--run", str(run), "--resume"]) == 0
    assert Outbox(run).pending() == []
    sent = everything(hub)
    assert publish_run(run) == 0
    assert everything(hub) == sent
    assert len(sent) == 6


def test_the_plain_loop_is_not_changed_by_publishing_or_its_failures(flags, training_files, tmp_path, hub):
    alone = pretraining_flags(training_files, tmp_path / "alone")
    assert pretrain_no_trainer.main(alone) == 0
    hub.fail("^POST", status=503, times=float("inf"))
    assert pretrain_no_trainer.main([*flags, *PUSHING]) == 0
    assert weights(tmp_path / "run") == weights(tmp_path / "alone")
    assert len(Outbox(tmp_path / "run").pending()) == 6


def test_what_waits_of_a_run_goes_with_it_when_it_is_overwritten(flags, tmp_path, hub):
    hub.fail("^POST", status=500, times=float("inf"))
    assert pretrain.main([*flags, *PUSHING, "--max_steps", "1", "--hub_strategy", "end"]) == 0
    assert Outbox(tmp_path / "run").pending()
    assert pretrain.main([*flags, "--max_steps", "1", "--overwrite_output_dir"]) == 0
    assert not Outbox(tmp_path / "run").pending()


def test_a_defect_in_publishing_does_not_stop_the_run(flags, finished, tmp_path, hub, monkeypatch, caplog):
    def defect(*arguments, **options):
        raise KeyError("a defect")

    monkeypatch.setattr("hf_electra_rtd.publishing.runs.tower_card", defect)
    assert pretrain.main([*flags, *PUSHING]) == 0
    assert "a defect" in caplog.text
    assert weights(tmp_path / "run") == weights(finished / "tiny")


@LOOPS
def test_a_full_disk_does_not_stop_the_run(main, flags, tmp_path, hub, monkeypatch, caplog):
    save = ElectraForRTDPretraining.save_towers

    def full(self, directory, *arguments, **options):
        save(self, directory, *arguments, **options)
        if ".publish" in str(directory):
            raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(ElectraForRTDPretraining, "save_towers", full)
    assert main([*flags, *PUSHING]) == 0
    assert "The towers at step 2 are not published: Error while serializing" in caplog.text
    assert not list((tmp_path / "run/.publish").glob(".step-*"))
    assert len(hub.log(DISCRIMINATOR)) == 2  # the end


def test_a_defective_record_does_not_stop_the_run_at_a_fraction(flags, hub, monkeypatch, caplog):
    from hf_electra_rtd.training.publication import RunPublication

    after_fraction = RunPublication.after_fraction

    def defective(self, *arguments):
        def defect(*arguments):
            raise KeyError("a defect")

        with monkeypatch.context() as patch:
            patch.setattr(self, "make_record", defect)
            after_fraction(self, *arguments)

    monkeypatch.setattr(RunPublication, "after_fraction", defective)
    assert pretrain.main([*flags, *PUSHING]) == 0
    assert "The towers at fraction 0.5 are not published" in caplog.text


def test_what_a_process_that_ended_had_on_its_way_goes_when_the_run_goes_on(flags, tmp_path, hub):
    left, another = tmp_path / "run/.publish/.step-2", tmp_path / "run/.publish/.000001-a.b"
    for directory in (left, another):
        directory.mkdir(parents=True)
        (directory / "model.safetensors").write_bytes(b"half")
    assert pretrain.main([*flags, *PUSHING, "--hub_strategy", "end"]) == 0
    assert not left.exists()
    assert another.exists()  # of an outbox, which looks after it


# ---- Another run ----


def test_another_run_is_refused_before_training_and_a_resumed_one_goes_on(flags, tmp_path, hub, monkeypatch):
    flags = [*flags, *PUSHING, "--checkpoint_fractions", "1.0"]
    assert pretrain.main(flags) == 0
    there = everything(hub)
    another = [str(tmp_path / "another") if flag == str(tmp_path / "run") else flag for flag in flags]
    with pytest.raises(ValueError, match=rf"{DISCRIMINATOR} holds another run \(.*seed 42, here 7\).*--hub_model_id"):
        pretrain.main([*another, "--seed", "7"])
    assert not list((tmp_path / "another").glob("checkpoint-*"))
    assert everything(hub) == there
    shutil.rmtree(tmp_path / "run/checkpoint-4")
    (tmp_path / "run/run_record.json").unlink()
    monkeypatch.setattr("hf_electra_rtd.training.run.utc_now", lambda: "2030-01-01T00:00:00+00:00")
    assert pretrain.main([*flags, "--resume_from_checkpoint", "latest"]) == 0
    assert json.loads(hub.files(DISCRIMINATOR)["run_record.json"])["started"].startswith("2030")


# ---- Emissions ----


def test_measured_emissions_of_all_sessions_stand_in_record_and_card(flags, tmp_path, hub):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / EMISSIONS_FILE).write_text(MEASURED)
    assert pretrain.main([*flags, *PUSHING, "--hub_strategy", "end"]) == 0
    emissions = PretrainingRecord.load(tmp_path / "run").emissions
    assert emissions == {
        "kg_co2_eq": pytest.approx(0.02),
        "energy_kwh": pytest.approx(0.08),
        "country": "Iceland",
        "source": "codecarbon 3.1.0",
    }
    card = ModelCard(hub.files(DISCRIMINATOR)["README.md"].decode())
    assert card.data.co2_eq_emissions["emissions"] == pytest.approx(20)  # grams
    assert card.data.co2_eq_emissions["geographical_location"] == "Iceland"
    assert EMISSIONS_FILE not in hub.files(DISCRIMINATOR)


@pytest.mark.parametrize(
    "text",
    ["timestamp,emissions\n2025,much\n", MEASURED.replace("0.0125", ""), MEASURED.replace("0.0125", "nan"), "\0"],
)
def test_a_damaged_measurement_is_told(text, tmp_path):
    (tmp_path / EMISSIONS_FILE).write_text(text)
    with pytest.raises(ValueError, match=rf"{EMISSIONS_FILE} is not as codecarbon writes it"):
        read_emissions(tmp_path)


def test_nothing_measured_is_no_emissions(tmp_path):
    assert read_emissions(tmp_path) == {}
    (tmp_path / EMISSIONS_FILE).write_text(MEASURED.partition("\n")[0] + "\n")
    assert read_emissions(tmp_path) == {}


def test_a_damaged_measurement_only_warns_a_run(flags, tmp_path, caplog):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / EMISSIONS_FILE).write_text("timestamp,emissions\n2025,much\n")
    assert pretrain.main([*flags, "--max_steps", "1"]) == 0
    assert "says nothing of emissions" in caplog.text
    assert PretrainingRecord.load(tmp_path / "run").emissions == {}


# ---- Fine-tuning ----


@pytest.fixture
def tuning(training_files, finished, tmp_path):
    flags = fine_tuning_flags(training_files, finished / "tiny", tmp_path / "tuned")
    return [*flags, "--push_to_hub", "True", "--hub_model_id", PREFIX, "--license", "mit", "--language", "en"]


@pytest.mark.parametrize("strategy", ["every_save", "end"])
def test_a_fine_tuning_publishes_each_tasks_model(strategy, tuning, tmp_path, hub, capsys):
    flags = [*tuning, "--base_model", DISCRIMINATOR, "--hub_strategy", strategy]
    assert finetune.main(flags) == 0
    assert f"{hub.endpoint}/{PREFIX}-reviews (private)" in capsys.readouterr().out
    there = everything(hub)
    assert set(there) == {(f"{PREFIX}-reviews", "main")}
    assert len(hub.log(f"{PREFIX}-reviews")) == 2
    run = tmp_path / "tuned"
    ((_, files),) = there.items()
    assert files["model.safetensors"] == (run / "reviews/seed_42/model/model.safetensors").read_bytes()
    assert publish_run(run, "--base_model", DISCRIMINATOR) == 0
    assert everything(hub) == there


def test_a_fine_tuning_does_not_stop_for_the_hub(tuning, tmp_path, hub, capsys):
    hub.fail(".", status=500, times=float("inf"))
    assert finetune.main([*tuning, "--base_model", DISCRIMINATOR]) == 0
    assert (tmp_path / "tuned/results.json").exists()
    assert f"publish.py --run {tmp_path / 'tuned'} --resume" in " ".join(capsys.readouterr().out.split())
    hub.failures.clear()
    assert publish.main(["--run", str(tmp_path / "tuned"), "--resume"]) == 0
    assert everything(hub).keys() == {(f"{PREFIX}-reviews", "main")}


def test_a_defect_in_publishing_does_not_stop_a_fine_tuning(tuning, tmp_path, hub, monkeypatch, caplog):
    def defect(*arguments, **options):
        raise KeyError("a defect")

    monkeypatch.setattr("hf_electra_rtd.publishing.runs.fine_tuned_card", defect)
    assert finetune.main(tuning) == 0
    assert "a defect" in caplog.text
    assert (tmp_path / "tuned/results.json").exists()


@pytest.mark.parametrize("ends", [RuntimeError, SystemExit])
def test_what_is_on_its_way_is_waited_for_where_a_fine_tuning_ends_with_an_error(
    ends, tuning, tmp_path, hub, monkeypatch, capsys
):
    from hf_electra_rtd.finetuning import suite

    run_task, published = suite._run_task, []

    def ending(given, loop, task, *more):
        run_task(given, loop, task, *more)
        given.publication.publish(task)
        published.append(task)
        raise ends("as where several processes train")

    monkeypatch.setattr(suite, "_run_task", ending)
    hub.fail("/commit/", delay=0.5)
    with pytest.raises(ends):
        finetune.main([*tuning, "--base_model", DISCRIMINATOR])
    assert everything(hub).keys() == {(f"{PREFIX}-reviews", "main")}
    assert len(hub.log(f"{PREFIX}-reviews")) == 2
    assert "(private)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--hub_model_id", "tiny"], "ORG/NAME"),
        (["--hub_strategy", "checkpoint"], "state of the optimiser"),
        (["--hub_token", "hf_secret"], "written into the run's files"),
        (["--license", "mine"], "no licence"),
        (["--language", ""], "--languages"),
        (["--keep_models", "none"], "--keep_models none"),
        (["--peft", "lora"], "--base_model"),
        (["--hub_model_id", "museum/tiny"], "may only read in museum"),
    ],
)
def test_a_fine_tuning_that_cannot_publish_is_refused_before_training(more, message, tuning, tmp_path, hub):
    with pytest.raises(ValueError, match=message):
        finetune.main([*tuning, *more])
    assert not list((tmp_path / "tuned").rglob("*.json"))
    assert hub.repositories == {}
