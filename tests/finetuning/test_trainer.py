"""The loss of a step, however it is split into batches, and the learning rate at each depth."""

from __future__ import annotations

import dataclasses
import shutil

import numpy as np
import pytest
import torch
import transformers
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_electra_rtd import ElectraRTDConfig
from hf_electra_rtd.base.tasks import Task
from hf_electra_rtd.finetuning.arguments import FineTuningArguments
from hf_electra_rtd.finetuning.data import Split
from hf_electra_rtd.finetuning.heads import load_with_head
from hf_electra_rtd.finetuning.kinds import make_kind
from hf_electra_rtd.finetuning.plan import guess_size
from hf_electra_rtd.finetuning.reading import example_features
from hf_electra_rtd.finetuning.trainer import FineTuner, layerwise_groups
from tests.finetuning.conftest import WORDS


CLASSIFY = Task("own", "Own", labels=("no", "yes"))
REGRESS = dataclasses.replace(CLASSIFY, kind="regression", metrics=("pearson",), labels=())
TAG = dataclasses.replace(CLASSIFY, kind="tagging", metrics=("f1",), labels=("O", "B-X", "I-X"))


def make_trainer(task, tokenizer, encoder, directory, **options) -> FineTuner:
    """A trainer with 48 random examples, and the same head every time."""
    draw = np.random.default_rng(0)
    sentences = [draw.choice(WORDS, draw.integers(2, 14)).tolist() for _ in range(48)]
    if task.kind == "tagging":
        texts, labels = sentences, [draw.choice(task.labels, len(words)).tolist() for words in sentences]
    else:
        drawn = draw.choice(["no", "yes"], 48) if task.kind == "classification" else draw.uniform(0, 5, 48)
        texts, labels = [[" ".join(words)] for words in sentences], drawn.tolist()
    columns = {"id": [str(index) for index in range(48)], "texts": texts, "label": labels}
    kind, still = make_kind(task, tokenizer, 32), {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
    model = load_with_head(kind.auto_class, encoder, labels=task.labels, **still)
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
    # 48 = 2 x 20 + 8: the last batch is smaller, and for tags, no two batches have the same number of words.
    for batch_size, accumulation in ((48, 1), (20, 3)):
        sizes = {"per_device_train_batch_size": batch_size, "gradient_accumulation_steps": accumulation}
        trainer = make_trainer(task, tokenizer, encoder, tmp_path, **sizes)
        trainer.train()
        (step,) = (entry for entry in trainer.state.log_history if "grad_norm" in entry)
        steps.append((step["loss"], step["grad_norm"]))
    assert steps[1] == pytest.approx(steps[0], rel=1e-4)


def test_batches_of_similar_length_come_shuffled_in_an_order_of_seed_and_epoch(tokenizer, encoder, tmp_path):
    orders = []
    for seed, epoch in ((1, 0), (1, 0), (2, 0), (1, 1)):
        trainer = make_trainer(CLASSIFY, tokenizer, encoder, tmp_path, seed=seed, per_device_train_batch_size=4)
        torch.rand(seed)  # other draws do not matter
        sampler = trainer._get_train_sampler()
        sampler.set_epoch(epoch)
        orders.append(list(sampler))
        assert sorted(orders[-1]) == list(range(48))
        lengths = np.array(trainer.train_dataset["length"])[orders[-1]].reshape(-1, 4)
        assert np.ptp(lengths, axis=1).mean() < 4
        longest = lengths.max(axis=1)
        assert longest[0] == lengths.max()
        assert (np.diff(longest.reshape(-1, 3)) > 0).any()  # transformers would sort every three batches by length
    assert orders[0] == orders[1]
    assert len({tuple(order) for order in orders}) == 3


def test_the_loss_is_divided_by_the_labels_of_the_whole_step(tokenizer, encoder, tmp_path):
    trainer = make_trainer(CLASSIFY, tokenizer, encoder, tmp_path)
    model = trainer.model.eval()
    batch = trainer.kind.collate(list(trainer.kind.encode(trainer.dev.examples, training=True)))
    loss = trainer.compute_loss(model, batch, num_items_in_batch=7)
    logits = model(**{name: tensor for name, tensor in batch.items() if name != "labels"}).logits.double()
    total = torch.nn.functional.cross_entropy(logits, batch["labels"], reduction="sum").item()
    assert loss.item() == pytest.approx(total / 7, rel=1e-5)
    right = (logits.argmax(-1) == batch["labels"]).tolist()
    assert trainer.evaluate()["eval_accuracy"] == pytest.approx(np.mean(right))


# ---- Learning rates by depth ----


SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
SIZES["vocab_size"] = 10


def make_electra(num_layers):
    config = transformers.ElectraConfig(**{**SIZES, "num_hidden_layers": num_layers}, embedding_size=8)
    return transformers.ElectraForSequenceClassification(config)


def rates_by_name(model, groups):
    """Returns the learning rate of each parameter. Fails if a parameter is in two groups."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    rates = [(names[id(parameter)], group["lr"]) for group in groups for parameter in group["params"]]
    assert len(dict(rates)) == len(rates)
    return dict(rates)


def original_rate(name, learning_rate, decay, num_layers):
    """`_get_layer_lrs` of google-research/electra with its look-up by a part of the name, for transformers' names."""
    depths = {".embeddings.": 0, ".embeddings_project.": 0, "classifier.": num_layers + 2}
    depths |= {f"encoder.layer.{layer}.": layer + 1 for layer in range(num_layers)}
    (found,) = (depth for part, depth in depths.items() if part in name)
    return learning_rate * decay ** (num_layers + 2 - found)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([1, 2, 3, 5, 12]), st.floats(0.1, 0.99), st.floats(1e-6, 1e-2))
def test_rates_decay_as_by_the_formula_of_the_original_but_once_less(num_layers, decay, learning_rate):
    model = make_electra(num_layers)
    rates = rates_by_name(model, layerwise_groups(model, learning_rate, decay, 0.0))
    assert rates.keys() == dict(model.named_parameters()).keys()
    for name, rate in rates.items():
        wanted = original_rate(name, learning_rate, decay, num_layers)
        # The original decays everything but the head once more.
        wanted /= 1 if "classifier." in name else decay
        assert rate == pytest.approx(wanted, rel=1e-12)
    assert list(rates.values()) == sorted(rates.values(), reverse=True)  # the head comes first


def test_frozen_parameters_are_left_out_and_do_not_change_the_depths():
    model = make_electra(3)
    whole = rates_by_name(model, layerwise_groups(model, 1.0, 0.8, 0.0))
    model.electra.encoder.layer[2].requires_grad_(False)
    model.electra.embeddings.requires_grad_(False)
    rates = rates_by_name(model, layerwise_groups(model, 1.0, 0.8, 0.0))
    assert rates == {n: rate for n, rate in whole.items() if "layer.2." not in n and ".embeddings." not in n}


def test_layers_in_several_lists_are_as_deep_as_their_place():
    config = transformers.XLMConfig(vocab_size=10, emb_dim=16, n_layers=2, n_heads=2, max_position_embeddings=8)
    model = transformers.AutoModelForSequenceClassification.from_config(config)
    rates = rates_by_name(model, layerwise_groups(model, 1.0, 0.5, 0.0))
    assert rates.keys() == dict(model.named_parameters()).keys()
    depths = {"attentions.0.q_lin": 2, "ffns.1.lin1": 1, "embeddings": 3}
    assert [rates[f"transformer.{name}.weight"] for name in depths] == [0.5**depth for depth in depths.values()]


def test_width_and_depth_tell_the_size_and_a_guess_is_logged(caplog):
    caplog.set_level("INFO")
    for size in ("tiny", "mini", "small", "base"):
        assert guess_size(ElectraRTDConfig.from_size(size).discriminator_config) == size
    assert guess_size(transformers.DistilBertConfig()) == "base"
    assert not caplog.text
    assert guess_size(transformers.ElectraConfig(hidden_size=384)) == "small"
    assert "recipe of small" in caplog.text


def test_a_run_whose_best_checkpoint_is_gone_or_damaged_does_not_go_on(tokenizer, encoder, tmp_path):
    trainer = make_trainer(CLASSIFY, tokenizer, encoder, tmp_path, max_steps=2, save_strategy="steps", save_steps=2)
    trainer.train()
    trainer.state.best_global_step = 2
    trainer.callback_handler.on_train_begin(trainer.args, trainer.state, trainer.control)
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-2")
    weights = tmp_path / "checkpoint-2/model.safetensors"
    for damage in (lambda: weights.write_bytes(weights.read_bytes()[:100]), lambda: shutil.rmtree(weights.parent)):
        damage()
        with pytest.raises(ValueError, match="checkpoint-2"):
            trainer.callback_handler.on_train_begin(trainer.args, trainer.state, trainer.control)
