"""Whole runs as a GPU would see them: no operation mixes devices, no step waits, and only the batch is copied.

Fake tensors cannot show whether a kernel exists for a type, what it computes, or how fast it is. They cannot be used
with a sparse `index_select`, with a gradient scaler (float16), or in files of their values (checkpoints).
"""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch


pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # for all cases on a busy machine
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LOGGED = 3  # waits of a log: for the loss, the gradient norm and the meters
BATCHES = 4  # in a run of fine-tuning


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """The outcome of each case of `cases.py`, run in a process of its own because torch asks for CUDA only once."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("The fake device needs a compiler of C++ (g++).")
    work = tmp_path_factory.mktemp("fake_accelerator")
    torch_home = Path(torch.__file__).parent
    options = ["-shared", "-fPIC", "-std=c++20", f"-I{torch_home}/include", f"-L{torch_home}/lib"]
    shim = [str(HERE / "shim.cpp"), "-o", str(work / "shim.so"), "-lc10", "-ltorch_cpu"]
    subprocess.run([compiler, *options, *shim], check=True)
    path = os.pathsep.join([str(ROOT), *sys.path])
    environment = {**os.environ, "FAKE_ACCELERATOR": str(work / "shim.so"), "PYTHONPATH": path}
    command = [sys.executable, "-m", "tests.fake_accelerator.cases", str(work)]
    subprocess.run(command, env=environment, check=True, cwd=ROOT)
    return json.loads((work / "outcomes.json").read_text())


def noted(outcomes, kind, *phases, cases=("pretrain", "finetune")):
    """How often an event of this kind was noted in each case, without cases that have none."""
    counts = Counter()
    for name, outcome in outcomes.items():
        for phase, of_kind, _, times in outcome["noted"]:
            if name.startswith(cases) and of_kind == kind and (phase in phases or not phases):
                counts[name] += times
    return dict(counts)


def test_every_run_and_command_ends(outcomes):
    failed = {name: outcome["failed"] for name, outcome in outcomes.items() if not name.startswith("fault")}
    assert {name: error for name, error in failed.items() if error} == {}
    assert len(failed) > 60


def test_nothing_mixes_devices(outcomes):
    assert noted(outcomes, "mixed", cases=("pretrain", "finetune", "command")) == {}


def test_no_step_waits_for_the_device(outcomes):
    """Except steps of ConvBERT and of stock models that are fine-tuned. Each of their forward passes reads whether
    there is padding; ModernBERT's does so once for each kind of layer."""
    waits = noted(outcomes, "wait", "step")
    stock = {name: BATCHES for name in outcomes if name.startswith("finetune")}
    stock["finetune tagging, modernbert"] = 2 * BATCHES
    convbert = {name: 4 for name in outcomes if name.startswith("pretrain family convbert")}  # two steps, two networks
    assert waits == {**stock, **convbert}


def test_a_log_waits_for_the_loss_the_norms_and_the_meters(outcomes):
    expected = {name: LOGGED if name.startswith("pretrain") else LOGGED - 1 for name in outcomes}
    expected["pretrain clipped apart"] = LOGGED + 2
    waits = noted(outcomes, "wait", "log")
    assert waits == {name: times for name, times in expected.items() if name in waits}
    assert len(waits) > 60


def test_a_step_copies_nothing_but_its_batch_which_is_pinned_and_not_waited_for(outcomes):
    """Except a number in each forward pass of DeBERTa, and the weights of classes."""
    copies = noted(outcomes, "copy", "step", "log")
    deberta = {name: 4 for name in outcomes if name.startswith("pretrain family deberta")}  # two steps, two networks
    assert copies == {**deberta, "finetune class weights": BATCHES}


@pytest.mark.parametrize(
    ("fault", "kind"),
    [("a tensor left on the CPU", "mixed"), ("a shape of data", "wait"), ("memory that is not pinned", "copy")],
)
def test_a_planted_fault_is_noted(outcomes, fault, kind):
    assert f"fault {fault}" in noted(outcomes, kind, "step", cases=("fault",))
