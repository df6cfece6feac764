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
    ("options", "message"),
    [
        ({"hub_token": "hf_secret"}, "written into the run's files"),
        ({"push_to_hub": True}, "needs --hub_model_id"),
        ({"push_to_hub": True, "hub_model_id": "electra"}, "ORG/NAME"),
        ({"push_to_hub": True, "hub_model_id": "a/b", "hub_strategy": "checkpoint"}, "state of the optimizer"),
        ({"push_to_hub": True, "hub_model_id": "a/b", "hub_revision": "dev"}, "step-N"),
        ({"push_to_hub": True, "hub_model_id": "a/b", "hub_always_push": True}, "hub_always_push"),
        ({"checkpoint_fractions": [0.5, 1.5]}, r"checkpoint_fractions is 1\.5"),
        *(({f"{name}_strategy": "epoch"}, f"{name}_strategy epoch") for name in ("save", "eval", "logging")),
        ({"load_best_model_at_end": True}, "no step is the best"),
        ({"size": "medium"}, "no size 'medium'"),
    ],
)
def test_arguments_that_would_leak_or_fail_late_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        RTDTrainingArguments.from_size(**{"size": "tiny", "output_dir": "out", "use_cpu": True, **options})


FLOAT, BF16 = ({"products": products.MKL, "precision": precision} for precision in ("no", "bf16"))


@pytest.mark.parametrize(
    ("given", "gain", "before", "rounds", "told"),
    [
        ({}, 1.9, None, False, "would be 1.9 times as fast"),
        ({}, 0.1, None, False, ""),
        ({"bf16": True}, 0.1, None, True, ""),
        ({"bf16": False}, 1.9, BF16, False, ""),  # a flag wins
        ({"bf16": True}, 1.9, FLOAT, True, ""),
        ({}, 0.1, BF16, True, "goes on in bfloat16"),  # and then the checkpoint
        ({}, 1.9, FLOAT, False, ""),
    ],
)
def test_a_cpu_rounds_to_bfloat16_as_flag_or_checkpoint_say_and_else_advises_it(
    monkeypatch, caplog, given, gain, before, rounds, told
):
    monkeypatch.setattr(products, "bfloat16_gain", lambda: gain)
    args = RTDTrainingArguments("out", use_cpu=True, **given)
    caplog.set_level("INFO", "hf_electra_rtd")
    settle_products(args, 256, before)
    assert (args.bf16, args.mixed_precision) == ((True, "bf16") if rounds else (False, "no"))
    assert (told in caplog.text) if told else not caplog.text


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is more than a CPU")
def test_bfloat16_on_a_machine_without_a_gpu_needs_no_other_flag():
    assert RTDTrainingArguments("out", bf16=True).mixed_precision == "bf16"


def test_narrow_networks_which_are_no_faster_in_bfloat16_stay_in_float32(monkeypatch, caplog):
    monkeypatch.setattr(products, "bfloat16_gain", lambda: 1.9)
    args = RTDTrainingArguments("out", use_cpu=True)
    settle_products(args, 128)
    assert not args.bf16
    assert not caplog.text


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
