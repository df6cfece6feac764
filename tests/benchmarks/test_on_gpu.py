"""What is found on a GPU is told at once, and nothing that is wrong or hangs goes unnoticed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path

import contestants
import on_gpu
import pytest
import torch
from on_gpu import Job, compare_steps, read_findings, take_step

from hf_electra_rtd.records import PretrainingRecord


@pytest.fixture
def job(tmp_path, monkeypatch) -> Job:
    monkeypatch.chdir(tmp_path)
    (tmp_path / on_gpu.RESULTS).touch()
    return Job("race", "cpu", "tiny", None, tmp_path, time.time() + 60)


def spoil(gradients, factor):
    """Multiplies a tensor that is about a hundredth of the whole."""
    whole = torch.stack([gradient.norm() for gradient in gradients.values()]).norm()
    name = min(gradients, key=lambda name: abs(gradients[name].norm() / whole - 0.01))
    return {**gradients, name: gradients[name] * factor}


@pytest.mark.parametrize(
    ("dtype", "factor", "verdicts"),
    [
        *(("float32", 1.0, [True, True, True]), ("float32", 1.005, [True, True, False])),
        *((dtype, torch.nan, [False, False, False]) for dtype in on_gpu.TOLERANCES),
    ],
)
def test_one_wrong_tensor_in_the_gradient_and_what_is_no_number_are_seen(dtype, factor, verdicts, job, model, batch):
    exact = take_step(model.double(), batch)
    losses = exact.losses * factor if factor != factor else exact.losses
    compare_steps(job, dtype, exact._replace(losses=losses, gradients=spoil(exact.gradients, factor)), exact)
    assert [finding["ok"] for finding in read_findings(job.out)] == verdicts


def test_the_trainers_waits_between_two_logs_are_counted_where_they_happen(job, monkeypatch):
    def wait(method):
        def waiting(*args, **kwargs):
            warnings.warn("called a synchronizing CUDA operation (Triggered internally at ...)", stacklevel=2)
            return method(*args, **kwargs)

        return waiting

    for name in ("training_step", "log"):
        monkeypatch.setattr(on_gpu.RTDTrainer, name, wait(getattr(on_gpu.RTDTrainer, name)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of other steps
        places = on_gpu.waits_in_trainer(on_gpu.Track(job, on_gpu.WORKLOADS["tiny"][0]))
    assert list(places.values()) == [8]
    assert next(iter(places)).startswith("transformers/trainer.py/")


def test_a_race_times_contestants_and_tells_who_computes_something_else(job, monkeypatch, capsys):
    monkeypatch.setitem(on_gpu.RACES, "tiny", ["naive", "gathered", "ours+foreach", "ours-graph"])
    monkeypatch.setattr(on_gpu, "SECONDS", 0.01)
    monkeypatch.setattr(on_gpu, "why_absent", lambda entry: "it needs a GPU" if entry.graph else None)
    monkeypatch.setattr(on_gpu, "measure_gemm_peak", lambda *_, **__: (1e9, {}))
    add_up = contestants.StockTowers.add_up
    monkeypatch.setattr(contestants.Gathered, "add_up", lambda self, g, d: add_up(self, 2 * g, d), raising=False)
    assert on_gpu.run_part(job) == 0
    rows = {row["finding"]: row for row in read_findings(job.out)}
    assert [rows[name]["ok"] for name in ("naive", "gathered", "ours+foreach")] == [True, False, True]
    assert rows["ours+foreach"]["tokens_per_second"] > 0
    assert "ours-graph is left out: it needs a GPU" in capsys.readouterr().out
    job.tell("ours", False, ms=0.0)
    assert on_gpu.fastest(job, "ours") == "ours+foreach"
    assert "FAILED  race: gathered" in on_gpu.summarize(list(rows.values()))


PRETENDED = """
import os, sys, time
part = sys.argv[sys.argv.index("--parts") + 1]
print(f"{part} begins", file=sys.stderr, flush=True)
if part in ("correctness", "race"):
    os.abort()
if part == "waits":
    time.sleep(60)
"""


@pytest.mark.parametrize(("died", "status"), [("race", 0), ("correctness", 1)])
def test_a_part_that_hangs_or_dies_leaves_the_others_alone(died, status, tmp_path, monkeypatch, capsys):
    script = tmp_path / "pretended.py"
    script.write_text(PRETENDED)
    monkeypatch.setattr(on_gpu, "__file__", str(script))
    monkeypatch.setitem(on_gpu.PARTS, "waits", (on_gpu.waits, 0))  # it has a second
    flags = ["--device", "cpu", "--size", "tiny", "--minutes", "60", "--out", str(tmp_path / "out")]
    assert on_gpu.main([*flags, "--parts", "waits", died, "profile"]) == status
    told = {finding["part"]: finding for finding in read_findings(tmp_path / "out")}
    assert told["waits"]["finding"] == "ended: stopped, its time was over"
    assert told[died]["finding"] == "ended: died with status -6"
    assert f"{died} begins" in told[died]["stderr"]
    assert told["profile"]["finding"] == "ended: done"
    conclusion = {0: "No check failed.", 1: "FAILED  correctness: ended: died with status -6"}
    assert conclusion[status] in capsys.readouterr().out


@pytest.mark.slow
def test_the_script_runs_on_a_cpu(tmp_path):
    flags = ["--device", "cpu", "--size", "tiny", "--minutes", "5", "--parts", "correctness", "pretraining"]
    environment = {**os.environ, "OUT": str(tmp_path), "PYTHON": sys.executable}
    script = Path(on_gpu.__file__).with_suffix(".sh")
    ran = subprocess.run([script, *flags], env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = [finding["finding"] for finding in read_findings(tmp_path)]
    assert found.count("ended: done") == 2
    assert "skipped: no BLOCKS_DIR was given" in found


@pytest.mark.slow
def test_the_real_run_ends_on_time_with_a_record(job, blocks, tokenizer):
    tokenizer.save_pretrained(job.out / "tokenizer")
    for name, file in zip(("train", "held_out"), blocks, strict=True):
        Path(job.out, f"{name}.blocks").symlink_to(file.path)
    assert on_gpu.run_part(replace(job, part="pretraining", blocks=job.out, until=time.time() + 20)) == 0
    assert time.time() < job.until
    *_, last = read_findings(job.out)
    assert last["finding"] == "trained"
    assert last["last_loss"] < last["first_loss"]
    assert any("eval_discriminator_auc" in curve for curve in PretrainingRecord.load(job.out).curves)
    assert (job.out / "training_curves.png").stat().st_size > 0
