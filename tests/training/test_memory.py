"""The GPU memory of a training step, counted without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from workload import Rows, Workload

from hf_electra_rtd import ElectraForRTDPretraining, ElectraRTDConfig, RTDTrainingArguments
from hf_electra_rtd.training.memory import fake_steps, largest_batch
from tests.conftest import tiny_config
from tests.families_for_tests import FAMILY_NAMES, tiny_family_config


@pytest.fixture
def count(tmp_path):
    """Returns a function that counts the peak memory of a training step for each of several batch sizes."""

    def count(pair, *sizes, length=32, dtype=torch.bfloat16, **options):
        vocab_size = pair.config.discriminator_config.vocab_size
        rows = Rows(Workload(vocab_size=vocab_size, batch_size=2, max_seq_length=length), tmp_path, 1)
        with fake_steps(pair, RTDTrainingArguments(str(tmp_path)), rows.collate(0), dtype, **options) as take_step:
            return [take_step(size) for size in sizes]

    return count


@pytest.mark.parametrize(
    ("flat", "start", "few"),
    [
        pytest.param(0, 1, 7, id="linear, from one sequence"),
        pytest.param(0, 300, 5, id="linear"),  # bisection alone takes up to 14 steps
        pytest.param(900, 300, 17, id="the optimizer has the peak of small batches"),
    ],
)
def test_the_largest_batch_is_that_of_a_search_one_by_one_in_few_steps(flat, start, few):
    for budget in (500.5, *range(50, 5000, 37)):
        steps = []

        def peak(size, steps=steps):
            steps.append(size)
            return max(flat, 100 + 7 * size)

        fitting = [size for size in range(1, 1000) if max(flat, 100 + 7 * size) <= budget]
        assert largest_batch(peak, budget, start) == max(fitting, default=0)
        assert steps[0] == start
        assert len(set(steps)) <= few


PAIRS = {
    **{kind: {"discriminator_config": tiny_family_config(kind)} for kind in FAMILY_NAMES},
    "uniform": {"generator": "uniform"},
    "electric": {"objective": "electric", "generator": "two_tower"},
    **{name: {"objective": name} for name in ("mlm", "all_tokens_mlm", "replace_mlm")},
    "gdes": {"sharing": "gdes"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_a_peak_of_any_pair_grows_in_proportion_to_the_batch(name, count):
    make = ElectraRTDConfig if name in FAMILY_NAMES else tiny_config
    pair = ElectraForRTDPretraining(make(**PAIRS[name]))
    for checkpointing in (False, True):
        first, second, third = count(pair, 64, 128, 192, checkpointing=checkpointing)
        assert third - second == pytest.approx(second - first, rel=0.01)
        assert first > 16 * sum(each.numel() for each in pair.parameters() if each.requires_grad)


def test_attention_on_a_gpu_keeps_no_weights_of_pairs_of_tokens(count):
    config = tiny_config(attention_probs_dropout_prob=0.1)
    length = 64
    (fused,) = count(ElectraForRTDPretraining(config), 32, length=length)
    pair = ElectraForRTDPretraining(config)
    pair.set_attn_implementation("eager")
    (eager,) = count(pair, 32, length=length)
    tower = config.discriminator_config
    weights = 32 * tower.num_hidden_layers * tower.num_attention_heads * length**2
    assert eager - fused > 4 * weights  # eager attention keeps at least the softmax in float32


# In GiB, from a run on fake CUDA tensors, which needed C++ code beside torch (a device guard, hooks and the choice of
# a kernel).
ON_FAKE_CUDA = [
    ("small", 128, 128, torch.bfloat16, False, 2.73),
    ("small", 128, 128, None, False, 4.17),
    ("small", 128, 128, torch.bfloat16, True, 0.94),
    ("base", 256, 512, torch.bfloat16, False, 67.71),
    ("base", 256, 512, torch.bfloat16, True, 14.04),
]


@pytest.mark.slow
@pytest.mark.parametrize(("size", "batch_size", "length", "dtype", "checkpointing", "gib"), ON_FAKE_CUDA)
def test_peaks_are_those_of_fake_cuda_tensors(size, batch_size, length, dtype, checkpointing, gib, count):
    pair = ElectraForRTDPretraining(ElectraRTDConfig.from_size(size))
    (peak,) = count(pair, batch_size, length=length, dtype=dtype, checkpointing=checkpointing)
    assert peak / 2**30 == pytest.approx(gib, abs=0.006)


MEASURE = """
import re, sys
import torch
from workload import Rows, Workload
from hf_electra_rtd import ElectraForRTDPretraining, RTDTrainer, RTDTrainingArguments
from hf_electra_rtd.training.memory import fake_steps

directory, batch_size = sys.argv[1], int(sys.argv[2])
# Of this program alone: getrusage also knows the process that started it.
peak = lambda: 1024 * int(re.search(r"VmHWM:\\s+([0-9]+)", open("/proc/self/status").read())[1])
rows = Rows(Workload("small", batch_size=batch_size), directory, 3)
args = RTDTrainingArguments(
    directory, max_steps=2, per_device_train_batch_size=batch_size, bf16=False, use_cpu=True, warmup_steps=1,
    save_strategy="no", eval_strategy="no", report_to=[], disable_tqdm=True,
)
tiny = ElectraForRTDPretraining(Workload("tiny").config())
RTDTrainer(tiny, args, rows.stream(2), data_collator=rows.collator).train()  # loads what a step needs beside tensors
before = peak()
pair = ElectraForRTDPretraining(Workload("small").config())
with fake_steps(pair, args, rows.collate(0), None, on_gpu=False) as take_step:
    counted = take_step(batch_size)
del take_step
RTDTrainer(pair, args, rows.stream(2), data_collator=rows.collator).train()
print(counted, peak() - before)
"""


@pytest.mark.slow
def test_a_run_on_a_cpu_takes_the_memory_that_was_counted(tmp_path):
    script = [sys.executable, "-c", MEASURE, str(tmp_path), "16"]
    path = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    done = subprocess.run(script, capture_output=True, text=True, check=True, env={**os.environ, **path})
    counted, measured = map(int, done.stdout.split()[-2:])
    assert measured == pytest.approx(counted, rel=0.15)
