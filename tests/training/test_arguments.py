import pytest

from hf_electra_rtd import RTDTrainingArguments
from hf_electra_rtd.training.arguments import fraction_steps


# Paper, Table 6: learning rate, warm-up, batch size, length, steps, masked share.
TABLE_6 = {
    "small": (5e-4, 10_000, 128, 128, 1_000_000, 0.15),
    "base": (2e-4, 10_000, 256, 512, 766_000, 0.15),
    "large": (2e-4, 10_000, 2048, 512, 400_000, 0.25),
}


@pytest.mark.parametrize("size", TABLE_6)
def test_a_size_trains_with_the_recipe_of_the_paper(size):
    args = RTDTrainingArguments.from_size(size, "out", use_cpu=True)
    recipe = (args.learning_rate, args.warmup_steps, args.per_device_train_batch_size)
    assert TABLE_6[size] == (*recipe, args.max_seq_length, args.max_steps, args.mask_probability)
    assert (args.adam_beta1, args.adam_beta2, args.adam_epsilon) == (0.9, 0.999, 1e-6)
    assert (args.weight_decay, args.max_grad_norm, args.bias_correction) == (0.01, 1.0, False)
    assert (args.bf16, args.dataloader_pin_memory) == (False, False)  # on a CPU
    assert RTDTrainingArguments.from_size(size, "out", use_cpu=True, max_steps=7).max_steps == 7
    assert RTDTrainingArguments.from_size(size, "out", use_cpu=True, num_train_epochs=1).max_steps == -1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hub_token": "hf_secret"}, "written into the run's files"),
        ({"push_to_hub": True}, "needs --hub_model_id"),
        ({"push_to_hub": True, "hub_model_id": "electra"}, "ORG/NAME"),
        ({"push_to_hub": True, "hub_model_id": "a/b", "hub_strategy": "checkpoint"}, "state of the optimizer"),
        ({"push_to_hub": True, "hub_model_id": "a/b", "hub_revision": "dev"}, "step-N"),
        ({"push_to_hub": True, "hub_model_id": "a/b", "hub_always_push": True}, "hub_always_push"),
        ({"mask_probability": 1.0}, "mask_probability is 1:"),
        ({"checkpoint_fractions": [0.5, 1.5]}, r"checkpoint_fractions is 1\.5"),
        ({"checkpoint_fractions": [0.0]}, "checkpoint_fractions is 0"),
        *(({f"{name}_strategy": "epoch"}, f"{name}_strategy epoch") for name in ("save", "eval", "logging")),
        ({"load_best_model_at_end": True}, "no step is the best"),
        ({"size": "medium"}, "no size 'medium'"),
    ],
)
def test_arguments_that_would_leak_or_fail_late_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        RTDTrainingArguments.from_size(**{"size": "tiny", "output_dir": "out", "use_cpu": True, **options})


def test_a_fraction_is_complete_at_the_end_of_its_step():
    assert fraction_steps([1.0, 0.5, 0.07], 100) == {7: 0.07, 50: 0.5, 100: 1.0}
    assert fraction_steps([0.001, 0.0625], 10) == {1: 0.0625}  # the largest of those that come to one step
    assert fraction_steps(None, 10) == {}
