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
    RowStream,
    RTDTrainer,
    RTDTrainingArguments,
)
from hf_electra_rtd.data.preparation import prepare_blocks
from tests.conftest import WORDS, tiny_config


def arguments(directory, **options):
    return RTDTrainingArguments(
        **{
            "output_dir": str(directory),
            "max_steps": 6,
            "per_device_train_batch_size": 8,
            "per_device_eval_batch_size": 4,
            "learning_rate": 1e-2,
            "warmup_steps": 2,
            "logging_steps": 1,
            "eval_steps": 3,
            "save_steps": 3,
            "row_length": 32,
            "disable_tqdm": True,
            "use_cpu": True,
            **options,
        }
    )


def make_trainer(directory, blocks, tokenizer, dropout=0.0, callbacks=None, **options):
    set_seed(0)
    model = ElectraForRTDPretraining(tiny_config(hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout))
    return RTDTrainer(model, arguments(directory, **options), *blocks, processing_class=tokenizer, callbacks=callbacks)


class Interrupt(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise KeyboardInterrupt


class Watch(TrainerCallback):
    """Keeps what the model is given."""

    def __init__(self, model):
        self.inputs = []
        model.register_forward_pre_hook(self._keep, with_kwargs=True)

    def _keep(self, module, args, kwargs):
        if module.training:
            self.inputs.append(kwargs["input_ids"])


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
    assert train_log.keys() >= {
        *("loss", "grad_norm", "learning_rate", "epoch", "step", "generator_loss", "generator_accuracy"),
        *("sampled_accuracy", "discriminator_loss", "replaced_share", "tokens_per_second", "train_seconds"),
    }
    assert train_log["loss"] == pytest.approx(
        train_log["generator_loss"] + 50 * train_log["discriminator_loss"], rel=1e-5
    )
    eval_logs = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    assert len(eval_logs) == 3
    names = ("generator_loss", "generator_accuracy", "discriminator_loss", "discriminator_auc")
    more = ("discriminator_precision", "discriminator_recall", "discriminator_accuracy")
    assert eval_logs[0].keys() >= {f"eval_{name}" for name in (*names, *more)}
    assert trainer.state.epoch == pytest.approx(30 * 8 / len(blocks[0]))
    lines = capsys.readouterr().out
    assert "step 30/30 (100%)  loss" in lines
    assert "HELD-OUT" in lines
    assert "left" in lines


def test_the_learning_rate_is_the_originals(tmp_path, blocks, tokenizer):
    trainer = make_trainer(tmp_path, blocks, tokenizer)
    trainer.train()
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry]
    assert rates == pytest.approx([1e-2 * (1 - t / 6) * min(1, t / 2) for t in range(6)])


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
def test_metrics_of_ones_own_get_what_the_main_tower_says(
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


def test_the_held_out_corruption_is_the_same_at_every_evaluation(tmp_path, blocks, tokenizer):
    trainer = make_trainer(tmp_path, blocks, tokenizer)
    first = trainer.evaluate()
    torch.manual_seed(99)
    second = trainer.evaluate()
    changing = ("runtime", "per_second", "preparation_time")
    for name, value in first.items():
        if not name.endswith(changing):
            assert second[name] == value, name


def test_held_out_loss_does_not_depend_on_the_batch_size(tmp_path, blocks, tokenizer):
    metrics = [
        make_trainer(tmp_path, blocks, tokenizer, per_device_eval_batch_size=size).evaluate() for size in (3, 50)
    ]
    assert metrics[0]["eval_loss"] == pytest.approx(
        metrics[0]["eval_generator_loss"] + 50 * metrics[0]["eval_discriminator_loss"], rel=1e-12
    )
    for name in ("eval_loss", "eval_generator_loss", "eval_discriminator_loss", "eval_discriminator_auc"):
        assert metrics[0][name] == pytest.approx(metrics[1][name], rel=1e-5)


@pytest.mark.parametrize("stop", [4, 5])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_resumed_run_is_bit_for_bit_the_run_that_was_not_interrupted(
    tmp_path, blocks, tokenizer, stop, accumulation
):
    options = {"dropout": 0.1, "gradient_accumulation_steps": accumulation, "per_device_train_batch_size": 4}
    whole = make_trainer(tmp_path / "whole", blocks, tokenizer, **options)
    watch = Watch(whole.model)
    whole.train()

    interrupted = make_trainer(tmp_path / "parts", blocks, tokenizer, callbacks=[Interrupt(stop)], **options)
    with pytest.raises(KeyboardInterrupt):
        interrupted.train()
    resumed = make_trainer(tmp_path / "parts", blocks, tokenizer, **options)
    torch.manual_seed(1234)  # whatever the new process had drawn before
    rest = Watch(resumed.model)
    resumed.train(resume_from_checkpoint=str(tmp_path / "parts" / "checkpoint-3"))

    assert torch.equal(losses(whole), losses(resumed))
    assert torch.equal(torch.stack(watch.inputs[-len(rest.inputs) :]), torch.stack(rest.inputs))
    assert_equal_weights(whole.model, resumed.model)
    for entry, expected in zip(resumed.state.log_history, whole.state.log_history, strict=True):
        for name in ("generator_loss", "discriminator_loss", "eval_loss", "eval_discriminator_auc", "epoch"):
            assert entry.get(name) == expected.get(name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 1}, "seed was 42, now 1"),
        ({"mask_probability": 0.3}, r"mask_probability was 0\.15, now 0\.3"),
        ({"gradient_accumulation_steps": 2}, "rows_per_step was 8, now 16"),
    ],
)
def test_a_run_is_not_resumed_with_another_stream(tmp_path, blocks, tokenizer, options, message):
    make_trainer(tmp_path, blocks, tokenizer).train()
    trainer = make_trainer(tmp_path, blocks, tokenizer, **options)
    with pytest.raises(ValueError, match=message):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    split = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    same = make_trainer(tmp_path, blocks, tokenizer, **split)
    same.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))


def test_resuming_warns_of_nothing_and_leaves_no_pickle_of_arguments(tmp_path, blocks, tokenizer, caplog):
    make_trainer(tmp_path, blocks, tokenizer).train()
    assert not list(tmp_path.rglob("training_args.bin"))
    trainer = make_trainer(tmp_path, blocks, tokenizer)
    theirs = logging.getLogger("transformers")  # does not propagate to where pytest listens
    theirs.addHandler(caplog.handler)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    theirs.removeHandler(caplog.handler)
    assert "missing keys" not in caplog.text


@pytest.mark.parametrize(
    "options",
    [
        {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4},
        {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
        {"dataloader_num_workers": 2},
    ],
)
def test_accumulation_and_workers_change_nothing(tmp_path, blocks, tokenizer, options):
    canonical = make_trainer(tmp_path, blocks, tokenizer, max_steps=12)
    canonical.train()
    other = make_trainer(tmp_path, blocks, tokenizer, max_steps=12, **options)
    other.train()
    difference = (losses(canonical) - losses(other)).abs() / losses(canonical)
    assert difference.max() < 2e-5
    assert difference.mean() < 5e-6


def test_max_steps_or_epochs_decide_the_length(tmp_path, blocks, tokenizer):
    trainer = make_trainer(tmp_path, blocks, tokenizer, max_steps=-1, num_train_epochs=2)
    assert len(trainer.train_dataset) == trainer.args.max_steps * 8 <= 2 * len(blocks[0])
    assert trainer.args.max_steps == 2 * len(blocks[0]) // 8
    with pytest.raises(ValueError, match="do not fill one step"):
        make_trainer(tmp_path, blocks, tokenizer, max_steps=-1, num_train_epochs=0.01)
    with pytest.raises(ValueError, match="one stream of rows"):
        make_trainer(tmp_path, blocks, tokenizer, eval_strategy="epoch")
    with pytest.raises(ValueError, match=r"stream has 5 rows, but 6 steps of 8 rows need 48"):
        make_trainer(tmp_path, (RowStream(blocks[0], 5), blocks[1]), tokenizer)


def test_without_held_out_rows_it_warns_and_trains(tmp_path, blocks, tokenizer, caplog):
    trainer = make_trainer(tmp_path, (blocks[0], None), tokenizer)
    assert "will not be evaluated" in caplog.text
    trainer.train()


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path, blocks, tokenizer):
    class Poison(TrainerCallback):
        def on_step_begin(self, args, state, control, model=None, **kwargs):
            if state.global_step == 4:
                model.discriminator.electra.encoder.layer[0].output.dense.weight.data[0, 0] = float("nan")

    trainer = make_trainer(tmp_path, blocks, tokenizer, callbacks=[Poison()])
    with pytest.raises(DivergedError, match=r"Step 5: the loss is no longer finite.*checkpoint-3;"):
        trainer.train()
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-3"]
    assert all(math.isfinite(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry)
    kept = ElectraForRTDPretraining.from_pretrained(tmp_path / "checkpoint-3")
    assert all(parameter.isfinite().all() for parameter in kept.parameters())


def test_weights_that_are_not_finite_are_never_saved(tmp_path, blocks, tokenizer):
    class PoisonAtTheEnd(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **kwargs):
            if state.global_step == 6:
                model.generator.generator_lm_head.bias.data[3] = float("inf")

    # Logged too seldom for the loss to tell.
    trainer = make_trainer(tmp_path, blocks, tokenizer, callbacks=[PoisonAtTheEnd()], logging_steps=100)
    with pytest.raises(DivergedError, match="a weight is no longer finite"):
        trainer.train()
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-3"]


def test_without_checkpoints_a_run_that_diverged_ends_in_an_error_too(tmp_path, blocks, tokenizer):
    class PoisonAtTheEnd(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **kwargs):
            if state.global_step == 6:
                model.generator.generator_lm_head.bias.data[3] = float("nan")

    options = {"save_strategy": "no", "eval_strategy": "no"}
    trainer = make_trainer(tmp_path, blocks, tokenizer, callbacks=[PoisonAtTheEnd()], **options)
    with pytest.raises(DivergedError, match="There is no checkpoint yet"):
        trainer.train()


def test_rows_that_are_no_stream_are_shuffled_by_the_sampler(tmp_path, blocks, tokenizer):
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
    args = arguments(
        tmp_path,
        max_steps=300,
        per_device_train_batch_size=16,
        learning_rate=3e-3,
        warmup_steps=40,
        bias_correction=True,
        logging_steps=300,
        eval_steps=300,
        save_steps=300,
    )
    trainer = RTDTrainer(model, args, *blocks, processing_class=tokenizer)
    trainer.train()
    assert trainer.state.log_history[-2]["eval_discriminator_auc"] > 0.8


def test_a_collapsed_discriminator_is_told_once(tmp_path, blocks, tokenizer, caplog):
    trainer = make_trainer(tmp_path, blocks, tokenizer, max_steps=20, learning_rate=0.0, disable_tqdm=True)
    with torch.no_grad():
        head = trainer.model.discriminator.discriminator_predictions.dense_prediction
        head.weight.zero_()
        head.bias.fill_(-3.0)
    trainer.train()
    assert caplog.text.count("collapsed to the majority class") == 1


def test_a_long_warmup_is_told(tmp_path, blocks, tokenizer, caplog):
    make_trainer(tmp_path, blocks, tokenizer, warmup_steps=100).train()
    assert "The warm-up takes 100 steps, the whole run only 6" in caplog.text


def test_other_optimisers_and_schedules_are_taken_as_named(tmp_path, blocks, tokenizer):
    trainer = make_trainer(
        tmp_path, blocks, tokenizer, optim="adafactor", lr_scheduler_type="constant", warmup_steps=0
    )
    trainer.train()
    assert type(trainer.optimizer.optimizer).__name__ == "Adafactor"
    assert all(entry["learning_rate"] == 1e-2 for entry in trainer.state.log_history if "loss" in entry)


# ---- A plain Trainer ----


def plain(directory, model, train, held_out, collator, **options):
    args = TrainingArguments(
        output_dir=str(directory),
        max_steps=6,
        per_device_train_batch_size=8,
        eval_strategy="steps",
        eval_steps=2,
        save_steps=2,
        learning_rate=1e-2,
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
        greater_is_better=False,
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
        **options,
    )
    return Trainer(model, args, data_collator=collator, train_dataset=train, eval_dataset=held_out)


@pytest.mark.parametrize("collator", ["ours", "ours seeded", "language modelling"])
def test_a_plain_trainer_trains_evaluates_and_keeps_the_best_checkpoint(tmp_path, blocks, tokenizer, collator):
    train, held_out = blocks
    options = {}
    if collator == "ours":
        collator = DataCollatorForRTD(tokenizer)
    elif collator == "ours seeded":
        collator = DataCollatorForRTD(tokenizer, seed=0)
        train, held_out = RowStream(train), RowStream(held_out, shuffle=False)
        options["remove_unused_columns"] = False
    else:
        train, held_out = ([{"input_ids": rows[i]["input_ids"]} for i in range(len(rows))] for rows in blocks)
        collator = DataCollatorForLanguageModeling(tokenizer, mask_replace_prob=0.85, random_replace_prob=0.0)
    trainer = plain(tmp_path, ElectraForRTDPretraining(tiny_config()), train, held_out, collator, **options)
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
        set_seed(0)
        trainer = plain(
            tmp_path,
            ElectraForRTDPretraining(tiny_config()),
            RowStream(blocks[0]),
            RowStream(blocks[1], shuffle=False),
            DataCollatorForRTD(tokenizer, seed=0),
            remove_unused_columns=False,
            train_sampling_strategy="sequential",
            logging_steps=1,
            gradient_accumulation_steps=accumulation,
        )
        trainer.args.per_device_train_batch_size = trainer._train_batch_size = size
        trainer.train()
        first.append([(entry["loss"], entry["grad_norm"]) for entry in trainer.state.log_history if "loss" in entry])
    torch.testing.assert_close(torch.tensor(first[0]), torch.tensor(first[1]), rtol=1e-4, atol=1e-5)


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
