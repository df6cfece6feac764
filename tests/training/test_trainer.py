import inspect
import math
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    DataCollatorForLanguageModeling,
    Trainer,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
    set_seed,
)

from hf_electra_rtd import (
    DataCollatorForRTD,
    DivergedError,
    ElectraAdamW,
    ElectraForRTDPretraining,
    RTDTrainer,
    RTDTrainingArguments,
    SequenceStream,
    compute_rtd_metrics,
)
from hf_electra_rtd.data.preparation import prepare_blocks
from hf_electra_rtd.finetuning.trainer import FineTuner
from hf_electra_rtd.training.meters import Stopwatch
from hf_electra_rtd.training.trainer import held_out_stream
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
    """Calls a function with the model at the beginning or the end of a step."""

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
    log = trainer.state.log_history[0]
    names = ("grad_norm", "learning_rate", "epoch", "step", "sampled_accuracy", "tokens_per_second", "train_seconds")
    assert log.keys() >= {*names, "replaced_share", "generator_accuracy"}
    assert log["loss"] == pytest.approx(log["generator_loss"] + 50 * log["discriminator_loss"], rel=1e-5)
    eval_logs = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    assert len(eval_logs) == 3
    assert eval_logs[0].keys() >= {"eval_generator_accuracy", "eval_discriminator_auc", "eval_discriminator_recall"}
    assert 0.5 < eval_logs[0]["eval_bigram_auc"] < 1
    assert trainer.state.epoch == pytest.approx(30 * 8 / len(blocks[0]))
    assert trainer.state.total_flos == trainer.make_record().flops["model"]
    lines = capsys.readouterr().out
    assert all(part in lines for part in ("step 30/30  generator loss", "held out", "left"))


def test_metrics_of_ones_own_get_what_the_discriminator_says(tmp_path, blocks, tokenizer):
    def accuracy(gathered):
        logits, replaced, *_ = gathered.predictions
        return {"accuracy": ((logits > 0) == replaced).mean()}

    trainer = make_trainer(tmp_path, blocks, tokenizer, max_steps=20, save_strategy="no")
    trainer.train()
    expected = trainer.evaluate()["eval_discriminator_accuracy"]
    more = {"processing_class": tokenizer, "compute_metrics": accuracy}
    own = RTDTrainer(trainer.model, trainer.args, *blocks, **more).evaluate()["eval_accuracy"]
    assert 0 < own < 1
    assert own == pytest.approx(expected)


@pytest.mark.parametrize("more", [{}, {"objective": "electric", "generator": "two_tower"}], ids=["rtd", "electric"])
def test_a_plain_trainer_measures_what_ours_does(tmp_path, blocks, tokenizer, more):
    # Sequences of different lengths, so that batches are padded, to different lengths.
    short = [{"input_ids": blocks[1][index]["input_ids"][: 8 + 5 * (index % 4)]} for index in range(len(blocks[1]))]
    ours = make_trainer(tmp_path, (blocks[0], short), tokenizer, more=more, per_device_eval_batch_size=3)
    collator = DataCollatorForRTD(tokenizer, seed=ours.args.stream_seed, max_seq_length=32)
    options = {"per_device_eval_batch_size": 3, "use_cpu": True, "report_to": "none", "disable_tqdm": True}
    options |= {"remove_unused_columns": False}
    plain = Trainer(
        ours.model,
        TrainingArguments(str(tmp_path / "plain"), **options),
        data_collator=collator,
        eval_dataset=held_out_stream(short),
        compute_metrics=compute_rtd_metrics,
    )
    expected = ours.evaluate()
    found = plain.evaluate()
    names = (
        "generator_loss",
        *(f"discriminator_{name}" for name in ("loss", "auc", "precision", "recall", "accuracy")),
    )
    for name in names:
        assert found[f"eval_{name}"] == pytest.approx(expected[f"eval_{name}"], rel=1e-5), name


@pytest.mark.parametrize("objective", ["mlm", "replace_mlm", "rtd_masked_only"])
def test_metrics_of_detection_are_refused_for_other_objectives(tmp_path, blocks, tokenizer, objective):
    model = ElectraForRTDPretraining(tiny_config(objective=objective))
    more = {"processing_class": tokenizer, "compute_metrics": compute_rtd_metrics}
    trainer = RTDTrainer(model, arguments(tmp_path), *blocks, **more)
    with pytest.raises(ValueError, match="objective"):
        trainer.evaluate()


def test_held_out_metrics_are_the_same_at_every_evaluation_and_with_every_batch_size(tmp_path, blocks, tokenizer):
    trainer = make_trainer(tmp_path, blocks, tokenizer, per_device_eval_batch_size=3)
    first = trainer.evaluate()
    total = first["eval_generator_loss"] + 50 * first["eval_discriminator_loss"]
    assert first["eval_loss"] == pytest.approx(total, rel=1e-12)
    torch.manual_seed(99)
    before = torch.get_rng_state()
    trainer.evaluate()
    assert torch.equal(torch.get_rng_state(), before)  # the dropout that follows does not depend on an evaluation
    others = trainer.evaluate(), make_trainer(tmp_path, blocks, tokenizer, per_device_eval_batch_size=50).evaluate()
    for name, value in first.items():
        if not name.endswith(("runtime", "per_second", "preparation_time")):
            assert others[0][name] == value, name
            assert others[1][name] == pytest.approx(value, rel=1e-5), name


def test_muon_is_refused_where_matrices_are_split(tmp_path, blocks, tokenizer):
    trainer = make_trainer(tmp_path, blocks, tokenizer, optim="muon")
    trainer.is_fsdp_enabled = True
    with pytest.raises(ValueError, match="muon"):
        trainer.create_optimizer()


STABLE = {"lr_scheduler_type": "warmup_stable_decay", "lr_scheduler_kwargs": {"num_decay_steps": 2}}


@pytest.mark.parametrize(
    ("stop", "accumulation", "directory", "more"),
    [
        (4, 1, "parts", {}),
        (5, 2, "new", {"more": {"temperature": 0.5}}),
        (4, 1, "new", {"optim": "muon", **STABLE}),
    ],
)
def test_a_resumed_run_is_bit_for_bit_the_run_that_was_not_interrupted(
    tmp_path, blocks, tokenizer, stop, accumulation, directory, more
):
    options = {"dropout": 0.1, "gradient_accumulation_steps": accumulation, "per_device_train_batch_size": 4, **more}
    whole = make_trainer(tmp_path / "whole", blocks, tokenizer, **options)
    whole.train()
    interrupted = make_trainer(tmp_path / "parts", blocks, tokenizer, callbacks=[At(stop, interrupt)], **options)
    with pytest.raises(KeyboardInterrupt):
        interrupted.train()
    resumed = make_trainer(tmp_path / directory, blocks, tokenizer, **options)
    torch.manual_seed(1234)  # the new process may have drawn any numbers before
    resumed.train(resume_from_checkpoint=str(tmp_path / "parts" / "checkpoint-3"))
    assert not list(tmp_path.rglob("training_args.bin"))  # a pickle
    assert torch.equal(losses(whole), losses(resumed))
    assert_equal_weights(whole.model, resumed.model)
    for entry, expected in zip(resumed.state.log_history, whole.state.log_history, strict=True):
        assert [entry.get(name) for name in ("eval_loss", "epoch")] == [expected.get("eval_loss"), expected["epoch"]]


@pytest.fixture(scope="module")
def trained(blocks, tokenizer, tmp_path_factory):
    """The directory and the losses of a run of six steps."""
    trainer = make_trainer(tmp_path_factory.mktemp("trained"), blocks, tokenizer)
    trainer.train()
    return Path(trainer.args.output_dir), losses(trainer)


def test_a_resumed_run_is_not_evaluated_at_its_start_and_takes_no_step_after_the_last(tmp_path, blocks, tokenizer):
    def steps_of(event, checkpoint=None):
        collator = DataCollatorForRTD(tokenizer, max_seq_length=32)  # without a seed, the Trainer counts epochs
        flags = {"max_steps": -1, "num_train_epochs": 2, "eval_on_start": True, "eval_steps": 100, "save_steps": 1}
        model = ElectraForRTDPretraining(tiny_config())
        trainer = RTDTrainer(model, arguments(tmp_path, **flags), *few, tokenizer, collator)
        trainer.train(resume_from_checkpoint=checkpoint)
        assert trainer.args.eval_on_start  # the record shows the flag as given
        return [log["step"] for log in trainer.state.log_history if event in log]

    few = [blocks[0][index] for index in range(16)], [blocks[1][index] for index in range(4)]
    assert steps_of("eval_loss") == [0, 4]
    assert steps_of("eval_loss", str(tmp_path / "checkpoint-2")) == [0, 4]
    assert steps_of("loss", str(tmp_path / "checkpoint-4")) == [1, 2, 3, 4]
    assert not (tmp_path / "checkpoint-5").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_steps": 2}, "max_steps=2"),
        ({"seed": 1}, "seed was 42, now 1"),
        ({"document_attention": True}, "document_attention was False, now True"),
        ({"mask_probability": 0.3, "masking": "word"}, r"mask_probability was .*masking was token, now word"),
        ({"gradient_accumulation_steps": 2}, "sequences_per_step was 8, now 16"),
        ({"more": {"sharing": "gdes", "temperature": 0.5}}, r"sharing was .*gdes; .*temperature was 1\.0, now 0\.5"),
        ({"more": {"discriminator_weight": 20.0}}, r"discriminator_weight was 50\.0, now 20\.0"),
        ({"learning_rate": 1e-3}, r"learning_rate was 0\.01, now 0\.001"),
        ({"bias_correction": True}, "bias_correction was False, now True"),
        ({"generator_learning_rate": 1e-3}, "generator_learning_rate was None, now 0.001"),
        ({"more": {"generator": "uniform"}}, "generator was masked_lm, now uniform"),
        ({"optim": "adafactor"}, "optim was adamw_torch, now adafactor"),
        ({"max_grad_norm": 2.0}, r"max_grad_norm was 1\.0, now 2\.0"),
        ({"more": {"num_attention_heads": 4}}, r"discriminator\.num_attention_heads was 2, now 4"),
        ({"lr_scheduler_type": "cosine"}, "lr_scheduler_type was linear, now cosine"),
        ({"more": {"freeze_generator": True, "sharing": "none"}}, "freeze_generator was False, now True"),
    ],
)
def test_a_run_is_not_resumed_with_another_stream_model_or_optimizer(
    trained, tmp_path, blocks, tokenizer, options, message
):
    trainer = make_trainer(tmp_path, blocks, tokenizer, **options)
    with pytest.raises(ValueError, match=message):
        trainer.train(resume_from_checkpoint=str(trained[0] / "checkpoint-3"))


def test_a_run_that_becomes_longer_has_the_rates_of_the_longer_run_and_the_intervals_that_are_given_now(
    trained, tmp_path, blocks, tokenizer
):
    flags = {"max_steps": 8, "warmup_steps": 3, "logging_steps": 1}  # by default, the warm-up follows the length
    whole = make_trainer(tmp_path / "whole", blocks, tokenizer, **flags, save_strategy="no")
    whole.train()
    longer = make_trainer(tmp_path / "longer", blocks, tokenizer, **flags, save_steps=1)
    longer.train(resume_from_checkpoint=str(trained[0] / "checkpoint-6"))
    logs = ([log for log in each.state.log_history if "loss" in log][-2:] for each in (whole, longer))
    rates = [[(log["step"], log["learning_rate"]) for log in each] for each in logs]
    assert rates[0] == rates[1]
    assert rates[0][0][1] > 0
    assert {path.name for path in (tmp_path / "longer").glob("checkpoint-*")} == {"checkpoint-7", "checkpoint-8"}


def test_other_held_out_sequences_are_evaluated_and_predicted_as_those_of_the_constructor(tmp_path, blocks, tokenizer):
    trainer = make_trainer(tmp_path, blocks, tokenizer)
    expected = trainer.evaluate()["eval_generator_loss"]
    assert trainer.evaluate(blocks[1])["eval_generator_loss"] == expected
    assert trainer.predict(blocks[1]).metrics["test_generator_loss"] == expected


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")  # peft reads it; transformers warns
def test_a_model_arguments_and_blocks_that_do_not_fit_are_refused(tmp_path, blocks, tokenizer):
    model = ElectraForRTDPretraining(tiny_config())
    adapted = get_peft_model(model, LoraConfig(target_modules=["query"]))
    plain = TrainingArguments(str(tmp_path), use_cpu=True)
    longer = arguments(tmp_path, max_seq_length=64)
    for given, wrong in (((adapted, longer), "not PeftModel"), ((model, plain), "not TrainingArguments")):
        with pytest.raises(TypeError, match=wrong):
            RTDTrainer(*given, *blocks, processing_class=tokenizer)
    with pytest.raises(ValueError, match="max_seq_length=32, not 64"):
        RTDTrainer(model, longer, *blocks, processing_class=tokenizer)


def test_a_dataset_without_a_length_and_several_held_out_ones_are_refused(tmp_path, blocks, tokenizer):
    train, held_out = blocks
    endless = datasets.Dataset.from_dict({"input_ids": [[2, 9, 3]]}).to_iterable_dataset()
    for given, name in (((endless, held_out), "train_dataset"), ((train, {"a": held_out}), "eval_dataset")):
        with pytest.raises(ValueError, match=name):
            make_trainer(tmp_path, given, tokenizer)


def test_a_checkpoint_between_two_lines_of_the_log_knows_the_start_and_the_time_of_the_run(
    tmp_path, blocks, tokenizer
):
    flags = {"max_steps": 6, "save_steps": 3, "logging_steps": 100}
    first = make_trainer(tmp_path, blocks, tokenizer, **flags)
    first.record_facts["started"] = "2026-01-01T00:00:00+00:00"
    first.train()
    resumed = make_trainer(tmp_path, blocks, tokenizer, **flags, seed=2**32 - 1, data_seed=first.args.stream_seed)
    assert resumed.record_facts["started"] > first.record_facts["started"]
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert resumed.record_facts["started"] == first.record_facts["started"]
    (before,) = (log["train_seconds"] for log in resumed.state.log_history if log["step"] == 3 and "loss" in log)
    assert resumed.stopwatch.seconds > before > 0
    state = TrainerState.load_from_json(str(tmp_path / "checkpoint-3/trainer_state.json"))
    assert Stopwatch(state.log_history).seconds == before


def test_a_run_may_be_resumed_with_its_batches_split_otherwise(trained, tmp_path, blocks, tokenizer):
    split = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "dataloader_num_workers": 2}
    resumed = make_trainer(tmp_path, blocks, tokenizer, **split)
    resumed.train(resume_from_checkpoint=str(trained[0] / "checkpoint-3"))
    difference = (trained[1] - losses(resumed)).abs() / trained[1]
    assert difference.max() < 2e-5
    assert difference.mean() < 5e-6


def test_max_steps_or_epochs_decide_the_length(tmp_path, blocks, tokenizer):
    given = RTDTrainingArguments.from_size("tiny", str(tmp_path), max_steps=-1, num_train_epochs=2)
    assert (given.max_steps, given.eval_steps, given.warmup_steps) == (-1, 0.2, 0.1)  # shares of the run
    trainer = make_trainer(tmp_path, blocks, tokenizer, max_steps=-1, num_train_epochs=2)
    assert len(trainer.train_dataset) == trainer.args.max_steps * 8 <= 2 * len(blocks[0])
    assert trainer.args.max_steps == 2 * len(blocks[0]) // 8
    with pytest.raises(ValueError, match="do not fill one step"):
        make_trainer(tmp_path, blocks, tokenizer, max_steps=-1, num_train_epochs=0.01)
    with pytest.raises(ValueError, match=r"stream has 5 sequences, but 6 steps of 8 sequences need 48"):
        make_trainer(tmp_path, (SequenceStream(blocks[0], 5), blocks[1]), tokenizer)
    with pytest.raises(ValueError, match=r"stream has 5 sequences, but 1 steps of 8 sequences need 8"):
        make_trainer(tmp_path, (SequenceStream(blocks[0], 5), blocks[1]), tokenizer, max_steps=-1, num_train_epochs=1)
    stream = SequenceStream(blocks[0], 24)
    assert make_trainer(tmp_path, (stream, None), tokenizer, max_steps=-1, num_train_epochs=1).args.max_steps == 3


def test_trainers_of_the_same_arguments_do_not_change_each_other(tmp_path, blocks, tokenizer):
    given = arguments(tmp_path, max_steps=-1, num_train_epochs=1, eval_on_start=True)
    few = [blocks[0][index] for index in range(16)]
    first = RTDTrainer(ElectraForRTDPretraining(tiny_config()), given, few, processing_class=tokenizer)
    other = RTDTrainer(ElectraForRTDPretraining(tiny_config()), given, *blocks, processing_class=tokenizer)
    assert (first.args.eval_strategy, first.args.eval_on_start) == ("no", False)
    assert (other.args.eval_strategy, other.args.eval_on_start) == (given.eval_strategy, True)
    assert other.args.max_steps == len(blocks[0]) // 8 != first.args.max_steps


@pytest.mark.parametrize("option", [{"mask_probability": 0.4}, {"keep_probability": 0.0}, {"masking": "word"}])
def test_a_collator_that_masks_otherwise_than_the_arguments_is_refused(tmp_path, blocks, tokenizer, option):
    collator = DataCollatorForRTD(tokenizer, seed=42, max_seq_length=32, **option)
    with pytest.raises(ValueError, match=next(iter(option))):
        RTDTrainer(ElectraForRTDPretraining(tiny_config()), arguments(tmp_path), *blocks, data_collator=collator)


def test_without_held_out_sequences_it_warns_and_trains(tmp_path, blocks, tokenizer, caplog):
    trainer = make_trainer(tmp_path, (blocks[0], None), tokenizer)
    assert "is not evaluated" in caplog.text
    assert trainer._yardsticks == ()  # no bigram is counted if nothing is evaluated
    trainer.train()


def poison(model):
    model.generator.generator_lm_head.bias.data[3] = float("nan")


def blow_up(model):
    for parameter in model.parameters():
        parameter.data.fill_(1e30)


RARE = {"logging_steps": 100}  # too seldom for the logged loss to show it


@pytest.mark.parametrize(
    ("at", "options", "message", "left"),
    [
        (At(4, poison, "on_step_begin"), {}, "Step 5: the loss", 1),
        (At(6, poison), RARE, "Step 6: a weight", 1),
        (At(6, blow_up), RARE, "Step 6: the loss", 1),
        (At(6, poison), {**RARE, "save_strategy": "no", "eval_strategy": "no"}, "Step 6: a weight", 0),
    ],
)
def test_what_is_not_finite_stops_the_run_and_is_never_saved(tmp_path, blocks, tokenizer, at, options, message, left):
    trainer = make_trainer(tmp_path, blocks, tokenizer, callbacks=[at], **options)
    with pytest.raises(DivergedError, match=f"{message} is no longer finite"):
        trainer.train()
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-3"][:left]
    assert all(math.isfinite(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry)


def test_sequences_that_are_no_stream_are_shuffled_by_the_sampler(tmp_path, blocks, tokenizer):
    model, collator = ElectraForRTDPretraining(tiny_config()), DataCollatorForRTD(tokenizer)
    ours = make_trainer(tmp_path, blocks, tokenizer)
    assert type(ours._get_train_sampler()).__name__ == "SequentialSampler"
    other = RTDTrainer(model, arguments(tmp_path), *blocks, processing_class=tokenizer, data_collator=collator)
    assert type(other._get_train_sampler()).__name__ == "RandomSampler"


def test_a_discriminator_that_reads_no_context_and_a_long_warmup_are_warned_of_once(
    tmp_path, blocks, tokenizer, caplog
):
    trainer = make_trainer(tmp_path, blocks, tokenizer, max_steps=20, learning_rate=0.0, warmup_steps=100)
    with torch.no_grad():
        head = trainer.model.discriminator.discriminator_predictions.dense_prediction
        head.weight.zero_()
        head.bias.fill_(-3.0)
    trainer.train()
    told = "the discriminator is still near chance"
    assert caplog.text.count(f"Step 9: {told}") == caplog.text.count(told) == 1
    assert "warmup_steps=100" in caplog.text


# ---- A plain Trainer ----


@pytest.mark.parametrize("kind", ["ours", "ours seeded", "language modelling"])
def test_a_plain_trainer_trains_evaluates_and_keeps_the_best_checkpoint(tmp_path, blocks, tokenizer, kind):
    values = {"output_dir": str(tmp_path), "max_steps": 6, "learning_rate": 1e-2, "report_to": "none"}
    values |= {"eval_strategy": "steps", "eval_steps": 2, "save_steps": 2, "load_best_model_at_end": True}
    values |= {"metric_for_best_model": "eval_loss", "greater_is_better": False, "use_cpu": True, "disable_tqdm": True}
    collator, (train, held_out) = DataCollatorForRTD(tokenizer, seed=0 if kind == "ours seeded" else None), blocks
    if kind == "ours seeded":
        train, held_out = SequenceStream(train), SequenceStream(held_out, shuffle=False)
        values["remove_unused_columns"] = False
    elif kind == "language modelling":
        train, held_out = ([{"input_ids": each[i]["input_ids"]} for i in range(len(each))] for each in blocks)
        collator = DataCollatorForLanguageModeling(tokenizer, mask_replace_prob=0.85, random_replace_prob=0.0)
    model = ElectraForRTDPretraining(tiny_config())
    trainer = Trainer(model, TrainingArguments(**values), collator, train, held_out)
    trainer.train()
    evaluations = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert (len(evaluations), trainer.state.best_metric) == (3, min(evaluations))
    assert_equal_weights(model, ElectraForRTDPretraining.from_pretrained(trainer.state.best_model_checkpoint))
    if kind == "ours seeded":
        assert trainer.evaluate()["eval_loss"] == pytest.approx(min(evaluations), rel=1e-6)


def test_a_plain_trainers_loss_does_not_depend_on_accumulation(tmp_path, blocks, tokenizer):
    first = []
    for size, accumulation in ((8, 1), (2, 4)):
        values = {"remove_unused_columns": False, "train_sampling_strategy": "sequential", "logging_steps": 1}
        values |= {"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulation, "max_steps": 6}
        args = TrainingArguments(str(tmp_path), **values, use_cpu=True, report_to="none", save_strategy="no")
        set_seed(0)
        model, collator = ElectraForRTDPretraining(tiny_config()), DataCollatorForRTD(tokenizer, seed=0)
        trainer = Trainer(model, args, collator, SequenceStream(blocks[0]))
        trainer.train()
        first.append([(entry["loss"], entry["grad_norm"]) for entry in trainer.state.log_history if "loss" in entry])
    torch.testing.assert_close(torch.tensor(first[0]), torch.tensor(first[1]), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_model_trains_evaluates_saves_and_goes_on_as_any_other(tmp_path, blocks, tokenizer):
    finals = []
    for name, options in (("eager", {}), ("compiled", {"torch_compile": True, "torch_compile_backend": "aot_eager"})):
        torch.compiler.reset()
        torch._dynamo.utils.counters.clear()
        flags = {"max_steps": 6, "save_steps": 3, "eval_steps": 3, **options}
        make_trainer(tmp_path / name, blocks, tokenizer, **flags).train()
        resumed = make_trainer(tmp_path / name, blocks, tokenizer, **flags)
        resumed.train(resume_from_checkpoint=str(tmp_path / name / "checkpoint-3"))
        finals.append(resumed)
    eager, compiled = finals
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1  # two trainers share one graph
    assert not torch._dynamo.utils.counters["graph_break"]
    for key, weight in eager.model.state_dict().items():
        torch.testing.assert_close(compiled.model.state_dict()[key], weight, rtol=1e-4, atol=1e-5)
    assert [log.keys() for log in eager.state.log_history] == [log.keys() for log in compiled.state.log_history]
    assert ElectraForRTDPretraining.from_pretrained(tmp_path / "compiled" / "checkpoint-6")


def test_the_discriminator_learns_what_context_can_tell(tmp_path, tokenizer):
    # Every word of this text determines the next one. So a replaced word stands out, but only to a model that reads
    # its neighbors.
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
    # At this temperature, the generator samples all words about equally often, so no word gives itself away.
    model = ElectraForRTDPretraining(tiny_config(temperature=20.0, **options))
    flags = {"max_steps": 200, "per_device_train_batch_size": 16, "learning_rate": 3e-3, "warmup_steps": 40}
    flags |= {"bias_correction": True, "logging_steps": 200, "eval_steps": 200, "save_strategy": "no"}
    trainer = make_trainer(tmp_path, blocks, tokenizer, model=model, **flags)
    trainer.train()
    assert trainer.state.log_history[-2]["eval_discriminator_auc"] > 0.8


RUN_EPOCH = [
    "self",
    "model",
    "epoch",
    "train_dataloader",
    "steps_in_epoch",
    "num_update_steps_per_epoch",
    "trial",
    "ignore_keys_for_eval",
    "start_time",
    "resume_from_checkpoint",
    "epochs_trained",
    "steps_trained_in_current_epoch",
]
# The private methods of `transformers.Trainer` that are overridden, with their arguments. Check them after an upgrade.
OVERRIDDEN = {
    RTDTrainer: {
        "_issue_warnings_after_load": ["self", "load_result"],
        "_run_epoch": RUN_EPOCH,
        "_save_checkpoint": ["self", "model", "trial"],
    },
    FineTuner: {
        "_get_eval_sampler": ["self", "eval_dataset"],
        "_get_train_sampler": ["self", "train_dataset"],
        "_run_epoch": RUN_EPOCH,
        "_save_checkpoint": ["self", "model", "trial"],
    },
}


@pytest.mark.parametrize("kind", OVERRIDDEN)
def test_the_trainer_of_transformers_still_has_the_private_methods_that_are_overridden(kind):
    ours = kind.__mro__[: kind.__mro__.index(Trainer)]
    names = {name for one in ours for name in vars(one) if name[0] == "_" != name[1] and hasattr(Trainer, name)}
    signatures = {name: list(inspect.signature(getattr(Trainer, name)).parameters) for name in names}
    assert signatures == OVERRIDDEN[kind]
