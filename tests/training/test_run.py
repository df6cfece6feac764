"""What both scripts do around their loops."""

import contextlib
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from hf_electra_rtd import ElectraForRTDPretraining, PretrainingRecord, RTDTrainingArguments
from hf_electra_rtd.training.arguments import refuse_other_options
from hf_electra_rtd.training.disk import estimate_disk
from hf_electra_rtd.training.run import evaluation_at
from tests.conftest import VOCABULARY, tiny_config


sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import pretrain
import pretrain_no_trainer


SCRIPTS = pytest.mark.parametrize("script", [pretrain, pretrain_no_trainer])


@pytest.fixture
def flags(tmp_path, corpus, monkeypatch):
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    tiny_config().save_pretrained(tmp_path / "config")
    values = {"train_files": corpus, "tokenizer": tmp_path / "vocab.txt", "model_config": tmp_path / "config"}
    values |= {"row_length": 32, "per_device_train_batch_size": 4, "max_steps": 4, "warmup_steps": 1}
    values |= {"logging_steps": 1, "eval_steps": 3, "save_steps": 2, "output_dir": tmp_path / "run"}
    monkeypatch.setattr(sys, "argv", ["pretrain.py"])
    return [
        *(part for name, value in values.items() for part in (f"--{name}", str(value))),
        *("--use_cpu", "--disable_tqdm", "True"),
    ]


@SCRIPTS
def test_a_dry_run_shows_the_run_and_trains_nothing(tmp_path, flags, script, capsys):
    assert script.main([*flags, "--dry_run"]) == 0
    shown = capsys.readouterr().out
    for part in ("The towers", "Tied tensors", "one storage", "A row of the first step", "[MASK]", "The run", "FLOPs"):
        assert part in shown
    assert "4 of 4 rows" in shown
    assert "Nothing was trained" in shown
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"blocks"}
    assert script.main(flags) == 0  # and the run itself is not in the way


@SCRIPTS
def test_a_run_that_would_fill_the_disk_does_not_begin(tmp_path, flags, script, monkeypatch):
    usage = namedtuple("usage", "total used free")(10**9, 10**9, 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ValueError, match=r"not enough room.*1,000 bytes\) are free"):
        script.main(flags)
    assert not list((tmp_path / "run").glob("checkpoint-*"))


def test_room_is_left_for_what_is_on_its_way_to_the_hub(tmp_path, tokenizer):
    model = ElectraForRTDPretraining(tiny_config(vocab_size=len(tokenizer)))
    options = {"use_cpu": True, "save_steps": 2, "max_steps": 6, "hub_model_id": "lab/tiny"}

    def need(**more):
        return estimate_disk(model, tokenizer, RTDTrainingArguments(str(tmp_path), **{**options, **more}), 6)

    model.save_pretrained(tmp_path / "snapshot")
    model.save_towers(tmp_path / "snapshot", tokenizer)
    written = sum(path.stat().st_size for path in (tmp_path / "snapshot").rglob("*") if path.is_file())
    pushing = need(push_to_hub=True)
    assert written <= pushing.snapshot <= 1.5 * written
    assert pushing.total == need().total + pushing.snapshot
    for more in ({}, {"push_to_hub": True, "hub_strategy": "end"}, {"push_to_hub": True, "save_strategy": "no"}):
        assert need(**more).snapshot == 0


@SCRIPTS
def test_an_output_directory_that_is_a_file_is_refused_at_once(tmp_path, flags, script):
    (tmp_path / "run").touch()
    with pytest.raises(ValueError, match="is a file"):
        script.main(flags)


@SCRIPTS
def test_auto_begins_a_run_and_goes_on_with_it(tmp_path, flags, script, capsys):
    auto = [*flags, "--resume_from_checkpoint", "auto"]
    assert script.main(auto) == 0
    shutil.rmtree(tmp_path / "run" / "checkpoint-4")
    (tmp_path / "run" / "run_record.json").unlink()
    capsys.readouterr()
    assert script.main(auto) == 0
    shown = capsys.readouterr().out
    assert "step 3/4" in shown
    assert "step 2/4" not in shown


@SCRIPTS
def test_auto_has_nothing_to_do_where_a_run_without_checkpoints_is_finished(flags, script):
    auto = [*flags, "--resume_from_checkpoint", "auto", "--save_strategy", "no"]
    assert script.main(auto) == 0
    with pytest.raises(SystemExit) as ended:
        script.main(auto)
    assert ended.value.code == 0


@SCRIPTS
@pytest.mark.parametrize(
    "mistake", [["--dry_run"], ["--row_length", "65"], ["--vocab_size", "-1", "--tokenizer", "nowhere"]]
)
def test_a_rehearsal_or_a_mistake_deletes_no_run(tmp_path, flags, script, mistake):
    script.main(flags)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*") if "blocks" not in path.parts}
    with contextlib.suppress(ValueError, OSError):
        script.main([*flags, "--overwrite_output_dir", *mistake])
    for path, time in before.items():
        assert path.stat().st_mtime_ns == time or path.is_dir(), path


@SCRIPTS
def test_two_processes_do_not_train_in_one_directory(tmp_path, flags, script):
    (tmp_path / "run").mkdir()
    code = (
        "import sys, fcntl; file = open(sys.argv[1], 'wb'); fcntl.lockf(file, fcntl.LOCK_EX); "
        "print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "run" / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(ValueError, match="Another process is training"):
            script.main(flags)
        other.stdin.close()


@SCRIPTS
def test_a_run_goes_back_only_where_nothing_lies_beyond(tmp_path, flags, script):
    script.main(flags)
    back = [*flags, "--resume_from_checkpoint", str(tmp_path / "run" / "checkpoint-2")]
    with pytest.raises(ValueError, match="beyond step 2, where the run would go on: checkpoint-4"):
        script.main(back)


def test_the_record_is_that_of_the_best_model_where_it_is_loaded(tmp_path, flags):
    best = ["--load_best_model_at_end", "True", "--metric_for_best_model", "eval_loss", "--greater_is_better", "True"]
    pretrain.main([*flags, *best, "--eval_steps", "2", "--learning_rate", "0.03"])
    record = PretrainingRecord.load(tmp_path / "run")
    while_training = [log["eval_loss"] for log in record.curves if "eval_loss" in log][:2]
    assert while_training[0] > while_training[1]  # so that the last model is not the best
    assert record.metrics["eval_loss"] == pytest.approx(while_training[0], rel=1e-6)


def test_no_clipping_means_no_clipping_in_both_loops(tmp_path, flags):
    losses = []
    for script in (pretrain, pretrain_no_trainer):
        script.main([*flags, "--max_grad_norm", "0", "--overwrite_output_dir", "--learning_rate", "0.01"])
        losses.append([log["loss"] for log in PretrainingRecord.load(tmp_path / "run").curves if "loss" in log])
    assert losses[0] == losses[1]


@SCRIPTS
def test_the_last_evaluation_is_not_made_twice(flags, script, capsys):
    script.main(flags)
    assert capsys.readouterr().out.count("HELD-OUT") == 2  # at steps 3 and 4


@SCRIPTS
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--mask_probability", "0"], "mask_probability is 0.0"),
        (["--mask_probability", "1"], "mask_probability is 1.0"),
        (["--resume_from_checkpoint", "latest"], "no checkpoint to resume from"),
        (["--resume_from_checkpoint", "elsewhere"], "elsewhere is no directory"),
    ],
)
def test_flags_that_make_no_sense_are_refused_at_once(tmp_path, flags, script, given, message):
    with pytest.raises(ValueError, match=message):
        script.main([*flags, *given])
    assert not (tmp_path / "run" / "blocks").exists()


def test_the_loop_refuses_what_only_the_trainer_does(flags):
    with pytest.raises(ValueError, match=r"does not know --optim: .*examples/pretrain\.py"):
        pretrain_no_trainer.main([*flags, "--optim", "adafactor"])


def test_every_option_that_a_loop_knows_may_be_given(tmp_path):
    given = RTDTrainingArguments(str(tmp_path), use_cpu=True, learning_rate=0.5, max_steps=7)
    refuse_other_options(given, pretrain_no_trainer.OPTIONS)


def test_an_evaluation_is_found_in_the_log():
    log = [{"step": 3, "eval_loss": 1.0}, {"step": 6, "loss": 2.0}, {"step": 6, "eval_loss": 3.0, "epoch": 1.0}]
    assert evaluation_at(6, log) == {"eval_loss": 3.0}
    assert evaluation_at(4, log) is None
