"""The adversarial generator, next to the sum over every sample that it could have drawn."""

import pytest
import torch

from hf_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.pair.measures import GENERATOR_ENTROPY
from hf_electra_rtd.training.meters import TrainingMeters, held_out_metrics, held_out_tensors
from tests.conftest import pad_batch, tiny_config


SIZE = 5
MASK = 4
PLACE = 2
EXACT = {"rtol": 1e-12, "atol": 1e-12}
OPTIONS = {"generator_objective": "adversarial", "sharing": "none", "vocab_size": SIZE}


@pytest.fixture(params=["rtd", "rtd_masked_only"])
def pair(request):
    torch.manual_seed(5)
    model = ElectraForRTDPretraining(tiny_config(objective=request.param, **OPTIONS)).double().eval()
    torch.nn.init.normal_(model.generator_head.weight)
    return model


def enumerate_samples(model):
    """For each token that can be drawn at one slot: its probability, its reward, and the output where it was."""
    batch = {"input_ids": torch.tensor([[2, 1, MASK, 1, 3]]), "masked_positions": torch.tensor([[PLACE]])}
    batch["labels"] = torch.tensor([[0]])
    slots = batch["input_ids"], batch["masked_positions"]
    probabilities = model.generator(slots[0]).logits[0, PLACE].softmax(dim=-1)
    below = (probabilities.cumsum(0) - probabilities / 2).detach()
    outputs = [model(**batch, sampling_uniforms=torch.tensor([[[0.5, below[token]]]])) for token in range(SIZE)]
    assert [output.corrupted_input_ids[0, PLACE].item() for output in outputs] == list(range(SIZE))
    rewards = []
    for token in range(SIZE):  # -log D where the sample is right, else -log(1 - D)
        logit = model.discriminator(torch.tensor([[2, 1, token, 1, 3]])).logits[0, PLACE].detach()
        rewards.append(-torch.nn.functional.logsigmoid(-logit if token == 0 else logit))
    return probabilities, torch.stack(rewards), outputs


def expected_gradients(model):
    """Of the generator's loss, with respect to its parameters, over all samples."""
    probabilities, _, outputs = enumerate_samples(model)
    loss = sum(p * output.generator_loss for p, output in zip(probabilities.detach(), outputs, strict=True))
    return torch.autograd.grad(loss, list(model.generator.parameters()), allow_unused=True)


def assert_equal(gradients, others):
    for one, other in zip(gradients, others, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, **EXACT)


def test_the_gradient_is_that_of_minus_the_expected_reward(pair):
    probabilities, rewards, _ = enumerate_samples(pair)
    truth = torch.autograd.grad(-(probabilities * rewards).sum(), list(pair.generator.parameters()), allow_unused=True)
    assert max(each.abs().max() for each in truth if each is not None) > 1e-3
    assert_equal(expected_gradients(pair), truth)


def test_the_baseline_changes_no_expected_gradient_and_learns_the_reward_alone(pair):
    before = expected_gradients(pair)
    probabilities, rewards, outputs = enumerate_samples(pair)
    hidden = pair.generator.electra(torch.tensor([[2, 1, MASK, 1, 3]])).last_hidden_state[0, PLACE].detach()
    weight = pair.generator_head.weight.detach().clone().requires_grad_()
    scored = (weight @ hidden).expand(SIZE)
    losses = torch.nn.functional.binary_cross_entropy_with_logits(scored, (-rewards).exp(), reduction="none")
    (truth,) = torch.autograd.grad((losses * probabilities.detach()).sum(), weight)
    loss = sum(p * output.loss for p, output in zip(probabilities.detach(), outputs, strict=True))
    (learnt,) = torch.autograd.grad(loss, pair.generator_head.weight)
    torch.testing.assert_close(learnt, truth, **EXACT)
    with torch.no_grad():
        pair.generator_head.weight.mul_(-3.0)
    assert_equal(expected_gradients(pair), before)


def test_the_loss_of_a_sample_is_the_formula(pair):
    probabilities, rewards, outputs = enumerate_samples(pair)
    hidden = pair.generator.electra(torch.tensor([[2, 1, MASK, 1, 3]])).last_hidden_state[0, PLACE]
    right = torch.sigmoid(pair.generator_head(hidden)).squeeze()
    for p, reward, output in zip(probabilities, rewards, outputs, strict=True):
        target = torch.exp(-reward)
        of_baseline = -(target * right.log() + (1 - target) * (1 - right).log())
        expected = -(reward + right.log()) * p.log() + of_baseline
        torch.testing.assert_close(output.generator_loss, expected, **EXACT)
        torch.testing.assert_close(output.loss, expected + 50 * output.discriminator_loss, **EXACT)


def test_each_slot_learns_from_its_own_reward_and_the_pass_that_it_was_drawn_from(batch):
    dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    model = ElectraForRTDPretraining(tiny_config(generator_objective="adversarial", **dropout)).double().train()
    torch.nn.init.zeros_(model.generator_head.weight)  # it expects log 2
    output = model(**batch, output_generator_logits=True)
    places = batch["masked_positions"]
    drawn = output.corrupted_input_ids.gather(1, places)
    log_p = output.generator_logits.log_softmax(dim=-1).gather(-1, drawn[..., None]).squeeze(-1)
    logits = output.logits.gather(1, places)
    rewards = torch.nn.functional.softplus(logits.where(drawn.eq(batch["labels"]), -logits))
    expected = torch.full_like(rewards, 2.0).log() - (rewards - torch.tensor(2.0).double().log()) * log_p
    torch.testing.assert_close(output.generator_token_losses, expected.detach(), **EXACT)


def test_no_gradient_of_the_generators_loss_reaches_the_discriminator(pair):
    _, _, outputs = enumerate_samples(pair)
    for output in outputs:
        found = torch.autograd.grad(output.generator_loss, list(pair.discriminator.parameters()), allow_unused=True)
        assert all(gradient is None for gradient in found)


def test_accuracy_and_entropy_are_measured_in_training_and_held_out_and_the_head_is_saved(batch, tmp_path):
    batch["labels"][::2, -1] = -100
    batch = pad_batch(batch, 3)
    model = ElectraForRTDPretraining(tiny_config(generator_objective="adversarial")).double().eval()
    output = model(**batch, output_generator_logits=True)
    used = batch["labels"].ne(-100)
    log_p = output.generator_logits.log_softmax(dim=-1)
    entropy = -(log_p.exp() * log_p).sum(dim=-1)[used].mean().item()
    right = output.generator_logits.argmax(dim=-1).eq(batch["labels"])[used].double().mean().item()
    meters = TrainingMeters(model.measures)
    meters.update(output, batch)
    held_out = [tensor.numpy() for tensor in held_out_tensors(model.measures, output, batch)]
    for metrics in (meters.drain(), held_out_metrics(model, held_out)):
        assert metrics["generator_entropy"] == pytest.approx(entropy, rel=1e-6)
        assert metrics["generator_accuracy"] == pytest.approx(right)
        assert metrics["generator_loss"] == pytest.approx(output.generator_loss.item(), rel=1e-6)
    assert GENERATOR_ENTROPY not in ElectraForRTDPretraining(tiny_config()).measures
    model.save_pretrained(tmp_path)
    again = ElectraForRTDPretraining.from_pretrained(tmp_path, dtype="float64").eval()
    assert torch.equal(again.generator_head.weight, model.generator_head.weight)
    assert again(**batch).loss == output.loss
    with pytest.raises(ValueError, match="corrupted_input_ids"):  # it learns from its own samples
        model(**batch, corrupted_input_ids=output.corrupted_input_ids)
    with pytest.raises(ValueError, match="sampling_temperature"):  # it has no schedule
        model(**batch, sampling_temperature=torch.full((8,), 2.0))
