"""The generators, which fill the masked slots."""

import math

import pytest
import torch

from hf_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.pair.measures import GENERATOR_ACCURACY
from hf_electra_rtd.training.optimization import get_parameter_groups
from tests.conftest import VOCABULARY, tiny_config


def test_a_uniform_generator_has_no_network_and_its_loss_is_a_constant(batch, tmp_path):
    model = ElectraForRTDPretraining(tiny_config(generator="uniform")).eval()
    batch["labels"][0, 0] = -100
    output = model(**batch, output_generator_logits=True)
    assert model.generator is None
    assert output.generator_loss.item() == pytest.approx(math.log(len(VOCABULARY)))
    assert output.generator_logits.shape == (*batch["labels"].shape, len(VOCABULARY))
    torch.testing.assert_close(output.loss, output.generator_loss + 50 * output.discriminator_loss)
    assert GENERATOR_ACCURACY not in model.measures
    model.save_pretrained(tmp_path)
    assert ElectraForRTDPretraining.from_pretrained(tmp_path).eval()(**batch).loss == output.loss
    model.resize_token_embeddings(len(VOCABULARY) + 9)
    assert model(**batch).generator_loss.item() == pytest.approx(math.log(len(VOCABULARY) + 9))


def test_samples_come_from_the_pass_that_trains(batch):
    torch.manual_seed(0)
    model = ElectraForRTDPretraining(tiny_config(hidden_dropout_prob=0.5, temperature=0.0)).train()
    output = model(**batch)
    sampled = output.corrupted_input_ids.gather(1, batch["masked_positions"])
    still = model.eval()(**batch)
    # Greedy samples are the modes of the logits that they were drawn from.
    assert torch.equal(sampled, output.generator_predictions)
    assert not torch.equal(sampled, still.generator_predictions)


@pytest.mark.parametrize("resized", [False, True])
def test_a_frozen_generator_learns_nothing_and_is_not_in_the_optimizer(batch, resized, tmp_path):
    model = ElectraForRTDPretraining(tiny_config(sharing="none", freeze_generator=True))
    if resized:
        model.resize_token_embeddings(len(VOCABULARY) + 2)
    model.save_pretrained(tmp_path)
    for pair in (model, ElectraForRTDPretraining.from_pretrained(tmp_path)):
        output = pair(**batch)
        output.loss.backward()
        assert not output.generator_loss.requires_grad
        assert all(p.grad is None for p in pair.generator.parameters())
        trained = {id(p) for group in get_parameter_groups(pair, 0.01) for p in group["params"]}
        assert trained == {id(p) for p in pair.discriminator.parameters()}


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")  # peft reads it; transformers warns
def test_an_output_layer_with_an_adapter_or_a_hook_is_called(batch):
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    model = ElectraForRTDPretraining(tiny_config())
    plain = model(**batch).generator_loss
    calls = []
    handle = model.generator.generator_lm_head.register_forward_hook(lambda *_: calls.append(1))
    torch.testing.assert_close(model(**batch).generator_loss, plain)
    assert calls == [1]
    handle.remove()
    adapted = get_peft_model(model, LoraConfig(target_modules=["generator_lm_head"], init_lora_weights=False))
    output = adapted(**batch, output_generator_logits=True)
    expected = torch.nn.functional.cross_entropy(output.generator_logits.flatten(0, 1), batch["labels"].flatten())
    torch.testing.assert_close(output.generator_loss, expected)
    output.loss.backward()
    assert all(p.grad.any() for n, p in adapted.named_parameters() if "lora_" in n)
