import resource
import sys

import pytest
import torch

from hf_electra_rtd import RTDTrainingArguments
from hf_electra_rtd.ops import products
from hf_electra_rtd.training.arguments import fraction_steps, keep_freed_memory, settle_products


def test_what_is_given_wins_over_the_recipe_of_a_size():
    given = {"learning_rate": 1.0, "max_steps": 7, "num_train_epochs": 1}
    for name, value in given.items():
        args = RTDTrainingArguments.from_size("small", "out", use_cpu=True, **{name: value})
        assert getattr(args, name) == value
        assert args.max_steps == {"learning_rate": 1_000_000, "max_steps": 7, "num_train_epochs": -1}[name]
        assert (args.bf16, args.dataloader_pin_memory) == (False, False)  # on a CPU


@pytest.mark.parametrize(
    ("given", "gain", "hidden_size", "is_advised"),
    [
        ({}, 1.9, 256, True),
        ({}, 0.1, 256, False),
        ({}, 1.9, 128, False),  # at this width it was measured slower
        ({"bf16": True}, 1.9, 256, False),
    ],
)
def test_a_cpu_rounds_to_bfloat16_as_the_flag_says_and_else_advises_it(
    monkeypatch, caplog, given, gain, hidden_size, is_advised
):
    monkeypatch.setattr(products, "bfloat16_gain", lambda: gain)
    args = RTDTrainingArguments("out", use_cpu=True, **given)
    caplog.set_level("INFO", "hf_electra_rtd")
    settle_products(args, hidden_size)
    assert (args.bf16, args.mixed_precision) == ((True, "bf16") if given else (False, "no"))
    assert ("would be 1.9 times as fast" in caplog.text) == is_advised


def test_a_fraction_is_complete_at_the_end_of_its_step():
    assert fraction_steps([1.0, 0.5, 0.07], 100) == {7: 0.07, 50: 0.5, 100: 1.0}
    assert fraction_steps([0.001, 0.0625], 10) == {1: 0.0625}  # the largest of those that come to one step
    assert fraction_steps(None, 10) == {}


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing changes")
def test_memory_that_a_tensor_frees_is_there_for_the_next_one():
    keep_freed_memory()

    def count_page_faults():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.empty(2**24).fill_(1)  # 64 MB, beyond what glibc keeps by default: 16,384 pages
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    counts = [count_page_faults() for _ in range(4)]
    assert min(counts) < 1000, counts
