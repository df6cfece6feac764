"""The loss of a step, whatever batches it is cut into."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from datasets import Dataset

from hf_electra_rtd.finetuning.arguments import FineTuningArguments
from hf_electra_rtd.finetuning.data import Split
from hf_electra_rtd.finetuning.heads import load_with_head
from hf_electra_rtd.finetuning.kinds import make_kind
from hf_electra_rtd.finetuning.reading import example_features
from hf_electra_rtd.finetuning.trainer import FineTuner
from hf_electra_rtd.tasks import Task
from tests.finetuning.conftest import WORDS


CLASSIFY = Task("own", "Own", labels=("no", "yes"))
REGRESS = dataclasses.replace(CLASSIFY, kind="regression", metrics=("pearson",), labels=())
TAG = dataclasses.replace(CLASSIFY, kind="tagging", metrics=("f1",), labels=("O", "B-X", "I-X"))


def make_trainer(task, tokenizer, encoder, directory, **options) -> FineTuner:
    """A trainer with 48 random examples, and the same head every time."""
    draw = np.random.default_rng(0)
    sentences = [draw.choice(WORDS, draw.integers(2, 14)).tolist() for _ in range(48)]
    columns = {"id": [str(index) for index in range(48)]}
    if task.kind == "tagging":
        columns |= {"words": sentences, "tags": [draw.choice(task.labels, len(words)).tolist() for words in sentences]}
    else:
        labels = draw.choice(["no", "yes"], 48) if task.kind == "classification" else draw.uniform(0, 5, 48)
        columns |= {"texts": [[" ".join(words)] for words in sentences], "label": labels.tolist()}
    kind = make_kind(task, tokenizer, 32)
    labels = task.labels if task.kind != "regression" else ()
    model = load_with_head(
        kind.auto_class, encoder, labels=labels, hidden_dropout_prob=0, attention_probs_dropout_prob=0
    )
    torch.manual_seed(5)
    for name, parameter in model.named_parameters():
        if not name.startswith("electra."):
            torch.nn.init.normal_(parameter, std=0.5)
    defaults = {"learning_rate": 1e-3, "num_train_epochs": 1, "logging_steps": 1, "report_to": "none"}
    args = FineTuningArguments(str(directory), use_cpu=True, disable_tqdm=True, **{**defaults, **options})
    examples = Dataset.from_dict(columns, features=example_features(task.kind))
    split = Split(examples, 0, {}, kind.encode(examples, training=True))
    return FineTuner(model, args, kind, 0.8, train=split, dev=split)


@pytest.mark.parametrize("task", [CLASSIFY, REGRESS, TAG], ids=lambda task: task.kind)
def test_a_step_in_batches_of_different_sizes_has_the_loss_and_gradient_of_one_batch(
    task, tokenizer, encoder, tmp_path
):
    steps = []
    # 48 = 2 x 20 + 8: the last batch is smaller, and for tags no two batches have as many words.
    for batch_size, accumulation in ((48, 1), (20, 3)):
        sizes = {"per_device_train_batch_size": batch_size, "gradient_accumulation_steps": accumulation}
        trainer = make_trainer(task, tokenizer, encoder, tmp_path, **sizes)
        trainer.train()
        (step,) = (entry for entry in trainer.state.log_history if "grad_norm" in entry)
        steps.append((step["loss"], step["grad_norm"]))
    assert steps[1] == pytest.approx(steps[0], rel=1e-4)


def test_the_loss_of_evaluation_is_a_mean_and_evaluate_scores_the_split_that_is_passed(tokenizer, encoder, tmp_path):
    trainer = make_trainer(CLASSIFY, tokenizer, encoder, tmp_path)
    model, kind, split = trainer.model.eval(), trainer.kind, trainer.dev
    batch = kind.collate(list(split.features))
    loss = trainer.compute_loss(model, batch, num_items_in_batch=7)
    logits = model(**{name: tensor for name, tensor in batch.items() if name != "labels"}).logits.double()
    assert loss.item() == pytest.approx(torch.nn.functional.cross_entropy(logits, batch["labels"]).item(), rel=1e-5)
    right = (logits.argmax(-1) == batch["labels"]).tolist()
    assert trainer.evaluate()["eval_accuracy"] == pytest.approx(np.mean(right))
    part = Split(split.examples.select(range(8)), 0, {}, split.features.select(range(8)))
    assert trainer.evaluate(part)["eval_accuracy"] == pytest.approx(np.mean(right[:8]))


def test_batches_hold_examples_of_similar_length_in_the_order_of_the_seed(tokenizer, encoder, tmp_path):
    orders = []
    for seed in (1, 1, 2):
        trainer = make_trainer(CLASSIFY, tokenizer, encoder, tmp_path, seed=seed, per_device_train_batch_size=4)
        torch.rand(seed)  # other draws do not matter
        orders.append(list(trainer._get_train_sampler()))
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == list(range(48))
    lengths = np.array(trainer.train_dataset["length"])[orders[0]].reshape(-1, 4)
    assert np.ptp(lengths, axis=1).mean() < np.ptp(lengths) / 4


def test_other_optimizers_and_schedules_are_those_of_transformers(tokenizer, encoder, tmp_path):
    trainer = make_trainer(CLASSIFY, tokenizer, encoder, tmp_path, optim="adafactor", lr_scheduler_type="cosine")
    trainer.create_optimizer_and_scheduler(10)
    assert type(trainer.optimizer).__name__ == "Adafactor"
    assert trainer.lr_scheduler.lr_lambdas[0].func.__name__.startswith("_get_cosine_schedule")
