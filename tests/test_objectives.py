"""Every objective, compared with its formula written out."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from transformers import ElectraForMaskedLM, ElectraForPreTraining

from hf_electra_rtd import ElectraForRTDPretraining, ElectraRTDOutput
from hf_electra_rtd.pair.configuration_electra_rtd import OBJECTIVE_TRAITS
from hf_electra_rtd.pair.measures import observe
from hf_electra_rtd.pair.objectives import replaced_token_loss
from hf_electra_rtd.pair.towers import load_tower
from hf_electra_rtd.training.meters import TrainingMeters, held_out_metrics, held_out_tensors
from tests import reference
from tests.conftest import VOCABULARY, pad_batch, tiny_config


@pytest.fixture
def uneven(batch):
    """Rows of 32 tokens and five of padding. The last masked slot of every other row is unused."""
    batch["labels"][::2, -1] = -100
    return pad_batch(batch, 5)


DETECTS = ("rtd", "rtd_masked_only", "electric")
ELECTRIC = {"generator": "two_tower", "special_token_ids": [2, 3, 4], "mask_probability": 0.2}


def make(objective, **options):
    torch.manual_seed(1)
    if objective == "electric":
        options |= ELECTRIC
    return ElectraForRTDPretraining(tiny_config(objective=objective, **options)).eval().double()


def used_slots(inputs):
    """Yields (row, position, original) of every masked token."""
    for row, slot in inputs["labels"].ne(-100).nonzero().tolist():
        yield row, inputs["masked_positions"][row, slot].item(), inputs["labels"][row, slot].item()


def real_tokens(inputs, originals):
    for row, position in inputs["attention_mask"].nonzero().tolist():
        yield row, position, originals[row, position].item()


def tower_inputs(inputs, ids):
    return {"input_ids": ids, "attention_mask": inputs["attention_mask"], "token_type_ids": inputs["token_type_ids"]}


def detection_loss(model, inputs, corrupted, places):
    logits = model.discriminator(**tower_inputs(inputs, corrupted)).logits
    terms = []
    for row, position, original in places:
        probability = 1 / (1 + math.exp(-logits[row, position].item()))  # of "replaced"
        terms.append(-math.log(1 - probability if corrupted[row, position] == original else probability))
    return sum(terms) / len(terms)


def two_tower_logits(model, inputs):
    """The logits (B, L, V) of the noise, which reads the sequences before masking."""
    hidden = model.generator(**tower_inputs(inputs, reference.originals(inputs)))
    return model.generator.cloze_lm_head(hidden).detach()


def noise_contrastive_loss(model, inputs, corrupted, places):
    energies = model.discriminator(**tower_inputs(inputs, corrupted)).logits.detach()
    noise = two_tower_logits(model, inputs).softmax(dim=-1)
    drawn = {(row, position) for row, position, _ in used_slots(inputs)}
    terms = []
    for row, position, _ in places:
        # The densities of the model and of the noise for the present token, times the share of tokens from each.
        of_model = 0.8 * math.exp(-energies[row, position])
        of_noise = 0.2 * noise[row, position, corrupted[row, position]].item()
        terms.append(-math.log((of_noise if (row, position) in drawn else of_model) / (of_model + of_noise)))
    return sum(terms) / len(terms)


def cloze_loss(model, inputs):
    """The loss over every token of the sequences before masking, except [CLS], [SEP], [MASK] and padding."""
    places = [place for place in real_tokens(inputs, reference.originals(inputs)) if place[2] not in (2, 3, 4)]
    return token_loss(two_tower_logits(model, inputs), places)


def token_loss(logits, places):
    """The mean of -log p(original) at `places` (row, column, original) of logits (B, K, V) or (B, L, V)."""
    terms = []
    for row, column, original in places:
        powers = logits[row, column].detach().exp()
        terms.append(-math.log(powers[original] / powers.sum()))
    return sum(terms) / len(terms)


def mixture(model, inputs, corrupted):
    """The mixture (B, L, V): C [x^c = v] + (1 - C) softmax(v)."""
    hidden = model.discriminator.electra(**tower_inputs(inputs, corrupted)).last_hidden_state
    copy = torch.sigmoid(model.main_head(hidden))[..., None]
    softmax = model.discriminator(**tower_inputs(inputs, corrupted)).logits.softmax(dim=-1)
    copied = torch.nn.functional.one_hot(corrupted, softmax.shape[-1])
    return (copy * copied + (1 - copy) * softmax).detach()


def expected_loss(objective, model, inputs, corrupted):
    places = list(real_tokens(inputs, reference.originals(inputs)))
    if objective == "rtd":
        return detection_loss(model, inputs, corrupted, places)
    if objective == "rtd_masked_only":
        return detection_loss(model, inputs, corrupted, list(used_slots(inputs)))
    if objective in ("replace_mlm", "mlm"):
        return token_loss(model.discriminator(**tower_inputs(inputs, corrupted)).logits, used_slots(inputs))
    if objective == "electric":
        return noise_contrastive_loss(model, inputs, corrupted, places)
    distribution = mixture(model, inputs, corrupted)
    return sum(-math.log(distribution[place]) for place in places) / len(places)


@pytest.mark.parametrize("objective", OBJECTIVE_TRAITS)
def test_the_loss_is_the_formula(objective, uneven):
    model = make(objective)
    output = model(**uneven)
    expected = expected_loss(objective, model, uneven, output.corrupted_input_ids)
    assert output.discriminator_loss.item() == pytest.approx(expected, rel=1e-12)
    weight = 50.0 if objective in DETECTS else 1.0
    of_generator = 0.0
    if objective == "electric":
        of_generator = cloze_loss(model, uneven)
        assert output.generator_loss.item() == pytest.approx(of_generator, rel=1e-12)
    elif objective == "mlm":
        assert model.generator is output.generator_loss is None
        assert torch.equal(output.corrupted_input_ids, uneven["input_ids"])
    else:
        logits = model.generator(**tower_inputs(uneven, uneven["input_ids"])).logits
        of_generator = token_loss(logits, used_slots(uneven))
        assert output.generator_loss.item() == pytest.approx(of_generator, rel=1e-12)
        assert output.replaced_labels.any()
    assert output.loss.item() == pytest.approx(of_generator + weight * expected, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (4, 127)])
@pytest.mark.parametrize("real", [None, 1.0, 0.4, 0.0], ids=["no mask", "no padding", "some padding", "one token"])
def test_the_loss_of_replaced_tokens_errs_no_more_than_the_obvious_code_does(dtype, shape, real):
    logits = (6 * torch.randn(shape)).to(dtype)
    replaced = torch.randint(0, 2, shape)
    mask = None if real is None else (torch.arange(shape[1]) < max(1, real * shape[1])).long().expand(shape)
    loss = replaced_token_loss(logits, replaced, mask)
    assert loss.num_items == (logits.numel() if mask is None else mask.sum())
    both = logits.float(), logits.double()
    naive, truth = (float(reference.replaced_token_loss(each, replaced, mask)) for each in both)
    slack = 4 * torch.finfo(torch.float32).eps * max(1.0, abs(truth))
    assert abs(float(loss.mean()) - truth) <= abs(naive - truth) + slack


@pytest.mark.parametrize("objective", OBJECTIVE_TRAITS)
def test_towers_and_logits_are_those_of_the_design_and_survive_saving(objective, batch, tmp_path):
    model = make(objective).float()
    detects = objective in DETECTS
    output = model(**batch)
    asked = model(**batch, output_logits=True)
    (rows, length) = batch["input_ids"].shape
    slots = batch["labels"].shape[1]
    predicted = (rows, length if objective == "all_tokens_mlm" else slots, len(VOCABULARY))
    assert asked.logits.shape == ((rows, length) if detects else predicted)
    assert (output.logits is None) != detects
    assert output.loss == asked.loss
    model.save_pretrained(tmp_path / "pair")
    assert ElectraForRTDPretraining.from_pretrained(tmp_path / "pair").eval()(**batch).loss == output.loss
    model.save_towers(tmp_path)
    assert (tmp_path / "generator").exists() == (objective not in ("mlm", "electric"))
    tower_class = ElectraForPreTraining if detects else ElectraForMaskedLM
    tower = load_tower(tower_class, tmp_path / "discriminator").eval()  # refuses missing and unknown tensors
    ids = batch["input_ids"]
    torch.testing.assert_close(tower(ids).logits, model.discriminator(ids).logits)


def test_predictions_with_a_copy_mechanism_are_the_mode_of_the_mixture(uneven):
    model = make("all_tokens_mlm")
    with torch.no_grad():
        model.main_head.dense_prediction.weight.mul_(20)  # it copies some tokens, not others
    output = model(**uneven)
    distribution = mixture(model, uneven, output.corrupted_input_ids)
    assert torch.equal(output.predictions, distribution.argmax(dim=-1))
    assert 0 < output.predictions.eq(output.corrupted_input_ids).double().mean() < 1


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_copy_mechanism_that_is_sure_gives_finite_losses_and_gradients(batch, sign):
    model = ElectraForRTDPretraining(tiny_config(objective="all_tokens_mlm")).eval()
    with torch.no_grad():
        model.main_head.dense_prediction.bias.fill_(sign * 200.0)
    loss = model(**batch).discriminator_loss
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("objective", OBJECTIVE_TRAITS)
def test_without_labels_the_main_tower_says_what_it_thinks_of_the_rows(batch, objective):
    model = make(objective).float()
    output = model(batch["input_ids"])
    assert output.loss is None
    assert torch.equal(output.logits, model.discriminator(batch["input_ids"]).logits)
    if objective in ("mlm", "replace_mlm"):
        assert torch.equal(output.predictions, output.logits.argmax(dim=-1))


@pytest.mark.parametrize("objective", ["replace_mlm", "all_tokens_mlm", "mlm"])
@pytest.mark.parametrize("change", [7, -3])
def test_a_resize_keeps_what_a_predicting_tower_says(batch, objective, change):
    model = make(objective).float()
    ids = batch["input_ids"].clamp(max=40)
    before = model(ids).logits.detach()
    model.resize_token_embeddings(model.config.discriminator_config.vocab_size + change)
    kept = min(before.shape[-1], before.shape[-1] + change)
    torch.testing.assert_close(model(ids).logits[..., :kept], before[..., :kept])
    labels = batch["labels"].clamp(max=40)
    model(**{**batch, "input_ids": ids, "labels": labels}).loss.backward()


# ---- Metrics ----


@pytest.mark.parametrize("form", ["slots", "labels at their positions"])
def test_what_was_masked_is_known_from_either_form_of_labels(form):
    # Each row has two slots. The second slot of row 1 is unused and points at a token that was not masked.
    if form == "slots":
        labels = {"masked_positions": torch.tensor([[1, 2], [1, 0]]), "labels": torch.tensor([[10, 11], [0, -100]])}
    else:
        labels = {"labels": torch.tensor([[-100, 10, 11, -100], [-100, 0, -100, -100]])}
    seen = observe(ElectraRTDOutput(), {"input_ids": torch.tensor([[2, 4, 11, 3], [2, 4, 3, 0]]), **labels})
    assert seen.masked.tolist() == [[False, True, True, False], [False, True, False, False]]


def measured(model, inputs):
    """The output of the model, its training metrics and its held-out metrics."""
    output = model(**inputs)
    meters = TrainingMeters(model.measures)
    meters.update(output, inputs)
    tensors = [tensor.numpy() for tensor in held_out_tensors(model.measures, output, inputs)]
    return output, meters.drain(), held_out_metrics(model, tensors)


@pytest.mark.parametrize("objective", OBJECTIVE_TRAITS)
def test_losses_are_those_of_the_model_in_training_and_held_out(objective, uneven):
    output, training, held_out = measured(make(objective), uneven)
    assert training.pop("tokens") == 8 * 32
    assert held_out.pop("loss") == pytest.approx(output.loss.item(), rel=1e-6)
    assert training.keys() == {name for name in held_out if "auc" not in name}
    for metrics in (training, held_out):
        assert metrics["discriminator_loss"] == pytest.approx(output.discriminator_loss.item(), rel=1e-12)
        if objective != "mlm":
            assert metrics["generator_loss"] == pytest.approx(output.generator_loss.item(), rel=1e-12)
    assert ("generator_accuracy" in held_out) == ("sampled_accuracy" in held_out) == (objective != "mlm")


def test_masked_only_detection_is_measured_at_masked_positions_and_over_all(uneven):
    model = make("rtd_masked_only")
    with torch.no_grad():
        model.generator.generator_lm_head.bias[uneven["labels"][1, 0]] += 6.0  # some samples are right
    output, training, held_out = measured(model, uneven)
    everywhere = real_tokens(uneven, reference.originals(uneven))
    corrupted = output.corrupted_input_ids
    for places, suffix in ((list(used_slots(uneven)), ""), (list(everywhere), "_all")):
        logits = np.array([output.logits[row, position].item() for row, position, _ in places])
        replaced = np.array([corrupted[row, position].item() != label for row, position, label in places])
        assert 0 < replaced.sum() < len(replaced)
        assert held_out[f"discriminator_auc{suffix}"] == pytest.approx(roc_auc_score(replaced, logits))
        expected = {"accuracy": ((logits > 0) == replaced).mean(), "recall": (logits > 0)[replaced].mean()}
        for metrics in (training, held_out):
            assert {name: metrics[f"discriminator_{name}{suffix}"] for name in expected} == pytest.approx(expected)


@pytest.mark.parametrize("objective", ["mlm", "replace_mlm"])
def test_masked_prediction_is_measured_at_masked_positions(objective, uneven):
    model = make(objective)
    output, *measurements = measured(model, uneven)
    logits = model.discriminator(**tower_inputs(uneven, output.corrupted_input_ids)).logits
    right = np.mean([(logits[row, position].argmax() == label).item() for row, position, label in used_slots(uneven)])
    for metrics in measurements:
        assert metrics["discriminator_masked_accuracy"] == pytest.approx(right)


def test_prediction_of_all_tokens_is_measured_everywhere_and_where_tokens_were_replaced(uneven):
    model = make("all_tokens_mlm")
    output, training, held_out = measured(model, uneven)
    distribution = mixture(model, uneven, output.corrupted_input_ids)
    right = {True: [], False: []}
    for row, position, original in real_tokens(uneven, reference.originals(uneven)):
        replaced = output.corrupted_input_ids[row, position].item() != original
        right[replaced].append(distribution[row, position].argmax().item() == original)
    expected = {
        "discriminator_token_accuracy": np.mean(right[True] + right[False]),
        "discriminator_replaced_accuracy": np.mean(right[True]),
    }
    for metrics in (training, held_out):
        assert {name: metrics[name] for name in expected} == pytest.approx(expected)
