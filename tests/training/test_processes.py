"""Runs in one and in two processes have the same sequences, losses and weights, and each can resume the other."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hf_electra_rtd import PretrainingRecord
from hf_electra_rtd.training import pretrain
from tests.conftest import make_text, pretraining_flags


ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow
SEQUENCES_PER_STEP = 16


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    directory = tmp_path_factory.mktemp("processes")
    (directory / "corpus.txt").write_text(make_text(40), encoding="utf-8")
    return directory


def command(workplace, name, num_processes, *flags):
    """Returns the flags of a run of two epochs, with the same global batch size for any number of processes."""
    options = {"max_steps": -1, "num_train_epochs": 2, "learning_rate": 1e-3, "warmup_steps": 2}
    options |= {"per_device_train_batch_size": SEQUENCES_PER_STEP // num_processes, "save_total_limit": 100}
    options |= {"eval_steps": 5, "save_steps": 5, "per_device_eval_batch_size": 3}  # the last batch is never full
    return pretraining_flags(workplace, workplace / "corpus.txt", workplace / name, *flags, **options)


# The same step by gradient accumulation, from four batches of a quarter of the size.
ACCUMULATED = ("--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "4")


def run_here(flags, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["pretrain.py"])
    assert pretrain.main(flags) == 0


def launch(workplace, commands, *flags):
    """Runs command lines in two processes."""
    (workplace / "commands.json").write_text(json.dumps(commands))
    words = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    python(*words, Path(__file__).parent / "several_processes.py", workplace / "commands.json", *flags)


def python(*words):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    options = {"env": environment, "capture_output": True, "text": True, "timeout": 280}
    done = subprocess.run([sys.executable, *map(str, words)], **options)
    assert done.returncode == 0, done.stderr[-5000:]
    return done.stdout


def begun_before(workplace, name, source, step=5):
    """Creates the directory of an interrupted run, which holds nothing but a checkpoint, copied from another run."""
    shutil.copytree(workplace / source / f"checkpoint-{step}", workplace / name / f"checkpoint-{step}")


def assert_same_run(one, other, rounding=1e-5):
    weights = [load_file(directory / "model.safetensors") for directory in (one, other)]
    assert weights[0].keys() == weights[1].keys()
    for name, tensor in weights[0].items():
        # The gradient of a key's bias is zero but for rounding errors, which Adam scales up.
        if rounding == 0.0 or not name.endswith("key.bias"):
            torch.testing.assert_close(weights[1][name], tensor, rtol=0, atol=rounding)
    records = [PretrainingRecord.load(directory) for directory in (one, other)]
    counts = [(record.steps, record.sequences, record.tokens) for record in records]
    assert counts[0] == counts[1]
    names = ("loss", "grad_norm", "learning_rate", "generator_loss", "discriminator_loss", "generator_accuracy")
    names += ("sampled_accuracy", "replaced_share", "epoch", "eval_loss", "eval_discriminator_auc")
    logs = [each.curves for each in records]
    curves = [{(log["step"], name): log[name] for log in each for name in names if name in log} for each in logs]
    assert curves[1] == pytest.approx(curves[0], rel=2e-5, abs=1e-7)


def assert_same_towers(one, other):
    for tower in ("generator", "discriminator"):
        name = f"{tower}/model.safetensors"
        assert (one / name).read_bytes() == (other / name).read_bytes()


RESUME = ("--resume_from_checkpoint", "latest")
EXPORTS = ("--checkpoint_fractions", "0.5", "1")


@pytest.fixture(scope="module")
def in_one_process(workplace):
    """The directory of a run in one process."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        run_here(command(workplace, "one", 1), monkeypatch)
    return workplace / "one"


def test_two_processes_and_one_are_the_same_run_and_take_over_from_each_other(workplace, in_one_process, monkeypatch):
    begun_before(workplace, "one-two", "one")
    launch(workplace, [command(workplace, "two", 2, *EXPORTS), command(workplace, "one-two", 2, *RESUME)])
    assert_same_towers(workplace / "two" / "fractions" / "100", workplace / "two")
    begun_before(workplace, "two-one", "two")
    run_here(command(workplace, "two-one", 1, *RESUME, *ACCUMULATED), monkeypatch)

    record = PretrainingRecord.load(in_one_process)
    sequences = record.data["train"]["num_sequences"]
    assert sequences * 2 - SEQUENCES_PER_STEP < record.sequences <= sequences * 2
    for other in ("two", "one-two", "two-one"):
        assert_same_run(in_one_process, workplace / other)


def test_sharded_training_is_the_same_run_exports_whole_models_and_resumes(workplace, in_one_process):
    launch(workplace, [command(workplace, "sharded", 2, *EXPORTS)], "--shard")
    assert_same_towers(workplace / "sharded" / "fractions" / "100", workplace / "sharded")
    assert (workplace / "sharded" / "fractions" / "50" / "fraction.json").exists()
    begun_before(workplace, "sharded-resumed", "sharded")
    launch(workplace, [command(workplace, "sharded-resumed", 2, *RESUME)], "--shard")
    assert_same_run(in_one_process, workplace / "sharded")
    assert_same_run(in_one_process, workplace / "sharded-resumed")


def test_accelerate_launches_two_processes_on_the_cpu(workplace):
    """Needs the configuration of the examples: `accelerate launch --cpu --num_processes 2` would start one process."""
    flags = command(workplace, "launched", 2)
    launcher = ("-m", "accelerate.commands.launch", "--config_file", ROOT / "examples/accelerate_configs/cpu.yaml")
    assert python(*launcher, ROOT / "examples" / "pretrain.py", *flags).count("The run") == 1  # only one prints
    record = PretrainingRecord.load(workplace / "launched")
    assert record.sequences == record.steps * SEQUENCES_PER_STEP
    assert record.arguments["training"]["per_device_train_batch_size"] == SEQUENCES_PER_STEP // 2


def test_every_accelerate_config_can_be_read():
    from accelerate.commands.config.config_args import load_config_from_file

    paths = (ROOT / "examples/accelerate_configs").iterdir()
    configs = {path.stem: load_config_from_file(str(path)) for path in paths}
    assert configs.keys() == {"cpu", "single_gpu", "multi_gpu", "multi_node", "fsdp2", "fsdp2_multi_node"}
    for name in ("fsdp2", "fsdp2_multi_node"):
        assert configs[name].fsdp_config["fsdp_version"] == 2
