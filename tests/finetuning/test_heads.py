import json
import re

import pytest
import safetensors.torch
import torch
from peft import AutoPeftModelForSequenceClassification, AutoPeftModelForTokenClassification
from transformers import (
    AutoConfig,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    ElectraConfig,
    ElectraForPreTraining,
    PreTrainedConfig,
    T5Config,
)

from hf_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.finetuning.heads import (
    add_adapters,
    load_fine_tuned,
    load_with_head,
    save_adapters,
)
from tests.conftest import tiny_config


CLASSES = AutoModelForSequenceClassification
TAGS = AutoModelForTokenClassification
ANSWERS = AutoModelForQuestionAnswering
CHOICE = AutoModelForMultipleChoice
LABELS = ("entailment", "neutral", "contradiction")
IDS = torch.tensor([[2, 7, 8, 9, 3], [2, 10, 11, 12, 3]])


def electra_config(**options):
    sizes = {"vocab_size": 20, "embedding_size": 8, "hidden_size": 16, "num_hidden_layers": 2}
    return ElectraConfig(
        **{**sizes, "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 8, **options}
    )


def saved(model, directory):
    model.save_pretrained(directory)
    return directory


ELECTRA = ElectraForPreTraining(electra_config())


@pytest.fixture
def discriminator(tmp_path):
    return saved(ELECTRA, tmp_path / "tower")


def same_tensors(one, other):
    one = one.state_dict()
    other = other.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


@torch.no_grad()
def logits(model):
    return model.eval()(IDS).logits


def test_weights_are_float32_and_in_training_mode_whatever_the_file_holds(tmp_path):
    source = saved(ElectraForPreTraining(electra_config()).to(torch.bfloat16), tmp_path)
    for options in ({}, {"from_scratch": True}):
        model = load_with_head(CLASSES, source, labels=LABELS, **options)
        assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
        assert all(module.training for module in model.modules())


def test_of_a_run_and_of_a_saved_pair_the_discriminator_is_taken(tmp_path):
    pair = ElectraForRTDPretraining(tiny_config())
    pair.save_pretrained(tmp_path / "checkpoint")
    pair.save_towers(tmp_path / "run")
    for source in ("checkpoint", "run"):
        model = load_with_head(CLASSES, tmp_path / source, labels=LABELS)
        assert same_tensors(model.electra, pair.native_discriminator().electra)
        drawn = load_with_head(CLASSES, tmp_path / source, labels=LABELS, from_scratch=True)
        weight = drawn.electra.encoder.layer[0].intermediate.dense.weight
        assert not torch.equal(weight, model.electra.encoder.layer[0].intermediate.dense.weight)


def test_labels_and_options_are_in_the_configuration_that_is_saved_and_outputs_are_the_tasks(tmp_path, discriminator):
    dropouts = {"hidden_dropout_prob": 0.3, "classifier_dropout": 0.2}
    model = load_with_head(CLASSES, discriminator, labels=LABELS, **dropouts)
    assert model.electra.encoder.layer[0].output.dropout.p == 0.3
    assert model.classifier.dropout.p == 0.2
    config = json.loads((saved(model, tmp_path) / "config.json").read_text())
    assert config["id2label"] == {"0": "entailment", "1": "neutral", "2": "contradiction"}
    assert config["label2id"] == {"entailment": 0, "neutral": 1, "contradiction": 2}
    number = load_with_head(CLASSES, discriminator)
    assert (number.config.num_labels, number.config.problem_type) == (1, "regression")
    answers = load_with_head(ANSWERS, saved(number, tmp_path / "number"))
    assert (answers.config.num_labels, answers.config.problem_type) == (2, None)
    assert answers.eval()(IDS).start_logits.shape == (2, 5)
    assert logits(load_with_head(TAGS, saved(answers, tmp_path / "answers"), labels=LABELS)).shape == (2, 5, 3)
    assert load_with_head(CHOICE, tmp_path).eval()(IDS[None]).logits.shape == (1, 2)  # the source had three labels


@pytest.mark.parametrize("labels", [LABELS, ()])
def test_a_fine_tuned_head_is_kept_and_saved_whole(tmp_path, discriminator, labels):
    model = load_with_head(CLASSES, discriminator, labels)
    saved(model, tmp_path)
    for again in (load_fine_tuned(CLASSES, tmp_path, labels), load_with_head(CLASSES, tmp_path, labels)):
        assert type(again) is type(model)
        assert same_tensors(again, model)
    assert same_tensors(type(model).from_pretrained(tmp_path), model)
    answers = load_with_head(ANSWERS, discriminator)
    assert same_tensors(load_fine_tuned(ANSWERS, saved(answers, tmp_path / "answers"), ()), answers)


@pytest.mark.parametrize(
    ("auto_class", "peft_class"),
    [(CLASSES, AutoPeftModelForSequenceClassification), (TAGS, AutoPeftModelForTokenClassification)],
)
def test_adapters_load_whole_with_peft_alone_and_carry_their_labels(tmp_path, discriminator, auto_class, peft_class):
    model = load_with_head(auto_class, discriminator, labels=LABELS)
    adapted = add_adapters(model, discriminator, r=2)
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.5)
    save_adapters(adapted, tmp_path / "adapters")
    labels = AutoConfig.from_pretrained(tmp_path / "adapters").id2label
    again = peft_class.from_pretrained(tmp_path / "adapters", id2label=labels)
    assert tuple(again.config.id2label.values()) == LABELS
    torch.testing.assert_close(logits(again), logits(adapted), rtol=0, atol=0)


@pytest.mark.parametrize("auto_class", [CLASSES, TAGS])
@pytest.mark.parametrize("other", [("neutral", "entailment", "contradiction"), LABELS[:2]])
def test_other_labels_than_those_of_a_fine_tuned_model_get_a_new_head_or_are_refused(
    auto_class, other, tmp_path, discriminator, caplog
):
    caplog.set_level("INFO")  # before the first load, as some messages appear only once
    tuned = load_with_head(auto_class, discriminator, labels=LABELS)
    saved(tuned, tmp_path)
    for wrong in (other, ()) if auto_class is CLASSES else (other,):
        with pytest.raises(ValueError, match=re.escape(str(tmp_path))):
            load_fine_tuned(auto_class, tmp_path, wrong)
    model = load_with_head(auto_class, tmp_path, labels=other)
    assert "the head is new" in caplog.text
    assert same_tensors(model.electra, tuned.electra)
    assert tuple(model.config.id2label.values()) == other


@pytest.mark.parametrize(
    ("source", "auto_class", "message"),
    [
        (T5Config(), CHOICE, "AutoModelForMultipleChoice .*'t5'"),
        (PreTrainedConfig(), CLASSES, "configuration"),
    ],
)
def test_a_source_that_cannot_have_the_head_is_refused(tmp_path, source, auto_class, message):
    with pytest.raises(ValueError, match=message):
        load_with_head(auto_class, saved(source, tmp_path), LABELS)


ENCODER_TENSOR = "electra.encoder.layer.1.output.dense.weight"
HEAD_TENSOR = "classifier.out_proj.weight"


@pytest.mark.parametrize(
    ("tuned", "removed", "added", "message"),
    [
        (True, HEAD_TENSOR, None, HEAD_TENSOR),
        (False, ENCODER_TENSOR, None, ENCODER_TENSOR),
        (False, None, "electra.encoder.layer.2.x", "electra.encoder.layer.2.x"),
    ],
)
def test_missing_and_foreign_tensors_are_refused(tuned, removed, added, message, tmp_path, discriminator):
    directory = saved(load_with_head(CLASSES, discriminator, labels=LABELS), tmp_path) if tuned else discriminator
    tensors = safetensors.torch.load_file(directory / "model.safetensors")
    tensors.pop(removed, None)
    tensors |= {added: torch.ones(2)} if added else {}
    safetensors.torch.save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=message):
        load_with_head(CLASSES, directory, labels=LABELS)
    with pytest.raises(ValueError, match=r"intermediate\.dense\.weight \(32, 16\), not \(24, 16\)"):
        load_with_head(CLASSES, saved(ELECTRA, tmp_path), labels=LABELS, intermediate_size=24)
