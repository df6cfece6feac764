"""`hf-electra-rtd pretrain`, as a user sees it."""

import contextlib
import os
import re
import runpy
import shutil
import signal
import sys
from pathlib import Path

import pytest
import torch
from transformers import ElectraForMaskedLM

from hf_electra_rtd import ElectraForRTDPretraining, PretrainingRecord, RTDTrainingArguments
from hf_electra_rtd.base.cli import given_flags, parse_arguments
from hf_electra_rtd.base.cli import run as run_command
from hf_electra_rtd.base.files import hash_files, lock_directory
from hf_electra_rtd.base.recipes import SIZES
from hf_electra_rtd.data.arguments import DataArguments
from hf_electra_rtd.training.checkpoints import latest_checkpoint
from hf_electra_rtd.training.directory import find_checkpoint
from hf_electra_rtd.training.model import ModelArguments, recipe_defaults
from hf_electra_rtd.training.pretrain import main
from tests.conftest import pretraining_flags, tiny_config


EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def pretrain(tmp_path, corpus, monkeypatch):
    """Returns a function that runs the command for four steps, by default in `tmp_path/run`, and returns its status
    and directory."""
    monkeypatch.setattr(sys, "argv", ["hf-electra-rtd pretrain"])

    def run(*flags, output_dir=tmp_path / "run", pair=None, **options):
        argv = pretraining_flags(tmp_path, corpus, output_dir, *flags, **options)
        if pair is not None:
            pair.save_pretrained(tmp_path / "config")
        return main(argv), output_dir

    return run


@pytest.fixture
def copied_run(finished_run, tmp_path):
    shutil.copytree(finished_run, tmp_path / "run")
    return tmp_path / "run"


def weights(directory):
    return (directory / "model.safetensors").read_bytes()


def cut_back(directory):
    """Deletes what a run would not have written if it had been interrupted after its first checkpoint."""
    for name in ("checkpoint-4", "generator", "discriminator"):
        shutil.rmtree(directory / name, ignore_errors=True)
    (directory / "run_record.json").unlink()


def test_a_run_leaves_everything_that_it_promises(finished_run, corpus):
    of_pair = "model.safetensors config.json tokenizer.json tokenizer_config.json vocab.txt generator discriminator"
    of_run = "checkpoint-2 checkpoint-4 run_record.json training_curves.png blocks fractions"
    left = {path.name for path in finished_run.iterdir() if path.name != ".lock"}
    assert left == {*of_pair.split(), *of_run.split()}
    assert (finished_run / "training_curves.png").read_bytes().startswith(b"\x89PNG")
    record = PretrainingRecord.load(finished_run)
    assert (record.steps, record.sequences, record.tokens) == (4, 32, 32 * 32)
    assert record.command.startswith("hf-electra-rtd pretrain --output_dir run --train_files corpus.txt")
    assert (record.arguments["model"]["size"], record.arguments["data"]["packing"]) == ("tiny", "full")
    (source,) = record.data["train"]["sources"]
    assert (source["name"], len(source["sha256"])) == (corpus.name, 64)
    assert [entry["step"] for entry in record.curves if "loss" in entry] == [1, 2, 3, 4]
    assert [entry["step"] for entry in record.curves if "eval_loss" in entry] == [2, 4]  # the last one is not repeated
    assert [fraction["step"] for fraction in record.fractions] == [2, 4]
    assert record.train_seconds > 0


def test_an_interrupted_run_resumes_and_ends_the_same(pretrain, copied_run, finished_run, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    cut_back(copied_run)
    hashed = []
    hash_one = "hf_electra_rtd.training.checkpoints.hash_files"
    monkeypatch.setattr(hash_one, lambda paths: hashed.extend(paths) or hash_files(paths))
    status, _ = pretrain("--resume_from_checkpoint", "auto", "--checkpoint_fractions", "0.5", "1.0")
    assert status == 0
    assert hashed.count(copied_run / "checkpoint-2" / "optimizer.pt") == 1
    for name in ("model.safetensors", "generator/model.safetensors", "discriminator/model.safetensors"):
        assert (finished_run / name).read_bytes() == (copied_run / name).read_bytes()
    shown = capsys.readouterr().out
    assert ("step 3/4" in shown, "step 2/4" in shown) == (True, False)
    for expected in ("held out", "discriminator, held out", "discriminator/, generator/"):
        assert expected in " ".join(shown.split())
    end = shown[shown.index("Held-out text, ") :].splitlines()
    assert re.search(r"Held-out text, \d+ sequences: \d+ of \d+ replaced tokens found, \d+ false alarms?\.$", end[0])
    assert ("a counted bigram" in end[1], len(end) <= 24) == (True, True)  # it fits a screen
    assert all(len(line) <= 100 or str(copied_run) in line for line in end)
    flags = [f"detect --model {copied_run} ", f"--model_name_or_path {copied_run} "]
    flags += [f"--output_dir {copied_run}-tuned ", f"publish --run {copied_run} "]
    assert all(flag in line for flag, line in zip(flags, end[-4:], strict=True))


@pytest.mark.parametrize("flags", [(), ("--overwrite_output_dir",), ("--resume_from_checkpoint", "auto")])
@pytest.mark.parametrize("name", ["model.safetensors", "generator/mine", "config.json/mine", "checkpoint-2/mine"])
def test_what_no_run_has_left_is_refused_and_stays(pretrain, tmp_path, monkeypatch, name, flags):
    monkeypatch.setattr("hf_electra_rtd.training.pretrain.get_tokenizer", lambda *_: pytest.fail("work was done"))
    (tmp_path / "run" / name).parent.mkdir(parents=True)
    (tmp_path / "run" / name).write_text("mine")
    with pytest.raises(ValueError, match=f"run/{name.removesuffix('/mine')} is there, and no.*Move it away"):
        pretrain(*flags)
    assert [path for path in (tmp_path / "run").rglob("*") if path.is_file()] == [tmp_path / "run" / name]


@pytest.mark.parametrize(
    ("flag", "part"),
    [
        ("continue_from", ""),
        ("generator", "generator"),
        ("discriminator", "fractions/50/discriminator"),
        ("backbone", "discriminator"),
    ],
)
def test_a_run_does_not_replace_the_model_that_it_starts_from(pretrain, copied_run, flag, part):
    with pytest.raises(ValueError, match=f"--{flag} .*Choose another --output_dir"):
        pretrain("--overwrite_output_dir", **{"model_config": None, flag: copied_run / part})
    assert (copied_run / "run_record.json").exists()


# Phases in which a signal may arrive, and a function that is called in each.
PHASES = {
    "text": "data.sequences.train_wordpiece",
    "model": "training.pretrain.build_model",
    "trainer": "training.pretrain.RTDTrainer",
    "loop": "training.meters.check_loss",
    "outputs": "training.directory.plot_curves",
    "publication": "training.console.print_summary",
}


@pytest.mark.parametrize(
    ("phase", "number"), [*((phase, signal.SIGTERM) for phase in PHASES), ("loop", signal.SIGINT)]
)
def test_a_signal_at_any_time_ends_the_command_with_its_status(pretrain, monkeypatch, capsys, tmp_path, phase, number):
    def sign(*_, **__):
        os.kill(os.getpid(), number)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(f"hf_electra_rtd.{PHASES[phase]}", sign)
    monkeypatch.setattr(sys, "argv", ["pretrain"])
    own = {"tokenizer": None, "model_config": None, "vocab_size": 120} if phase == "text" else {}
    try:
        with pytest.raises(SystemExit) as ended:
            run_command(lambda _: pretrain(**own)[0])
    finally:
        signal.signal(signal.SIGTERM, before)
    shown, said = capsys.readouterr()
    assert ended.value.code == 128 + number
    assert ("--resume_from_checkpoint latest" in shown) == (phase == "loop") == ("Interrupted." not in said)
    assert latest_checkpoint(tmp_path / "run") or phase in ("text", "model", "trainer")
    assert not list((tmp_path / "run").glob(".*partial*"))


def test_the_checkpoint_to_resume_from_is_the_latest_or_the_named_one(finished_run, copied_run, tmp_path):
    for resume in ("latest", "auto"):
        assert find_checkpoint(str(finished_run), resume, overwrite=False) == str(finished_run / "checkpoint-4")
    assert find_checkpoint(str(tmp_path), "auto", overwrite=False) is None  # there is no run
    for checkpoint in copied_run.glob("checkpoint-*"):
        (checkpoint / "optimizer.pt").unlink()
    with pytest.raises(ValueError, match="missing or altered"):
        find_checkpoint(str(copied_run), str(copied_run / "checkpoint-4"), overwrite=False)
    with pytest.raises(ValueError, match=r"only damaged checkpoints.*--overwrite_output_dir"):
        find_checkpoint(str(copied_run), "auto", overwrite=False)
    assert find_checkpoint(str(copied_run), "auto", overwrite=True) is None
    for checkpoint in copied_run.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    with pytest.raises(SystemExit) as ended:  # the run is already finished
        find_checkpoint(str(copied_run), "auto", overwrite=False)
    assert ended.value.code == 0


def test_the_checkpoint_is_chosen_under_the_lock_after_one_that_was_being_replaced_is_back(pretrain, copied_run):
    scratch = copied_run / ".checkpoint-4.partial-killed"
    scratch.mkdir()
    (copied_run / "checkpoint-4").rename(scratch / "replaced")
    lock = lock_directory(copied_run)
    with pytest.raises(ValueError, match="Another process is using"):
        pretrain("--resume_from_checkpoint", str(copied_run / "checkpoint-4"))
    lock.release()
    pretrain("--resume_from_checkpoint", str(copied_run / "checkpoint-4"))


def test_another_run_is_replaced_only_when_asked_also_where_the_one_that_replaced_it_died(
    pretrain, copied_run, monkeypatch
):
    before = (copied_run / "run_record.json").read_bytes()
    with pytest.raises(ValueError, match=r"another run.*--resume_from_checkpoint latest"):
        pretrain()
    assert (copied_run / "run_record.json").read_bytes() == before
    with monkeypatch.context() as patch:
        patch.setattr("hf_electra_rtd.training.pretrain.RTDTrainer.train", lambda *_, **__: sys.exit(9))
        with pytest.raises(SystemExit):
            pretrain("--overwrite_output_dir")
    assert (copied_run / "config.json").exists()
    assert not (copied_run / "run_record.json").exists()
    with pytest.raises(ValueError, match="holds another run"):
        pretrain()
    pretrain("--overwrite_output_dir", max_steps=1)
    assert PretrainingRecord.load(copied_run).steps == 1
    left = {path.name for path in copied_run.iterdir()}
    assert not {"checkpoint-4", "fractions", ".outputs"} & left


def test_a_run_resumes_after_another_failed_to_replace_it_and_does_not_read_its_text_twice(pretrain, monkeypatch):
    own = {"tokenizer": None, "model_config": None, "vocab_size": 120}
    _, directory = pretrain(**own)
    whole = weights(directory)
    cut_back(directory)
    with pytest.raises(ValueError, match="flash_attention_2"):
        pretrain("--overwrite_output_dir", attn_implementation="flash_attention_2", **own | {"vocab_size": 60})
    pretrain("--resume_from_checkpoint", "latest", **own)
    assert weights(directory) == whole
    cut_back(directory)
    monkeypatch.setattr("hf_electra_rtd.data.preparation.open_texts", lambda *_: pytest.fail("the text was read"))
    pretrain("--resume_from_checkpoint", "latest", **own)
    assert weights(directory) == whole


@pytest.mark.parametrize(
    "flags",
    [
        ["--dry_run"],
        ["--max_seq_length", "65"],
        ["--dataloader_prefetch_factor", "2"],
        ["--optim", "lomo"],  # its package is not installed
        ["--lr_scheduler_type", "warmup_stable_decay"],  # lacks its arguments
    ],
)
def test_a_dry_run_or_a_mistake_deletes_no_run(pretrain, copied_run, flags):
    before = {path: path.stat().st_mtime_ns for path in copied_run.rglob("*") if "blocks" not in path.parts}
    with contextlib.suppress(ValueError, OSError, TypeError):
        pretrain("--overwrite_output_dir", *flags)
    for path, time in before.items():
        assert path.is_dir() or path.stat().st_mtime_ns == time, path


def test_a_dry_run_trains_nothing_and_is_not_in_the_way_of_the_run(pretrain, capsys):
    status, directory = pretrain("--dry_run")
    assert (status, "Sequences of the first step" in capsys.readouterr().out) == (0, True)
    assert {path.name for path in directory.iterdir()} == {"blocks"}
    assert find_checkpoint(str(directory), None, overwrite=False) is None


NEW = {"model_config": None}  # networks of a named size


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_files": "nothing/*.txt"}, "nothing"),
        ({"accelerator_config": '{"split_batches": true}'}, "split_batches"),
        ({"data_seed": -1}, "--data_seed"),
        ({"old_held_out_files": __file__}, "--old_held_out_files.*--continue_from"),
        (NEW | {"objective": "electric", "generator_type": "two_tower", "temperature": 0}, "electric.*temperature"),
        (NEW | {"initialization": "neighbors"}, "--initialization.*neighbours"),
        ({"freeze_generator": True, "sharing": "none"}, "untrained generator"),
        ({"max_seq_length": 65}, "max_seq_length"),
        ({"attn_implementation": "nonsense"}, "attn_implementation"),
        ({"attn_implementation": "flash_attention_2"}, "attn_implementation"),
        ({"model_config": "missing/config"}, "missing/config"),
        ({"push_to_hub": True, "hub_model_id": "electra"}, "--hub_model_id"),
        ({"report_to": "tensorbord"}, "report_to: .*tensorboard"),
        ({"resume_from_checkpoint": "latest"}, "checkpoint"),
        ({"resume_from_checkpoint": "elsewhere"}, "elsewhere"),
        ({"held_out_files": "missing.txt", "tokenizer": None}, "missing.txt"),
    ],
)
def test_mistakes_are_told_before_any_work_is_lost(pretrain, tmp_path, options, message):
    with pytest.raises((ValueError, OSError), match=message):
        pretrain(**options)
    assert not (tmp_path / "run" / "blocks").exists()


def test_what_replaces_a_run_leaves_none_of_its_networks(pretrain, copied_run):
    shutil.copytree(copied_run / "discriminator", copied_run / "detector")
    tiny_config(objective="mlm").save_pretrained(copied_run.parent / "mlm")
    pretrain("--overwrite_output_dir", model_config=copied_run.parent / "mlm")
    assert not (copied_run / "detector").exists()
    assert not (copied_run / "generator").exists()


def test_text_that_is_trained_on_is_not_held_out_and_a_resumed_run_keeps_what_is(pretrain, finished_run, tmp_path):
    blocks = {part: finished_run / "blocks" / f"{part}.blocks" for part in ("train", "held_out")}
    with pytest.raises(ValueError, match="both trained on and held out"):
        pretrain(train_files=blocks["train"], held_out_files=blocks["train"])
    pretrain(train_files=blocks["train"], held_out_files=blocks["held_out"])
    with pytest.raises(ValueError, match=r"held_out was .*, now None"):
        pretrain("--resume_from_checkpoint", "latest", train_files=blocks["train"], eval_strategy="no")


def test_an_output_directory_that_cannot_be_used_is_refused(pretrain, finished_run, copied_run, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"file cannot be written.*another directory"):
        pretrain(output_dir=tmp_path / "file")
    with pytest.raises(ValueError, match="has checkpoints after step 2"):
        pretrain("--resume_from_checkpoint", str(copied_run / "checkpoint-2"))
    with pytest.raises(ValueError, match="holds another run than"):
        pretrain("--resume_from_checkpoint", str(finished_run / "checkpoint-4"))


def test_two_stages_freeze_the_generator_and_the_second_resumes(pretrain, tmp_path):
    _, one = pretrain(output_dir=tmp_path / "one", pair=tiny_config(objective="mlm"))
    place = one / "discriminator"
    second = {"backbone": place, "generator": place, "freeze_generator": True, "model_config": None, "tokenizer": None}
    second["output_dir"] = tmp_path / "two"
    _, two = pretrain(**second)
    generator = ElectraForMaskedLM.from_pretrained(one / "discriminator").state_dict()
    for directory in (two, two / "checkpoint-2"):
        pair = ElectraForRTDPretraining.from_pretrained(directory)
        assert (pair.config.sharing, pair.config.freeze_generator) == ("none", True)
        assert all(torch.equal(tensor, generator[name]) for name, tensor in pair.generator.state_dict().items())
        encoder = "electra.encoder.layer.0.output.dense.weight"
        assert not torch.equal(pair.discriminator.get_parameter(encoder), generator[encoder])
    states = torch.load(two / "checkpoint-4" / "optimizer.pt", weights_only=True)["state"]
    assert len(states) == len(list(pair.discriminator.parameters()))
    whole = weights(two)
    cut_back(two)
    pretrain("--resume_from_checkpoint", "latest", **second)
    assert weights(two) == whole


# ---- Examples ----


@pytest.mark.parametrize("path", sorted((EXAMPLES / "recipes").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_recipe_holds_known_flags(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ElectraForMaskedLM(tiny_config().discriminator_config).save_pretrained("runs/stage_one/discriminator")
    argv = ["--config", str(path), "--use_cpu"]
    types = (ModelArguments, DataArguments, RTDTrainingArguments)
    *_, args = parse_arguments(types, argv, defaults=recipe_defaults(given_flags(types, argv))[0])
    if path.stem == "two_stage_second":
        expected = RTDTrainingArguments.from_size("small", "out", max_steps=500_000, use_cpu=True)
        names = {*SIZES["small"].pretraining, "bias_correction", "eval_on_start"} - {"warmup_steps"}
        assert args.get_warmup_steps(500_000) == expected.get_warmup_steps(500_000)
        assert {name: getattr(args, name) for name in names} == {name: getattr(expected, name) for name in names}


@pytest.mark.parametrize("name", ["pretrain", "prepare"])
def test_an_example_takes_the_bundled_corpus_only_where_no_text_is_named(tmp_path, monkeypatch, name):
    def stop(data, *_, **__):
        raise InterruptedError(*data.train_files, *data.train_datasets)

    for module in ("training.pretrain", "data.prepare_command"):
        monkeypatch.setattr(f"hf_electra_rtd.{module}.get_tokenizer", stop)
    (tmp_path / "flags.yaml").write_text("train_datasets: [lab/text]")
    example, bundled = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"], r"examples/data/[\w.]+$"
    for flags, text in (([], bundled), (["--config", str(tmp_path / "flags.yaml")], "^lab/text$")):
        with pytest.raises(InterruptedError, match=text):
            example([*flags, "--output_dir", str(tmp_path / "run")])
