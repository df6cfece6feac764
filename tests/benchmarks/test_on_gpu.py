"""Nothing that is wrong or hangs on a GPU goes unnoticed."""

from __future__ import annotations

import contestants
import on_gpu
import pytest
import torch
from on_gpu import Job, Step, compare_steps, read_findings


@pytest.fixture
def job(tmp_path) -> Job:
    return Job("race", "cpu", "tiny", tmp_path)


@pytest.mark.parametrize(
    ("loss_factor", "gradient_factor", "verdicts"),
    [
        (1.0, 1.0, [True, True]),
        (1.0, 1.001, [True, False]),
        (1.001, 1.0, [False, True]),
        (torch.nan, torch.nan, [False, False]),
    ],
)
def test_a_wrong_loss_a_wrong_gradient_and_what_is_no_number_are_seen(loss_factor, gradient_factor, verdicts, job):
    exact = Step(torch.rand(2, dtype=torch.float64) + 1, torch.randn(100, dtype=torch.float64))
    step = Step(exact.losses * loss_factor, exact.gradient * gradient_factor)
    compare_steps(job, torch.float32, step, exact)
    assert [finding["ok"] for finding in read_findings(job.out)] == verdicts


def test_a_race_times_contestants_and_tells_who_computes_something_else(job, monkeypatch):
    monkeypatch.setattr(on_gpu, "RACE", ["naive", "ours"])
    monkeypatch.setattr(on_gpu, "SECONDS", 0.01)
    monkeypatch.setattr(on_gpu, "measure_gemm_peak", lambda *_, **__: 1e9)
    forward = contestants.Ours.forward

    def doubled(self, *arguments):
        losses = forward(self, *arguments)
        return losses._replace(generator=2 * losses.generator)

    monkeypatch.setattr(contestants.Ours, "forward", doubled)
    on_gpu.race(job, 0)
    rows = {row["finding"]: row for row in read_findings(job.out)}
    assert rows["naive"]["ok"] is True
    assert rows["naive"]["tokens_per_second"] > 0
    assert rows["ours broke off"]["ok"] is False
    assert "FAILED race: ours broke off" in (job.out / "report.md").read_text()


PRETENDED = """
import os, sys, time
part = [flag for flag in sys.argv if flag.startswith("--only")][0].partition("=")[2]
print(f"{part} begins", file=sys.stderr, flush=True)
if part in ("correctness", "race"):
    os.abort()
if part == "waits":
    time.sleep(60)
"""


@pytest.mark.parametrize(("died", "status"), [("race", 0), ("correctness", 1)])
def test_a_part_that_hangs_or_dies_leaves_the_others_alone(died, status, tmp_path, monkeypatch):
    script = tmp_path / "pretended.py"
    script.write_text(PRETENDED)
    monkeypatch.setattr(on_gpu, "__file__", str(script))
    monkeypatch.setitem(on_gpu.PARTS, "waits", (on_gpu.waits, 2))  # seconds
    flags = ["--device", "cpu", "--size", "tiny", "--out", str(tmp_path / "out")]
    assert on_gpu.main([*flags, "--parts", "waits", died, "profile"]) == status
    ends = {finding["part"]: finding for finding in read_findings(tmp_path / "out")}
    assert ends["waits"]["finding"].startswith("ended: stopped")
    assert ends[died]["finding"] == "ended: died with status -6"
    assert f"{died} begins" in ends[died]["last_lines"]
    assert ends["profile"]["finding"] == "ended: done"


@pytest.mark.slow
def test_the_script_runs_on_a_cpu(tmp_path):
    flags = ["--device", "cpu", "--size", "tiny", "--parts", "correctness", "waits", "profile"]
    assert on_gpu.main([*flags, "--out", str(tmp_path)]) == 0
    findings = [finding["finding"] for finding in read_findings(tmp_path)]
    assert findings.count("ended: done") == 3
