"""The script for a GPU notices wrong losses and gradients, and it also runs on a CPU."""

from __future__ import annotations

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


@pytest.mark.slow
def test_the_script_runs_on_a_cpu(tmp_path):
    flags = ["--device", "cpu", "--size", "tiny", "--parts", "correctness", "waits", "profile"]
    assert on_gpu.main([*flags, "--out", str(tmp_path)]) == 0
    findings = [finding["finding"] for finding in read_findings(tmp_path)]
    assert findings.count("ended: done") == 3
