import ctypes
import resource
import sys

import pytest
import torch

from hf_electra_rtd import RTDTrainingArguments
from hf_electra_rtd.training import arguments
from hf_electra_rtd.training.arguments import keep_freed_memory, settle_precision
from hf_electra_rtd.training.checkpoints import fraction_steps


def test_what_is_given_wins_over_the_recipe_of_a_size():
    given = {"learning_rate": 1.0, "max_steps": 7, "num_train_epochs": 1}
    for name, value in given.items():
        args = RTDTrainingArguments.from_size("small", "out", use_cpu=True, **{name: value})
        assert getattr(args, name) == value
        assert args.max_steps == {"learning_rate": 1_000_000, "max_steps": 7, "num_train_epochs": -1}[name]
        assert (args.bf16, args.dataloader_pin_memory) == (False, False)  # on a CPU


def test_a_short_run_is_logged_evaluated_and_warmed_up_in_proportion():
    for max_steps, wanted in ((200, (20, 40, 20)), (3, (1, 1, 1)), (6000, (100, 400, 100)), (60_000, (100, 400, 100))):
        args = RTDTrainingArguments.from_size("tiny", "out", use_cpu=True, max_steps=max_steps)
        assert (args.logging_steps, args.eval_steps, args.warmup_steps) == wanted
    assert RTDTrainingArguments.from_size("tiny", "out", use_cpu=True, max_steps=200, eval_steps=7).eval_steps == 7


def test_noise_on_the_embeddings_of_one_network_alone_is_refused():
    with pytest.raises(ValueError, match="neftune_noise_alpha"):
        RTDTrainingArguments("out", use_cpu=True, neftune_noise_alpha=5.0)


def test_optimizers_of_transformers_have_one_rate_and_the_generators_own_is_told_to_change_nothing(caplog):
    RTDTrainingArguments.from_size("mini", "out", use_cpu=True)
    assert not caplog.text
    RTDTrainingArguments.from_size("mini", "out", use_cpu=True, optim="adafactor")
    assert "generator_learning_rate" in caplog.text


@pytest.mark.parametrize(
    ("given", "before", "is_fast", "hidden_size", "precision", "told"),
    [
        ({}, None, True, 256, "bf16", "are in bfloat16"),
        ({}, None, False, 256, "no", None),
        ({}, None, True, 128, "bf16", "are in bfloat16"),
        ({}, None, True, 768, "no", "would be faster"),  # learning curves were not compared at this size
        ({"bf16": True}, None, False, 768, "bf16", None),
        ({"bf16": False}, None, True, 256, "no", None),
        ({}, "no", True, 256, "no", None),
        ({}, "bf16", False, 768, "bf16", None),
        ({"bf16": False}, "bf16", True, 256, "no", None),  # the trainer refuses to resume this later
    ],
)
def test_a_cpu_multiplies_in_bfloat16_as_the_flag_or_the_checkpoint_says_and_else_where_it_is_faster(
    monkeypatch, caplog, given, before, is_fast, hidden_size, precision, told
):
    monkeypatch.setattr(arguments, "is_fast_in_bfloat16", lambda: is_fast)
    args = RTDTrainingArguments("out", use_cpu=True, **given)
    caplog.set_level("INFO", "hf_electra_rtd")
    settle_precision(args, hidden_size, before and {"mixed_precision": before})
    assert (args.bf16, args.mixed_precision) == (precision == "bf16", precision)
    assert told in caplog.text if told else "bfloat16, " not in caplog.text and "would be" not in caplog.text


@pytest.mark.parametrize(
    ("capabilities", "is_fast"),
    [
        ({"avx2": True, "avx512_bf16": False, "amx_tile": False}, False),
        ({"avx512_bf16": True, "amx_tile": False}, True),
        ({"avx512_bf16": False, "amx_tile": True}, True),
        ({"architecture": "aarch64", "neon": True}, False),
    ],
)
def test_a_cpu_with_instructions_for_bfloat16_is_fast_with_it(monkeypatch, capabilities, is_fast):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert arguments.is_fast_in_bfloat16() == is_fast


def test_a_fraction_is_complete_at_the_end_of_its_step():
    assert fraction_steps([1.0, 0.5, 0.07], 100) == {7: 0.07, 50: 0.5, 100: 1.0}
    assert fraction_steps([0.001, 0.0625], 10) == {1: 0.0625}  # of several at one step, the largest counts
    assert fraction_steps(None, 10) == {}


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing changes")
@pytest.mark.parametrize("tensors", [1, 20])
def test_memory_that_tensors_free_is_there_for_the_next_ones(tensors):
    keep_freed_memory()
    ctypes.CDLL(None).malloc_trim(0)  # earlier tests may have left more free memory than glibc keeps

    def count_page_faults():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        # 64 MB each, beyond what glibc keeps by default: 16,384 pages
        [torch.empty(2**24).fill_(1) for _ in range(tensors)]
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    counts = [count_page_faults() for _ in range(4)]
    assert min(counts) < 1000, counts
