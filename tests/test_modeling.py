"""Checks of the pair that a broken implementation of RTD could not pass."""

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from hf_electra_rtd import DataCollatorForRTD, ElectraForRTDPretraining
from hf_electra_rtd.ops import IGNORED, masked_slots, original_ids, sample_tokens
from tests import reference
from tests.conftest import VOCABULARY, pad_batch, tiny_config


def wide_labels(batch):
    """The labels (B, L) at the positions of their tokens; `IGNORED` elsewhere."""
    return torch.full_like(batch["input_ids"], IGNORED).scatter(1, batch["masked_positions"], batch["labels"])


# ---- Corruption and labels ----


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_discriminators_input_differs_from_the_original_exactly_where_the_label_is_1(batch, temperature):
    """A sample that equals the original is labeled original."""
    model = ElectraForRTDPretraining(tiny_config(temperature=temperature)).eval()
    model.generator.generator_lm_head.bias.data[batch["labels"][0, 0]] += 4.0
    output = model(**batch)
    assert torch.equal(output.corrupted_input_ids.ne(reference.originals(batch)).long(), output.replaced_labels)
    masked = torch.zeros_like(batch["input_ids"]).scatter(1, batch["masked_positions"], 1).bool()
    assert 0 < output.replaced_labels[masked].double().mean() < 1
    assert not output.replaced_labels[~masked].any()
    assert not output.corrupted_input_ids.eq(VOCABULARY.index("[MASK]"))[~masked].any()


@pytest.mark.parametrize("token", ["[PAD]", "[CLS]", "[SEP]", "[MASK]"])
def test_a_special_token_may_be_sampled_and_is_a_replaced_token_like_others(model, batch, token):
    model.generator.generator_lm_head.bias.data[VOCABULARY.index(token)] = 1e4
    output = model(**batch)
    masked = torch.zeros_like(batch["input_ids"]).scatter(1, batch["masked_positions"], 1).bool()
    assert torch.equal(output.corrupted_input_ids.eq(VOCABULARY.index(token)) & masked, masked)
    assert torch.equal(output.corrupted_input_ids[~masked], batch["input_ids"][~masked])
    assert torch.equal(output.replaced_labels, masked.long())
    expected = F.binary_cross_entropy_with_logits(output.logits, masked.to(output.logits.dtype))
    torch.testing.assert_close(output.discriminator_loss, expected)


def test_kept_tokens_are_sampled_over_too(tokenizer, blocks, model):
    collator = DataCollatorForRTD(tokenizer, keep_probability=1.0)
    batch = collator(blocks[0].__getitems__(list(range(8))))
    assert torch.equal(batch["input_ids"], reference.originals(batch))
    assert model(**batch).replaced_labels.any()


SAMPLING = ({}, {"temperature": 0.0}, {"temperature": 0.5}, {"disallow_correct": True}, {"generator": "uniform"})


@pytest.mark.parametrize("options", [*SAMPLING, {"generator": "uniform", "disallow_correct": True}])
def test_samples_are_drawn_from_the_generators_logits_as_the_configuration_says(batch, options):
    output = ElectraForRTDPretraining(tiny_config(**options)).eval()(**batch, output_generator_logits=True)
    forbidden = batch["labels"] if "disallow_correct" in options else None
    temperature = options.get("temperature", 1.0)
    expected = sample_tokens(output.generator_logits, batch["sampling_uniforms"], temperature, forbidden)
    assert torch.equal(output.corrupted_input_ids.gather(1, batch["masked_positions"]), expected)
    assert torch.equal(output.generator_predictions, output.generator_logits.argmax(dim=-1))
    assert output.generator_logits.any() == ("generator" not in options)  # equal logits are equal probabilities


# ---- Losses ----


def test_weights_weigh_and_both_forms_of_labels_agree(batch):
    model = ElectraForRTDPretraining(tiny_config(generator_weight=0.5, discriminator_weight=3.0)).eval()
    output = model(**batch)
    wide = model(**{**batch, "masked_positions": None, "labels": wide_labels(batch)})
    assert output.loss == 0.5 * output.generator_loss + 3.0 * output.discriminator_loss == wide.loss
    assert torch.equal(output.corrupted_input_ids, wide.corrupted_input_ids)


def test_unused_slots_count_nothing_wherever_they_point(model, batch):
    kept = {key: batch[key][:, :-2] for key in ("masked_positions", "labels", "sampling_uniforms")}
    expected = model(**{**batch, **kept})
    batch["labels"][:, -2:] = IGNORED
    first = model(**batch)
    batch["masked_positions"][:, -2:] = torch.tensor([0, -1])
    second = model(**batch)
    assert first.loss == second.loss
    for output in (first, second):
        torch.testing.assert_close(output.generator_loss, expected.generator_loss)
        assert torch.equal(output.corrupted_input_ids, expected.corrupted_input_ids)


def test_a_replayed_position_may_repeat_and_both_count(model, batch):
    positions = batch["masked_positions"].clone()
    labels = batch["labels"].clone()
    positions[:, 1] = positions[:, 0]
    labels[:, 1] = labels[:, 0]
    replay = {**batch, "masked_positions": positions, "labels": labels}
    output = model(**replay, corrupted_input_ids=reference.originals(batch), output_generator_logits=True)
    expected = F.cross_entropy(output.generator_logits.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(output.generator_loss, expected)


@pytest.mark.parametrize("objective", ["rtd", "all_tokens_mlm"])
def test_the_discriminator_can_be_called_alone(batch, objective):
    model = ElectraForRTDPretraining(tiny_config(objective=objective)).eval()
    whole = model(**batch)
    slots = masked_slots(batch["input_ids"], batch["masked_positions"], batch["labels"])
    inputs = {name: batch[name] for name in ("attention_mask", "token_type_ids") if batch.get(name) is not None}
    originals = original_ids(batch["input_ids"], slots)
    alone = model.discriminate(whole.corrupted_input_ids, originals, slots, **inputs)
    torch.testing.assert_close(alone.loss.mean(), whole.discriminator_loss)
    assert model.discriminate(whole.corrupted_input_ids, originals, slots).loss is not None


def test_nothing_masked_gives_finite_losses(model, batch):
    output = model(**{**batch, "labels": torch.full_like(batch["labels"], IGNORED)})
    assert output.generator_loss == 0
    assert output.loss.isfinite()
    assert not output.replaced_labels.any()


# ---- Gradients ----


SHARINGS = ("none", "word", "embeddings")
OBJECTIVES = ("rtd", "replace_mlm", "all_tokens_mlm")
ELECTRIC = {"objective": "electric", "generator": "two_tower", "special_token_ids": [2, 3, 4]}


@pytest.mark.parametrize(
    "options",
    [{"sharing": "gdes"}, ELECTRIC, *({"sharing": one, "objective": each} for one in SHARINGS for each in OBJECTIVES)],
)
def test_no_gradient_of_the_discriminators_loss_reaches_what_the_generator_alone_has(batch, options):
    model = ElectraForRTDPretraining(tiny_config(**options)).eval()
    model(**batch).discriminator_loss.backward()
    towers = [dict(tower.named_parameters()) for tower in (model.generator, model.discriminator)]
    shared = set(map(id, towers[0].values())) & set(map(id, towers[1].values()))
    of_generator, of_discriminator = ({n: p for n, p in each.items() if id(p) not in shared} for each in towers)
    assert all(p.grad is None or not p.grad.any() for p in of_generator.values())
    # The bias of the keys shifts all scores of a query equally, which does not change the softmax.
    learning = [p for name, p in of_discriminator.items() if "key.bias" not in name]
    assert of_generator
    assert learning
    assert all(p.grad is not None and p.grad.any() for p in learning)


# ---- Equal results ----


@pytest.mark.parametrize("padding", [0, 1, 13])
def test_padding_and_a_mask_of_ones_change_nothing(model, batch, padding):
    narrow = model(**batch)
    wide = model(**pad_batch(batch, padding))
    assert torch.equal(narrow.corrupted_input_ids, wide.corrupted_input_ids[:, :32])
    torch.testing.assert_close(narrow.logits, wide.logits[:, :32], rtol=1e-5, atol=1e-5 if padding else 1e-6)
    for loss in ("generator_loss", "discriminator_loss"):
        torch.testing.assert_close(narrow[loss], wide[loss], rtol=1e-6, atol=1e-6)
    assert (wide.replaced_labels[:, 32:] == -100).all()


def test_bfloat16_autocast_stays_close_to_float32(model, batch):
    exact = model(**batch)
    with torch.autocast("cpu", torch.bfloat16):
        rough = model(**batch, corrupted_input_ids=exact.corrupted_input_ids)
    for loss in ("generator_loss", "discriminator_loss"):
        torch.testing.assert_close(rough[loss], exact[loss], rtol=2e-2, atol=2e-2)


def test_activation_checkpointing_changes_nothing(batch):
    gradients = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        config = tiny_config(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
        model = ElectraForRTDPretraining(config).train()
        if checkpointing:
            # transformers 5.23 renamed this method; 5.17 has only the old name
            getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
        model(**batch).loss.backward()
        gradients.append([p.grad for p in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_compiled_model_trains_alike(batch):
    """With the default compiler backend; `test_compilation.py` checks the graphs of all pairs."""
    batch = pad_batch(batch, 5)
    trajectories = []
    for compiled in (False, True):
        torch.manual_seed(0)
        torch.compiler.reset()
        model = ElectraForRTDPretraining(tiny_config(num_hidden_layers=1)).train()
        forward = torch.compile(model, fullgraph=True) if compiled else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        losses = []
        for _ in range(4):
            losses.append(forward(**batch).loss)
            losses[-1].backward()
            optimizer.step()
            optimizer.zero_grad()
        trajectories.append(torch.stack(losses).detach())
    torch.testing.assert_close(trajectories[1], trajectories[0], rtol=1e-4, atol=0)
