import dataclasses
import logging

import pytest
from transformers import BertConfig, DistilBertConfig, ElectraConfig

from hf_electra_rtd import ElectraRTDConfig
from hf_electra_rtd.finetuning.recipe import Recipe, guess_size, recipe_for
from hf_electra_rtd.finetuning.tasks import Task


TASK = Task("rte", "glue", "RTE", "en", "classification", ("accuracy",), "accuracy", ("no", "yes"), epochs=10.0)


def config_of(size):
    return ElectraRTDConfig.from_size(size).discriminator_config


# Paper, Table 7. Tiny is ours.
@pytest.mark.parametrize(
    ("size", "learning_rate", "layer_decay"),
    [("tiny", 3e-4, 0.8), ("small", 3e-4, 0.8), ("base", 1e-4, 0.8), ("large", 5e-5, 0.9)],
)
def test_the_recipe_of_each_size_is_that_of_the_paper(size, learning_rate, layer_decay, caplog):
    caplog.set_level(logging.INFO)
    recipe = recipe_for(config_of(size), TASK)
    assert recipe == Recipe(
        size=size,
        learning_rate=learning_rate,
        layer_decay=layer_decay,
        epochs=10.0,
        warmup=0.1,
        weight_decay=0.0,
        batch_size=32,
        dropout=0.1,
    )
    assert recipe_for(config_of("base"), TASK, size=size) == recipe
    assert not caplog.records


def test_epochs_are_those_of_the_task():
    assert recipe_for(config_of("small"), dataclasses.replace(TASK, epochs=2.0)).epochs == 2.0


def test_adapters_learn_faster_and_at_one_rate():
    whole, adapters = (recipe_for(config_of("large"), TASK, peft=peft) for peft in (None, "lora"))
    assert adapters == dataclasses.replace(whole, learning_rate=1e-3, layer_decay=1.0)


@pytest.mark.parametrize(
    ("config", "size"),
    [
        (ElectraConfig(hidden_size=256, num_hidden_layers=24), "small"),  # the Chinese small-ex
        (BertConfig(), "base"),
        (BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096), "large"),
    ],
)
def test_the_shape_says_the_size(config, size, caplog):
    caplog.set_level(logging.INFO)
    assert guess_size(config) == size
    assert not caplog.records


@pytest.mark.parametrize(
    ("config", "size", "millions"),
    [
        # BERT-tiny and DistilBERT as published; BERT-base has 109.5 million, and 7.09 million a layer.
        (BertConfig(hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512), "small", 4.4),
        (DistilBertConfig(), "base", 66.4),
        (BertConfig(num_hidden_layers=24), "large", 194.5),
    ],
)
def test_where_no_shape_fits_the_parameters_say_it_and_the_log_says_so(config, size, millions, caplog):
    caplog.set_level(logging.INFO)
    assert guess_size(config) == size
    (message,) = caplog.messages
    assert f"{millions} million parameters it is fine-tuned as {size}" in message


def test_unknown_sizes_and_methods_are_refused():
    with pytest.raises(ValueError, match="no recipe for the size 'huge': choose one of tiny, small, base, large"):
        recipe_for(config_of("small"), TASK, size="huge")
    with pytest.raises(ValueError, match="no recipe for peft='ia3'"):
        recipe_for(config_of("small"), TASK, peft="ia3")
