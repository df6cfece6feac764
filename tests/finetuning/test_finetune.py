"""The loss of a step, whatever batches it is cut into, and what becomes of rows on their way to predictions."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from hf_electra_rtd.finetuning.arguments import FineTuningArguments
from hf_electra_rtd.finetuning.data import EncodedSplit
from hf_electra_rtd.finetuning.examples import TaggedExample, TextExample
from hf_electra_rtd.finetuning.finetune import FineTuner
from hf_electra_rtd.finetuning.judging import Features, answer_split
from hf_electra_rtd.finetuning.kinds.base import Encoded, Encoding
from hf_electra_rtd.finetuning.kinds.registry import make_kind
from hf_electra_rtd.finetuning.loading import Split
from hf_electra_rtd.finetuning.tasks import Task
from hf_electra_rtd.ops import LossSum


WORDS = ["river", "mill", "letter", "garden", "horse", "night", "morning", "window", "door", "street"]
CLASSIFY = Task("own", "own", "Own", "en", "classification", ("accuracy",), "accuracy", ("no", "yes"))
REGRESS = dataclasses.replace(CLASSIFY, kind="regression", metrics=("pearson",), main_metric="pearson", labels=())
TAG = dataclasses.replace(CLASSIFY, kind="tagging", metrics=("f1",), main_metric="f1", labels=("O", "B-X", "I-X"))


def make_examples(kind: str, count: int = 48) -> list:
    draw = np.random.default_rng(0)
    sentences = [list(draw.choice(WORDS, draw.integers(2, 14))) for _ in range(count)]
    if kind == "tagging":
        return [
            TaggedExample(str(i), tuple(words), tuple(draw.choice(["O", "B-X", "I-X"], len(words))))
            for i, words in enumerate(sentences)
        ]
    labels = draw.uniform(0, 5, count).tolist() if kind == "regression" else draw.choice(["no", "yes"], count).tolist()
    return [
        TextExample(str(i), (" ".join(words),), label)
        for i, (words, label) in enumerate(zip(sentences, labels, strict=True))
    ]


def train_one_step(task, tokenizer, encoder, tmp_path, batch_size: int, accumulation: int) -> tuple[float, float]:
    """Logged loss and norm of the gradients of a step over 48 rows."""
    kind = make_kind(task, tokenizer, Encoding(32))
    model = kind.make_model(encoder, "transformers", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    # The same head in every run.
    torch.manual_seed(5)
    for name, parameter in model.named_parameters():
        if not name.startswith("electra."):
            torch.nn.init.normal_(parameter, std=0.5)
    args = FineTuningArguments(
        output_dir=str(tmp_path),
        learning_rate=1e-3,
        num_train_epochs=1,
        per_device_train_batch_size=batch_size,
        gradient_accumulation_steps=accumulation,
        logging_steps=1,
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
    )
    trainer = FineTuner(model, args, kind, 0.8, train=kind.encode(make_examples(task.kind), training=True))
    trainer.train()
    (step,) = (entry for entry in trainer.state.log_history if "grad_norm" in entry)
    return step["loss"], step["grad_norm"]


@pytest.mark.parametrize("task", [CLASSIFY, REGRESS, TAG], ids=lambda task: task.kind)
def test_a_step_in_batches_of_different_sizes_has_the_loss_and_gradient_of_one_batch(
    task, tokenizer, encoder, tmp_path
):
    whole = train_one_step(task, tokenizer, encoder, tmp_path, batch_size=48, accumulation=1)
    # 48 = 2 x 20 + 8: the last batch is smaller, and for tags no two batches have as many words.
    cut = train_one_step(task, tokenizer, encoder, tmp_path, batch_size=20, accumulation=3)
    assert cut == pytest.approx(whole, rel=1e-4)


def test_the_loss_of_evaluation_is_a_mean(tokenizer, encoder, tmp_path):
    kind = make_kind(CLASSIFY, tokenizer, Encoding(32))
    model = kind.make_model(encoder, "transformers").eval()
    args = FineTuningArguments(
        output_dir=str(tmp_path), learning_rate=1e-3, num_train_epochs=1, use_cpu=True, report_to="none"
    )
    trainer = FineTuner(model, args, kind, 0.8)
    batch = kind.collate(kind.encode(make_examples("classification"), training=False).features)
    loss = trainer.compute_loss(model, batch, num_items_in_batch=7)
    logits = model(**kind.inputs(batch, training=False)).logits.double()
    assert loss.item() == pytest.approx(torch.nn.functional.cross_entropy(logits, batch["labels"]).item(), rel=1e-5)


class _EchoKind:
    """Its model's output is the first token of a row; a prediction is that of the example's last feature."""

    def decode(self, outputs, encoded, examples):
        predictions = [None] * len(examples)
        for owner, output in zip(encoded.owners, outputs, strict=True):
            predictions[owner] = int(output)
        return predictions

    def score(self, predictions, examples):
        return {}

    def loss(self, outputs, batch) -> LossSum:
        raise AssertionError


@pytest.mark.parametrize("as_tuple", [False, True])
def test_predictions_come_back_to_their_examples_though_rows_are_sorted_by_length(as_tuple):
    draw = np.random.default_rng(3)
    features = [{"input_ids": [i] * int(draw.integers(1, 9))} for i in range(40)]
    owners = draw.permutation(40).tolist()
    seen: list[int] = []

    def run(rows: Features):
        seen.extend(len(feature["input_ids"]) for feature in rows.features)
        firsts = np.array([feature["input_ids"][0] for feature in rows.features])
        return (firsts, firsts) if as_tuple else firsts

    class Kind(_EchoKind):
        def decode(self, outputs, encoded, examples):
            return super().decode(outputs[1] if as_tuple else outputs, encoded, examples)

    split = EncodedSplit(Split([None] * 40, None, {}), Encoded(features, owners, [None] * 40))
    predictions, _ = answer_split(Kind(), split, run)
    assert seen == sorted(seen)
    assert predictions == [owners.index(place) for place in range(40)]


def test_rows_without_labels_among_labelled_ones_are_all_run_without():
    features = [{"input_ids": [1, 2], "labels": 0}, {"input_ids": [3]}]

    def run(rows: Features):
        assert all(feature.keys() == {"input_ids"} for feature in rows.features)
        return np.array([feature["input_ids"][0] for feature in rows.features])

    split = EncodedSplit(Split([None] * 2, None, {}), Encoded(features, [0, 1], [None] * 2))
    assert answer_split(_EchoKind(), split, run)[0] == [1, 3]


def test_an_optimizer_with_one_rate_is_refused_layer_decay(tokenizer, encoder, tmp_path):
    kind = make_kind(CLASSIFY, tokenizer, Encoding(32))
    args = FineTuningArguments(
        output_dir=str(tmp_path), learning_rate=1e-3, num_train_epochs=1, use_cpu=True, optim="adafactor"
    )
    with pytest.raises(ValueError, match="--layer_decay 1"):
        FineTuner(kind.make_model(encoder, "transformers"), args, kind, 0.8)
