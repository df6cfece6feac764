import logging
import math

import numpy as np
import pytest
import torch
from transformers import DataCollatorForLanguageModeling, Trainer, TrainerCallback, TrainingArguments, set_seed

from hf_electra_rtd import (
    DataCollatorForRTD,
    DivergedError,
    ElectraAdamW,
    ElectraForRTDPretraining,
    RTDTrainer,
    RTDTrainingArguments,
    SequenceStream,
)
from hf_electra_rtd.data.preparation import prepare_blocks
from tests.conftest import WORDS, tiny_config


def arguments(directory, **options):
    values = {"output_dir": str(directory), "max_steps": 6, "learning_rate": 1e-2, "warmup_steps": 2}
    values |= {"per_device_train_batch_size": 8, "per_device_eval_batch_size": 4, "max_seq_length": 32}
    values |= {"logging_steps": 1, "eval_steps": 3, "save_steps": 3, "disable_tqdm": True, "use_cpu": True}
    return RTDTrainingArguments(**{**values, **options})


def make_trainer(directory, blocks, tokenizer, dropout=0.0, callbacks=None, model=None, more=(), **options):
    set_seed(0)
    if model is None:
        config = tiny_config(hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout, **dict(more))
        model = ElectraForRTDPretraining(config)
    return RTDTrainer(model, arguments(directory, **options), *blocks, processing_class=tokenizer, callbacks=callbacks)


class At(TrainerCallback):
    """Does something with the model at the beginning or the end of a step."""

    def __init__(self, step, act, event="on_step_end"):
        def called(args, state, control, model=None, **kwargs):
            if state.global_step == step:
                act(model)

        setattr(self, event, called)


def interrupt(model):
    raise KeyboardInterrupt


def losses(trainer):
    return torch.tensor([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])


def assert_equal_weights(one, other):
    for (name, parameter), (_, expected) in zip(one.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(parameter, expected), name


def test_it_trains_meters_and_evaluates(tmp_path, blocks, tokenizer, capsys):
    trainer = make_trainer(tmp_path, blocks, tokenizer, max_steps=30, eval_steps=10, save_steps=10)
    trainer.train()
    assert losses(trainer)[-5:].mean() < losses(trainer)[:5].mean()
    assert type(trainer.optimizer.optimizer) is ElectraAdamW
    train_log = next(entry for entry in trainer.state.log_history if "loss" in entry)
    names = ("loss", "grad_norm", "learning_rate", "epoch", "step", "generator_loss", "generator_accuracy")
    names += ("sampled_accuracy", "discriminator_loss", "replaced_share", "tokens_per_second", "train_seconds")
    assert train_log.keys() >= set(names)
    expected = train_log["generator_loss"] + 50 * train_log["discriminator_loss"]
    assert train_log["loss"] == pytest.approx(expected, rel=1e-5)
    eval_logs = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    assert len(eval_logs) == 3
    names = ("generator_loss", "generator_accuracy", "discriminator_loss", "discriminator_auc")
    names += ("discriminator_precision", "discriminator_recall", "discriminator_accuracy")
    assert eval_logs[0].keys() >= {f"eval_{name}" for name in names}
    assert trainer.state.epoch == pytest.approx(30 * 8 / len(blocks[0]))
    assert trainer.state.total_flos == trainer.make_record().flops["model"]
    lines = capsys.readouterr().out
    assert all(part in lines for part in ("step 30/30 (100%)  loss", "HELD-OUT", "left"))


def accuracy_of_flags(gathered):
    logits, replaced = gathered.predictions
    return {"accuracy": ((logits > 0) == replaced).mean()}


def accuracy_at_masked(gathered):
    _, predictions = gathered.predictions
    labels, _ = gathered.label_ids
    return {"accuracy": (predictions == labels).mean()}


def accuracy_at_replaced(gathered):
    labels, positions = gathered.label_ids
    replaced, predictions = (np.take_along_axis(values, positions, axis=1) for values in gathered.predictions)
    return {"accuracy": (predictions == labels)[replaced == 1].mean()}


@pytest.mark.parametrize(
    ("objective", "compute_metrics", "ours"),
    [
        ("rtd", accuracy_of_flags, "eval_discriminator_accuracy"),
        ("rtd_masked_only", accuracy_of_flags, "eval_discriminator_accuracy_all"),
        ("mlm", accuracy_at_masked, "eval_discriminator_masked_accuracy"),
        ("replace_mlm", accuracy_at_masked, "eval_discriminator_masked_accuracy"),
        ("all_tokens_mlm", accuracy_at_replaced, "eval_discriminator_replaced_accuracy"),
    ],
)
def test_metrics_of_ones_own_get_what_the_discriminator_says(
    tmp_path, blocks, tokenizer, objective, compute_metrics, ours
):
    set_seed(0)
    model = ElectraForRTDPretraining(tiny_config(objective=objective))
    args = arguments(tmp_path, max_steps=20, save_strategy="no", label_names=["labels", "masked_positions"])
    trainer = RTDTrainer(model, args, *blocks, processing_class=tokenizer)
    trainer.train()
    if model.main_head is not None:
        model.main_head.dense_prediction.bias.data.fill_(-10.0)  # to predict, not to copy
    expected = trainer.evaluate()[ours]
    own = RTDTrainer(model, args, *blocks, processing_class=tokenizer, compute_metrics=compute_metrics)
    assert 0 < expected < 1
    assert own.evaluate()["eval_accuracy"] == pytest.approx(expected)


def test_held_out_metrics_are_the_same_at_every_evaluation_and_with_every_batch_size(tmp_path, blocks, tokenizer):
    trainer = make_trainer(tmp_path, blocks, tokenizer, per_device_eval_batch_size=3)
    first = trainer.evaluate()
    assert first["eval_loss"] == pytest.approx(
        first["eval_generator_loss"] + 50 * first["eval_discriminator_loss"], rel=1e-12
    )
    torch.manual_seed(99)
    others = trainer.evaluate(), make_trainer(tmp_path, blocks, tokenizer, per_device_eval_batch_size=50).evaluate()
    for name, value in first.items():
        if not name.endswith(("runtime", "per_second", "preparation_time")):
            assert others[0][name] == value, name
            assert others[1][name] == pytest.approx(value, rel=1e-5), name


@pytest.mark.parametrize(("stop", "accumulation", "directory"), [(4, 1, "parts"), (5, 2, "new")])
def test_a_resumed_run_is_bit_for_bit_the_run_that_was_not_interrupted(
    tmp_path, blocks, tokenizer, stop, accumulation, directory, caplog
):
    options = {"dropout": 0.1, "gradient_accumulation_steps": accumulation, "per_device_train_batch_size": 4}
    whole = make_trainer(tmp_path / "whole", blocks, tokenizer, **options)
    whole.train()
    interrupted = make_trainer(tmp_path / "parts", blocks, tokenizer, callbacks=[At(stop, interrupt)], **options)
    with pytest.raises(KeyboardInterrupt):
        interrupted.train()
    resumed = make_trainer(tmp_path / directory, blocks, tokenizer, **options)
    torch.manual_seed(1234)  # whatever the new process had drawn before
    theirs = logging.getLogger("transformers")  # does not propagate to where pytest listens
    theirs.addHandler(caplog.handler)
    resumed.train(resume_from_checkpoint=str(tmp_path / "parts" / "checkpoint-3"))
    theirs.removeHandler(caplog.handler)
    assert "missing keys" not in caplog.text
    assert not list(tmp_path.rglob("training_args.bin"))  # a pickle
    assert torch.equal(losses(whole), losses(resumed))
    assert_equal_weights(whole.model, resumed.model)
    for entry, expected in zip(resumed.state.log_history, whole.state.log_history, strict=True):
        for name in ("generator_loss", "discriminator_loss", "eval_loss", "eval_discriminator_auc", "epoch"):
            assert entry.get(name) == expected.get(name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 1}, "seed was 42, now 1"),
        ({"mask_probability": 0.3}, r"mask_probability was 0\.15, now 0\.3"),
        ({"gradient_accumulation_steps": 2}, "sequences_per_step was 8, now 16"),
        ({"more": {"sharing": "gdes"}}, "sharing was embeddings, now gdes"),
        ({"more": {"objective": "rtd_masked_only"}}, "objective was rtd, now rtd_masked_only"),
        ({"more": {"temperature": 0.5}}, r"temperature was 1\.0, now 0\.5"),
        ({"more": {"discriminator_weight": 20.0}}, r"discriminator_weight was 50\.0, now 20\.0"),
        ({"learning_rate": 1e-3}, r"learning_rate was 0\.01, now 0\.001"),
        ({"bias_correction": True}, "bias_correction was False, now True"),
    ],
)
def test_a_run_is_not_resumed_with_another_stream_model_or_optimizer(tmp_path, blocks, tokenizer, options, message):
    make_trainer(tmp_path, blocks, tokenizer).train()
    trainer = make_trainer(tmp_path, blocks, tokenizer, **options)
    with pytest.raises(ValueError, match=message):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    split = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    same = make_trainer(tmp_path, blocks, tokenizer, **split)
    same.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))


def test_accumulation_and_workers_change_nothing(tmp_path, blocks, tokenizer):
    def curve(**options):
        trainer = make_trainer(tmp_path, blocks, tokenizer, max_steps=12, save_strategy="no", **options)
        trainer.train()
        return losses(trainer)

    canonical = curve()
    for options in (
        {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4},
        {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
        {"dataloader_num_workers": 2},
    ):
        difference = (canonical - curve(**options)).abs() / canonical
        assert difference.max() < 2e-5
        assert difference.mean() < 5e-6


def test_max_steps_or_epochs_decide_the_length(tmp_path, blocks, tokenizer):
    trainer = make_trainer(tmp_path, blocks, tokenizer, max_steps=-1, num_train_epochs=2)
    assert len(trainer.train_dataset) == trainer.args.max_steps * 8 <= 2 * len(blocks[0])
    assert trainer.args.max_steps == 2 * len(blocks[0]) // 8
    with pytest.raises(ValueError, match="do not fill one step"):
        make_trainer(tmp_path, blocks, tokenizer, max_steps=-1, num_train_epochs=0.01)
    with pytest.raises(ValueError, match=r"stream has 5 sequences, but 6 steps of 8 sequences need 48"):
        make_trainer(tmp_path, (SequenceStream(blocks[0], 5), blocks[1]), tokenizer)


def test_without_held_out_sequences_it_warns_and_trains(tmp_path, blocks, tokenizer, caplog):
    trainer = make_trainer(tmp_path, (blocks[0], None), tokenizer)
    assert "is not evaluated" in caplog.text
    trainer.train()


def in_the_encoder(model):
    model.discriminator.electra.encoder.layer[0].output.dense.weight.data[0, 0] = float("nan")


def in_a_bias(model):
    model.generator.generator_lm_head.bias.data[3] = float("inf")


RARE = {"logging_steps": 100}  # too seldom for the loss to tell


@pytest.mark.parametrize(
    ("poison", "options", "message", "left"),
    [
        (At(4, in_the_encoder, "on_step_begin"), {}, "Step 5: the loss", 1),
        (At(6, in_a_bias), RARE, "Step 6: a weight", 1),
        (At(6, in_a_bias), {**RARE, "save_strategy": "no", "eval_strategy": "no"}, "Step 6: a weight", 0),
    ],
)
def test_what_is_not_finite_stops_the_run_and_is_never_saved(
    tmp_path, blocks, tokenizer, poison, options, message, left
):
    trainer = make_trainer(tmp_path, blocks, tokenizer, callbacks=[poison], **options)
    with pytest.raises(DivergedError, match=f"{message} is no longer finite"):
        trainer.train()
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-3"][:left]
    assert all(math.isfinite(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry)
    if left:
        kept = ElectraForRTDPretraining.from_pretrained(tmp_path / "checkpoint-3")
        assert all(parameter.isfinite().all() for parameter in kept.parameters())


def test_sequences_that_are_no_stream_are_shuffled_by_the_sampler(tmp_path, blocks, tokenizer):
    model, collator = ElectraForRTDPretraining(tiny_config()), DataCollatorForRTD(tokenizer)
    ours = make_trainer(tmp_path, blocks, tokenizer)
    assert type(ours._get_train_sampler()).__name__ == "SequentialSampler"
    other = RTDTrainer(model, arguments(tmp_path), *blocks, processing_class=tokenizer, data_collator=collator)
    assert type(other._get_train_sampler()).__name__ == "RandomSampler"


def test_the_discriminator_learns_what_context_can_tell(tmp_path, tokenizer):
    # A text in which every word decides the next: a replaced word stands out, but only to who reads its neighbours.
    random = np.random.default_rng(0)
    follower = dict(zip(WORDS, random.permutation(WORDS), strict=True))
    words = [WORDS[0]]
    for _ in range(30_000):
        words.append(follower[words[-1]] if random.random() < 0.95 else str(random.choice(WORDS)))
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n\n".join(" ".join(words[i : i + 500]) for i in range(0, len(words), 500)))
    blocks = prepare_blocks([str(corpus)], tokenizer, tmp_path, 32, held_out_share=0.1, disable_progress=True)
    set_seed(0)
    options = {"hidden_size": 64, "embedding_size": 64, "intermediate_size": 128, "initializer_range": 0.08}
    # So hot that every word is as likely to be sampled: no word gives itself away.
    model = ElectraForRTDPretraining(tiny_config(temperature=20.0, **options))
    flags = {"max_steps": 300, "per_device_train_batch_size": 16, "learning_rate": 3e-3, "warmup_steps": 40}
    flags |= {"bias_correction": True, "logging_steps": 300, "eval_steps": 300, "save_strategy": "no"}
    trainer = make_trainer(tmp_path, blocks, tokenizer, model=model, **flags)
    trainer.train()
    assert trainer.state.log_history[-2]["eval_discriminator_auc"] > 0.8


def test_a_collapsed_discriminator_is_warned_of_once(tmp_path, blocks, tokenizer, caplog):
    trainer = make_trainer(tmp_path, blocks, tokenizer, max_steps=20, learning_rate=0.0, disable_tqdm=True)
    with torch.no_grad():
        head = trainer.model.discriminator.discriminator_predictions.dense_prediction
        head.weight.zero_()
        head.bias.fill_(-3.0)
    trainer.train()
    assert caplog.text.count("collapsed to the majority class") == 1


def test_a_long_warmup_is_warned_of_and_other_optimizers_and_schedules_are_taken_as_named(
    tmp_path, blocks, tokenizer, caplog
):
    make_trainer(tmp_path, blocks, tokenizer, warmup_steps=100, max_steps=2).train()
    assert "The warm-up takes 100 steps, the whole run only 2" in caplog.text
    named = {"optim": "adafactor", "lr_scheduler_type": "constant", "warmup_steps": 0}
    trainer = make_trainer(tmp_path, blocks, tokenizer, **named)
    trainer.train()
    assert type(trainer.optimizer.optimizer).__name__ == "Adafactor"
    assert all(entry["learning_rate"] == 1e-2 for entry in trainer.state.log_history if "loss" in entry)


# ---- A plain Trainer ----


def plain(directory, train, held_out, collator, **options):
    set_seed(0)
    values = {"output_dir": str(directory), "max_steps": 6, "per_device_train_batch_size": 8, "learning_rate": 1e-2}
    values |= {"eval_strategy": "steps", "eval_steps": 2, "save_steps": 2, "load_best_model_at_end": True}
    values |= {"metric_for_best_model": "eval_loss", "greater_is_better": False, "use_cpu": True, "disable_tqdm": True}
    args = TrainingArguments(**values, report_to="none", **options)
    model = ElectraForRTDPretraining(tiny_config())
    return Trainer(model, args, data_collator=collator, train_dataset=train, eval_dataset=held_out)


@pytest.mark.parametrize("collator", ["ours", "ours seeded", "language modelling"])
def test_a_plain_trainer_trains_evaluates_and_keeps_the_best_checkpoint(tmp_path, blocks, tokenizer, collator):
    train, held_out = blocks
    options = {}
    if collator == "ours":
        collator = DataCollatorForRTD(tokenizer)
    elif collator == "ours seeded":
        collator = DataCollatorForRTD(tokenizer, seed=0)
        train, held_out = SequenceStream(train), SequenceStream(held_out, shuffle=False)
        options["remove_unused_columns"] = False
    else:
        train, held_out = ([{"input_ids": each[i]["input_ids"]} for i in range(len(each))] for each in blocks)
        collator = DataCollatorForLanguageModeling(tokenizer, mask_replace_prob=0.85, random_replace_prob=0.0)
    trainer = plain(tmp_path, train, held_out, collator, **options)
    trainer.train()
    evaluations = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert len(evaluations) == 3
    assert trainer.state.best_metric == min(evaluations)
    best = ElectraForRTDPretraining.from_pretrained(trainer.state.best_model_checkpoint)
    assert_equal_weights(trainer.model, best)
    if isinstance(collator, DataCollatorForRTD) and collator.seed is not None:
        assert trainer.evaluate()["eval_loss"] == pytest.approx(min(evaluations), rel=1e-6)


def test_a_plain_trainers_loss_does_not_depend_on_accumulation(tmp_path, blocks, tokenizer):
    first = []
    for size, accumulation in ((8, 1), (2, 4)):
        streams = SequenceStream(blocks[0]), SequenceStream(blocks[1], shuffle=False)
        options = {"remove_unused_columns": False, "train_sampling_strategy": "sequential", "logging_steps": 1}
        options["gradient_accumulation_steps"] = accumulation
        trainer = plain(tmp_path, *streams, DataCollatorForRTD(tokenizer, seed=0), **options)
        trainer.args.per_device_train_batch_size = trainer._train_batch_size = size
        trainer.train()
        first.append([(entry["loss"], entry["grad_norm"]) for entry in trainer.state.log_history if "loss" in entry])
    torch.testing.assert_close(torch.tensor(first[0]), torch.tensor(first[1]), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_model_trains_evaluates_saves_and_goes_on_as_any_other(tmp_path, blocks, tokenizer):
    finals = []
    for name, options in (("eager", {}), ("compiled", {"torch_compile": True, "torch_compile_backend": "aot_eager"})):
        torch.compiler.reset()
        flags = {"max_steps": 6, "save_steps": 3, "eval_steps": 3, **options}
        make_trainer(tmp_path / name, blocks, tokenizer, **flags).train()
        resumed = make_trainer(tmp_path / name, blocks, tokenizer, **flags)
        resumed.train(resume_from_checkpoint=str(tmp_path / name / "checkpoint-3"))
        finals.append(resumed)
    eager, compiled = finals
    for key, weight in eager.model.state_dict().items():
        torch.testing.assert_close(compiled.model.state_dict()[key], weight, rtol=1e-4, atol=1e-5)
    assert [log.keys() for log in eager.state.log_history] == [log.keys() for log in compiled.state.log_history]
    assert ElectraForRTDPretraining.from_pretrained(tmp_path / "compiled" / "checkpoint-6")
