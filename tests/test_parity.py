"""The original's training, step by step: its recorded masks and samples go through our model and our optimizer."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import default_collate
from transformers import TrainerCallback

from hf_electra_rtd import ElectraAdamW, RTDTrainer, RTDTrainingArguments, get_electra_schedule, get_parameter_groups
from tests.recordings import NUM_STEPS, VARIANTS, Comparison, Recording


TOLERANCE = 1e-5
# Tolerances for the means of signed residuals. In float32, the total loss (near 40) is exact to 4e-6, the loss of a
# masked LM (near 6) to 5e-7, and a norm to a share of 1.2e-7.
BIAS_TOLERANCE = {"total_loss": 4e-6, "mlm_loss": 2e-6, "grad_norm": 2e-7}
BIAS_TOLERANCE_ELSEWHERE = 1e-7


def compare_outputs(comparison, output, recording, step):
    """Adds the losses, logits and probabilities of a step to a comparison."""
    loss, logits = output.generator_loss, output.generator_logits
    if not recording.detects:
        loss, logits = output.discriminator_loss, output.logits
    ours = {"total_loss": output.loss, "mlm_loss": loss, "mlm_logits": logits}
    if recording.detects:
        ours |= {"disc_loss": output.discriminator_loss, "disc_probs": output.logits.sigmoid()}
        ours |= {"is_fake": output.replaced_labels.clamp(min=0)}  # the original labels padding as not replaced
    for name, value in ours.items():
        comparison.add(name, value, recording.get(step, name))
    if recording.detects and step == 0:
        probabilities = recording.get(0, "disc_probs")
        comparison.add("disc_logits", output.logits, torch.logit(probabilities.double()))


def replay(recording, model):
    """Takes six steps and returns the comparison with those of the original."""
    settings = recording.config["optimizer"]
    groups, betas = get_parameter_groups(model, settings["weight_decay"]), tuple(settings["betas"])
    optimizer = ElectraAdamW(groups, lr=settings["learning_rate"], betas=betas, eps=settings["epsilon"])
    schedule = get_electra_schedule(optimizer, settings["warmup_steps"], settings["total_steps"])
    comparison = Comparison()
    model.train()
    for step in range(NUM_STEPS):
        output = model(**recording.batch(step), output_generator_logits=True, output_logits=True)
        compare_outputs(comparison, output, recording, step)
        output.loss.backward()
        norm = clip_grad_norm_(model.parameters(), settings["clip_norm"])
        comparison.add("grad_norm", norm, recording.get(step, "grad_norm"), relative=True)
        comparison.add("learning_rate", schedule.get_last_lr()[0], recording.get(step, "learning_rate"))
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    comparison.add_variables(model, recording)
    return comparison


def assert_the_same(comparison):
    far = {name: error for name, error in comparison.worst.items() if error > TOLERANCE}
    assert not far, far
    allowed = {name: BIAS_TOLERANCE.get(name, BIAS_TOLERANCE_ELSEWHERE) for name in comparison.bias}
    shifted = {name: mean for name, mean in comparison.bias.items() if abs(mean) > allowed[name]}
    assert not shifted, shifted


@pytest.fixture(params=VARIANTS)
def recording(request):
    return Recording(request.param)


def test_six_steps_are_those_of_the_original(recording):
    comparison = replay(recording, recording.load())
    both = {"disc_loss", "disc_probs", "disc_logits", "is_fake"} if recording.detects else set()
    everything = {"total_loss", "mlm_loss", "mlm_logits", "grad_norm", "learning_rate", "final variables"}
    assert comparison.worst.keys() == everything | both
    assert_the_same(comparison)


class StopAfterRecording(TrainerCallback):
    """Stops training after the recorded steps, since the schedule is that of a longer run."""

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step == NUM_STEPS


def test_the_trainer_takes_the_same_steps(recording, tmp_path):
    settings = recording.config["optimizer"]
    model = recording.load()
    names = ("max_steps", "learning_rate", "warmup_steps", "weight_decay", "adam_epsilon", "max_grad_norm")
    theirs = ("total_steps", "learning_rate", "warmup_steps", "weight_decay", "epsilon", "clip_norm")
    options = {ours: settings[name] for ours, name in zip(names, theirs, strict=True)}
    options |= {"adam_beta1": settings["betas"][0], "adam_beta2": settings["betas"][1], "use_cpu": True}
    options |= {"eval_strategy": "no", "save_strategy": "no", "report_to": "none", "disable_tqdm": True}
    options |= {"per_device_train_batch_size": recording.hparams["train_batch_size"], "logging_steps": 1}
    args = RTDTrainingArguments(output_dir=str(tmp_path), **options)
    args.train_sampling_strategy = "sequential"
    rows = []
    for batch in map(recording.batch, range(NUM_STEPS)):
        rows += [dict(zip(batch, row, strict=True)) for row in zip(*batch.values(), strict=True)]
    callbacks, collate = [StopAfterRecording()], partial(default_collate)
    special = zip(("cls_token_id", "sep_token_id", "mask_token_id"), model.config.special_token_ids, strict=True)
    collate.tokenizer = SimpleNamespace(**dict(special))
    trainer = RTDTrainer(model, args, rows, data_collator=collate, callbacks=callbacks)
    trainer.train()

    comparison = Comparison()
    logs = [log for log in trainer.state.log_history if "loss" in log]
    assert [log["step"] for log in logs] == [1, 2, 3, 4, 5, 6]
    for step, log in enumerate(logs):
        names = {"total_loss": "loss", "mlm_loss": "generator_loss", "disc_loss": "discriminator_loss"}
        for name, ours in names.items():
            comparison.add(name, log.get(ours), recording.get(step, name))
        comparison.add("grad_norm", log["grad_norm"], recording.get(step, "grad_norm"), relative=True)
        comparison.add("learning_rate", log["learning_rate"], recording.get(step, "learning_rate"))
    comparison.add_variables(model, recording)
    assert_the_same(comparison)


def test_the_recordings_optimizer_settings_are_our_defaults():
    settings = Recording("small_shared").config["optimizer"]
    names = {"weight_decay": "weight_decay", "adam_epsilon": "epsilon", "max_grad_norm": "clip_norm"}
    assert all(getattr(RTDTrainingArguments, ours) == settings[theirs] for ours, theirs in names.items())
    assert RTDTrainingArguments.bias_correction is False
