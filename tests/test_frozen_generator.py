"""A frozen generator of any family."""

import torch
from safetensors.torch import load_file, save_file
from transformers import BertForPreTraining

from hf_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.encoders.families import masked_lm_class
from tests.conftest import VOCABULARY, tiny_config
from tests.families_for_tests import tiny_family_config


def config_of(family, **options):
    """A tiny configuration with the tokenizer's vocabulary."""
    return tiny_family_config(family, **{"vocab_size": len(VOCABULARY), "pad_token_id": 0, **options})


BERT = config_of("bert")


def masked_lm(config):
    torch.manual_seed(1)
    network = masked_lm_class(config.model_type)(config)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    return network.eval()


def join(generator, **options):
    torch.manual_seed(0)
    discriminator = ElectraForRTDPretraining(tiny_config(generator="uniform")).discriminator
    options = {"sharing": "none", "freeze_generator": True, **options}
    return ElectraForRTDPretraining.from_generator_discriminator_pretrained(generator, discriminator, **options)


def test_heads_that_a_masked_lm_does_not_have_are_left_out(tmp_path):
    torch.manual_seed(0)
    whole = BertForPreTraining(BERT)
    whole.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["bert.embeddings.position_ids"] = torch.arange(64)[None]  # as old versions saved it
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    pair = join(tmp_path)
    assert torch.equal(pair.generator.cls.predictions.bias, whole.cls.predictions.bias)


def test_a_frozen_generator_has_no_dropout_and_leaves_all_random_numbers_to_the_discriminator(batch):
    none = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    pairs = [join(masked_lm(config_of("electra", **more))).train() for more in (none, dict.fromkeys(none, 0.5))]
    outputs = []
    for pair in pairs:
        torch.manual_seed(7)
        outputs.append(pair(**batch))
        assert not any(module.training for module in pair.generator.modules())
        assert pair.discriminator.training
        assert pair.eval().train().generator.training is False
    assert torch.equal(outputs[0].generator_token_losses, outputs[1].generator_token_losses)
    assert torch.equal(outputs[0].loss, outputs[1].loss)
