import json
import logging
import math

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F  # noqa: N812
from transformers import (
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertModel,
    DistilBertConfig,
    DistilBertForMaskedLM,
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForMultipleChoice,
    ElectraForPreTraining,
    ElectraForQuestionAnswering,
    ElectraForSequenceClassification,
    ElectraModel,
    T5Config,
)

from hf_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.finetuning.heads import PaperElectraForSequenceClassification, load_with_head
from tests.conftest import tiny_config


LABELS = ("entailment", "neutral", "contradiction")
IDS = torch.tensor([[2, 7, 8, 9, 3], [2, 10, 11, 12, 3]])
AUTO_CLASSES = [
    (AutoModelForSequenceClassification, LABELS, (2, 3)),
    (AutoModelForSequenceClassification, (), (2, 1)),
    (AutoModelForTokenClassification, LABELS, (2, 5, 3)),
]


def electra_config(**options):
    sizes = {"vocab_size": 20, "embedding_size": 8, "hidden_size": 16, "num_hidden_layers": 2}
    return ElectraConfig(
        **{**sizes, "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 8, **options}
    )


def bert_config():
    return BertConfig(vocab_size=20, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)


def saved(model, directory):
    model.save_pretrained(directory)
    return directory


@pytest.fixture
def discriminator(tmp_path):
    return saved(ElectraForPreTraining(electra_config()), tmp_path / "tower")


def same_tensors(one, other):
    one, other = one.state_dict(), other.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def logits(model):
    with torch.no_grad():
        return model.eval()(IDS).logits


# ---- Encoders ----


@pytest.mark.parametrize("head", ["transformers", "paper"])
@pytest.mark.parametrize("saved_as", [ElectraForPreTraining, ElectraForMaskedLM, ElectraModel])
def test_the_whole_encoder_comes_from_the_source(tmp_path, saved_as, head):
    source = saved_as(electra_config())
    model = load_with_head(AutoModelForSequenceClassification, saved(source, tmp_path), head, LABELS)
    assert same_tensors(model.electra, source.base_model)
    assert logits(model).shape == (2, 3)


@pytest.mark.parametrize(("auto_class", "labels", "shape"), AUTO_CLASSES)
@pytest.mark.parametrize("saved_as", [BertForMaskedLM, BertForPreTraining, BertModel])
def test_other_encoders_load_with_and_without_their_pooler(tmp_path, saved_as, auto_class, labels, shape):
    source = saved_as(bert_config())
    model = load_with_head(auto_class, saved(source, tmp_path), labels=labels)
    assert same_tensors(model.bert.encoder, source.base_model.encoder)
    assert logits(model).shape == shape


def test_question_answering_has_two_outputs_and_multiple_choice_one_whatever_the_source_had(tmp_path, discriminator):
    fine_tuned = saved(load_with_head(AutoModelForSequenceClassification, discriminator, labels=LABELS), tmp_path)
    answers = load_with_head(AutoModelForQuestionAnswering, fine_tuned)
    assert answers.eval()(IDS).start_logits.shape == (2, 5)
    choice = load_with_head(AutoModelForMultipleChoice, fine_tuned)
    assert choice.eval()(IDS[None]).logits.shape == (1, 2)


def test_weights_are_float32_and_in_training_mode_whatever_the_file_holds(tmp_path):
    source = saved(ElectraForPreTraining(electra_config()).to(torch.bfloat16), tmp_path)
    for options in ({}, {"from_scratch": True}):
        model = load_with_head(AutoModelForSequenceClassification, source, labels=LABELS, **options)
        assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
        assert all(module.training for module in model.modules())


def test_of_a_run_and_of_a_saved_pair_the_discriminator_is_taken(tmp_path):
    pair = ElectraForRTDPretraining(tiny_config())
    pair.save_pretrained(tmp_path / "checkpoint")
    pair.save_towers(tmp_path / "run")
    for source in ("checkpoint", "run"):
        model = load_with_head(AutoModelForSequenceClassification, tmp_path / source, labels=LABELS)
        assert same_tensors(model.electra, pair.native_discriminator().electra)
        drawn = load_with_head(AutoModelForSequenceClassification, tmp_path / source, labels=LABELS, from_scratch=True)
        assert drawn.config.hidden_size == 32


def test_from_scratch_takes_the_configuration_alone(tmp_path):
    source = ElectraForSequenceClassification(electra_config(id2label={0: "a", 1: "b"}))
    source.config.save_pretrained(tmp_path)  # there are no weights at all
    model = load_with_head(AutoModelForSequenceClassification, tmp_path, labels=LABELS, from_scratch=True)
    weight = model.electra.encoder.layer[0].intermediate.dense.weight
    assert weight.std().item() == pytest.approx(0.02, rel=0.2)
    assert not torch.equal(weight, source.electra.encoder.layer[0].intermediate.dense.weight)


def test_the_report_of_tensors_left_aside_is_kept_off_the_log(discriminator, caplog):
    caplog.set_level(logging.WARNING)
    load_with_head(AutoModelForSequenceClassification, discriminator, labels=LABELS)
    load_with_head(AutoModelForQuestionAnswering, discriminator)
    assert not caplog.records
    # Only there: the next one who loads is told again.
    ElectraForSequenceClassification.from_pretrained(discriminator)
    assert any("LOAD REPORT" in message for message in caplog.messages)


# ---- Configuration ----


def test_labels_and_options_are_in_the_configuration_that_is_saved(tmp_path, discriminator):
    model = load_with_head(
        AutoModelForSequenceClassification,
        discriminator,
        labels=LABELS,
        hidden_dropout_prob=0.3,
        classifier_dropout=0.2,
    )
    assert model.electra.encoder.layer[0].output.dropout.p == 0.3
    assert model.classifier.dropout.p == 0.2
    config = json.loads((saved(model, tmp_path) / "config.json").read_text())
    assert config["id2label"] == {"0": "entailment", "1": "neutral", "2": "contradiction"}
    assert config["label2id"] == {"entailment": 0, "neutral": 1, "contradiction": 2}
    number = load_with_head(AutoModelForSequenceClassification, discriminator)
    assert (number.config.num_labels, number.config.problem_type) == (1, "regression")
    answers = load_with_head(AutoModelForQuestionAnswering, saved(number, tmp_path / "number"))
    assert (answers.config.num_labels, answers.config.problem_type) == (2, None)


def test_options_that_do_not_fit_the_architecture_are_refused(tmp_path, discriminator):
    with pytest.raises(ValueError, match="type 'electra', whose configuration has no droput"):
        load_with_head(AutoModelForSequenceClassification, discriminator, labels=LABELS, droput=0.1)
    with pytest.raises(ValueError, match="hidden_dropout_prob='a lot' does not fit"):
        load_with_head(AutoModelForSequenceClassification, discriminator, labels=LABELS, hidden_dropout_prob="a lot")
    distilled = DistilBertForMaskedLM(DistilBertConfig(vocab_size=20, dim=16, n_layers=1, n_heads=2, hidden_dim=16))
    saved(distilled, tmp_path)
    with pytest.raises(ValueError, match="type 'distilbert', whose configuration has no hidden_dropout_prob"):
        load_with_head(AutoModelForSequenceClassification, tmp_path, labels=LABELS, hidden_dropout_prob=0.1)


# ---- Fine-tuned models ----


@pytest.mark.parametrize("head", ["transformers", "paper"])
@pytest.mark.parametrize("labels", [LABELS, ()])
def test_a_fine_tuned_head_is_kept_and_saved_whole(tmp_path, discriminator, head, labels):
    model = load_with_head(AutoModelForSequenceClassification, discriminator, head, labels)
    saved(model, tmp_path)
    again = load_with_head(AutoModelForSequenceClassification, tmp_path, labels=labels)
    assert type(again) is type(model)
    assert same_tensors(again, model)
    torch.testing.assert_close(logits(again), logits(model))


def test_a_fine_tuned_model_of_another_class_gets_a_new_head(tmp_path):
    source = saved(ElectraForQuestionAnswering(electra_config()), tmp_path)
    model = load_with_head(AutoModelForTokenClassification, source, labels=LABELS)
    assert logits(model).shape == (2, 5, 3)


@pytest.mark.parametrize("labels", [("neutral", "entailment", "contradiction"), LABELS[:2], ("a", "b", "c")])
@pytest.mark.parametrize("auto_class", [AutoModelForSequenceClassification, AutoModelForTokenClassification])
def test_labels_of_another_task_are_refused_and_both_lists_told(tmp_path, discriminator, auto_class, labels):
    saved(load_with_head(auto_class, discriminator, labels=LABELS), tmp_path)
    with pytest.raises(ValueError, match=f"it has {', '.join(LABELS)} .*, the task {', '.join(labels)}"):
        load_with_head(auto_class, tmp_path, labels=labels)


def test_numbers_and_labels_are_not_mixed_up(tmp_path, discriminator):
    saved(load_with_head(AutoModelForSequenceClassification, discriminator, labels=LABELS), tmp_path / "classes")
    with pytest.raises(ValueError, match=r"fine-tuned for the classes entailment, .*, not for a number"):
        load_with_head(AutoModelForSequenceClassification, tmp_path / "classes")
    saved(load_with_head(AutoModelForSequenceClassification, discriminator), tmp_path / "number")
    with pytest.raises(ValueError, match="fine-tuned for other labels"):
        load_with_head(AutoModelForSequenceClassification, tmp_path / "number", labels=LABELS)


def test_a_fine_tuned_model_without_its_head_is_refused(tmp_path, discriminator):
    saved(load_with_head(AutoModelForSequenceClassification, discriminator, labels=LABELS), tmp_path)
    tensors = safetensors.torch.load_file(tmp_path / "model.safetensors")
    del tensors["classifier.out_proj.weight"]
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks tensors: classifier\.out_proj\.weight"):
        load_with_head(AutoModelForSequenceClassification, tmp_path, labels=LABELS)


# ---- The paper's head ----


@settings(max_examples=10, deadline=None)
@given(hidden=st.sampled_from([16, 64]), num_labels=st.integers(2, 6), seed=st.integers(0, 100))
def test_the_papers_head_is_one_glorot_uniform_layer_on_cls(tmp_path_factory, hidden, num_labels, seed):
    directory = tmp_path_factory.mktemp("tower")
    electra_config(hidden_size=hidden).save_pretrained(directory)
    torch.manual_seed(seed)
    names = [str(index) for index in range(num_labels)]
    model = load_with_head(AutoModelForSequenceClassification, directory, "paper", names, from_scratch=True)
    dense = model.classifier.out_proj
    # tf.layers.dense: uniform within +-sqrt(6 / (inputs + outputs)), far wider than transformers' 0.02.
    limit = math.sqrt(6 / (hidden + num_labels))
    assert 0.7 * limit < dense.weight.abs().max().item() <= limit
    assert not dense.bias.any()
    cls = model.eval().electra(IDS).last_hidden_state[:, 0]
    torch.testing.assert_close(model(IDS).logits, F.linear(cls, dense.weight, dense.bias))


def test_the_papers_head_drops_features_of_cls_while_training(discriminator):
    model = load_with_head(
        AutoModelForSequenceClassification, discriminator, "paper", LABELS, hidden_dropout_prob=0.25
    )
    assert model.classifier.dropout.p == 0.25
    seen = model.classifier.dropout(torch.ones(10_000))
    assert seen.eq(0).float().mean().item() == pytest.approx(0.25, abs=0.02)


def test_the_papers_multiple_choice_is_the_stock_class_so_configured(tmp_path, discriminator):
    model = load_with_head(AutoModelForMultipleChoice, discriminator, "paper", hidden_dropout_prob=0.3)
    assert type(model) is ElectraForMultipleChoice
    assert model.sequence_summary.last_dropout.p == 0.3
    assert model.classifier.weight.abs().max().item() > 0.2  # Glorot: up to 0.59, not a normal of 0.02
    assert not model.classifier.bias.any()
    cls = model.eval().electra(IDS).last_hidden_state[:, 0]
    wanted = F.linear(cls, model.classifier.weight).view(1, 2)
    torch.testing.assert_close(model(IDS[None]).logits, wanted)
    again = ElectraForMultipleChoice.from_pretrained(saved(model, tmp_path))
    torch.testing.assert_close(again(IDS[None]).logits, wanted)


def test_a_fresh_stock_head_on_a_model_of_the_papers_is_stock(tmp_path, discriminator):
    saved(load_with_head(AutoModelForMultipleChoice, discriminator, "paper"), tmp_path)
    model = load_with_head(AutoModelForSequenceClassification, tmp_path, labels=LABELS)
    assert type(model) is ElectraForSequenceClassification
    stock = load_with_head(AutoModelForMultipleChoice, discriminator).config
    for name in ("summary_use_proj", "summary_activation", "summary_last_dropout"):
        assert getattr(model.config, name) == getattr(stock, name)
    assert "classification_head" not in model.config.to_dict()


def test_a_stock_head_that_was_fine_tuned_cannot_become_the_papers(tmp_path, discriminator):
    saved(load_with_head(AutoModelForSequenceClassification, discriminator, labels=LABELS), tmp_path)
    with pytest.raises(ValueError, match="fine-tuned with the head of transformers, which cannot become the paper's"):
        load_with_head(AutoModelForSequenceClassification, tmp_path, "paper", LABELS)


def test_the_papers_head_is_refused_where_there_is_none(tmp_path, discriminator):
    bert = saved(BertModel(bert_config()), tmp_path)
    with pytest.raises(ValueError, match="not for BertForSequenceClassification"):
        load_with_head(AutoModelForSequenceClassification, bert, "paper", LABELS)
    with pytest.raises(ValueError, match="not for ElectraForTokenClassification"):
        load_with_head(AutoModelForTokenClassification, discriminator, "paper", LABELS)
    with pytest.raises(ValueError, match="no head 'mine': choose one of transformers, paper"):
        load_with_head(AutoModelForTokenClassification, discriminator, "mine", LABELS)


def test_the_class_of_the_papers_head_loads_its_own_checkpoint(tmp_path, discriminator):
    model = load_with_head(AutoModelForSequenceClassification, discriminator, "paper", LABELS)
    again = PaperElectraForSequenceClassification.from_pretrained(saved(model, tmp_path))
    assert same_tensors(again, model)


# ---- Bad sources ----


def test_missing_and_foreign_tensors_of_the_encoder_are_refused(discriminator):
    path = discriminator / "model.safetensors"
    whole = safetensors.torch.load_file(path)
    name = "electra.encoder.layer.1.output.dense.weight"
    safetensors.torch.save_file({key: whole[key] for key in whole if key != name}, path, {"format": "pt"})
    with pytest.raises(ValueError, match=f"lacks tensors: {name}"):
        load_with_head(AutoModelForSequenceClassification, discriminator, labels=LABELS)
    foreign = name.replace("layer.1", "layer.2")
    safetensors.torch.save_file({**whole, foreign: whole[name].clone()}, path, {"format": "pt"})
    with pytest.raises(ValueError, match=f"foreign to ElectraForSequenceClassification: {foreign}"):
        load_with_head(AutoModelForSequenceClassification, discriminator, labels=LABELS)


def test_an_encoder_of_another_shape_than_its_configuration_is_refused(discriminator):
    with pytest.raises(ValueError, match=r"intermediate\.dense\.weight \(32, 16\), not \(24, 16\)"):
        load_with_head(AutoModelForSequenceClassification, discriminator, labels=LABELS, intermediate_size=24)


def test_what_is_no_model_is_refused_in_words(tmp_path, discriminator):
    def load(source):
        load_with_head(AutoModelForSequenceClassification, source, labels=LABELS)

    with pytest.raises(ValueError, match="There is no directory"):
        load(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"there is no config\.json in it"):
        load(tmp_path / "empty")
    T5Config().save_pretrained(tmp_path / "t5")
    with pytest.raises(ValueError, match="type 't5', of which transformers has no ModelForMultipleChoice"):
        load_with_head(AutoModelForMultipleChoice, tmp_path / "t5")
    (tmp_path / "empty" / "config.json").write_text('{"model_type": "unheard_of"}')
    with pytest.raises(ValueError, match=r"configuration of .*empty cannot be read"):
        load(tmp_path / "empty")
    weights = discriminator / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(ValueError, match="damaged"):
        load(discriminator)
    weights.rename(discriminator / "pytorch_model.bin")
    with pytest.raises(ValueError, match="holds its weights as a pickle"):
        load(discriminator)
