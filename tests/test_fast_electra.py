"""Fast-ELECTRA: a frozen generator of any family and a falling temperature."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertForPreTraining

from hf_electra_rtd import ElectraForRTDPretraining, RTDTrainer, RTDTrainingArguments
from hf_electra_rtd.data.blocks import HELD_OUT_POSITION
from hf_electra_rtd.data.collator import falling_temperature
from hf_electra_rtd.encoders.families import masked_lm_class
from hf_electra_rtd.ops import Sampling, predict_masked, sample_tokens
from tests.conftest import VOCABULARY, tiny_config
from tests.families_for_tests import tiny_family_config


def config_of(family, **options):
    """Of the tokenizer's vocabulary."""
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


# ---- A frozen generator of any family ----


def test_heads_that_a_masked_lm_does_not_have_are_left_out(tmp_path):
    torch.manual_seed(0)
    whole = BertForPreTraining(BERT)
    whole.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["bert.embeddings.position_ids"] = torch.arange(64)[None]  # of old versions
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


# ---- The temperature along a run ----


def temperatures(schedule, positions, total=1000, start=2.0, end=1.0, decay=0.1):
    return falling_temperature(np.array(positions), total, schedule, start, end, decay)


def test_the_temperature_falls_by_its_formula_and_ends_where_it_is_said_to():
    exponential = temperatures("exponential", [0, 100, 1000, HELD_OUT_POSITION + 7])
    np.testing.assert_allclose(exponential, [2.0, 1 + np.exp(-1.0), 1 + np.exp(-10.0), 1.0], rtol=1e-12)
    linear = temperatures("linear", [0, 100, 500, 1000, HELD_OUT_POSITION], start=3.0, end=0.5)
    np.testing.assert_allclose(linear, [3.0, 2.75, 1.75, 0.5, 0.5], rtol=1e-12)
    assert set(temperatures("constant", range(1000))) == {1.0}
    for schedule in ("linear", "exponential"):
        assert (np.diff(temperatures(schedule, range(1000))) < 0).all()


@pytest.mark.parametrize("disallow_correct", [False, True])
def test_rows_of_different_temperatures_are_sampled_as_each_alone(disallow_correct):
    torch.manual_seed(0)
    hidden = torch.randn(4, 3, 8)
    weight = torch.randn(600, 8)
    bias = torch.randn(600)
    labels = torch.randint(600, (4, 3))
    uniforms = torch.rand(4, 3, 2)
    rows = torch.tensor([2.0, 1.3, 1.0, 0.5])
    # Chunks of two rows, which do not end with a sequence.
    sampling = Sampling(uniforms, rows[:, None].expand(4, 3), disallow_correct)
    found = predict_masked(hidden, weight, bias, labels, sampling, max_logits=1200)
    for row, temperature in enumerate(rows.tolist()):
        alone = Sampling(uniforms[row], temperature, disallow_correct)
        expected = predict_masked(hidden[row], weight, bias, labels[row], alone)
        assert torch.equal(found.sampled[row], expected.sampled)
        torch.testing.assert_close(found.loss.losses[row], expected.loss.losses)  # at temperature 1


def test_a_model_samples_along_its_schedule_and_refuses_to_train_without_the_temperatures(batch):
    config = tiny_config(temperature_schedule="linear", temperature_start=3.0)
    model = ElectraForRTDPretraining(config).train()
    with pytest.raises(ValueError, match="sampling_temperature"):
        model(**batch)
    rows = torch.linspace(3.0, 1.0, len(batch["labels"]))
    output = model.eval()(**batch, sampling_temperature=rows, output_generator_logits=True)
    expected = sample_tokens(output.generator_logits, batch["sampling_uniforms"], rows[:, None].expand(-1, 5))
    assert torch.equal(output.corrupted_input_ids.gather(1, batch["masked_positions"]), expected)
    plain = ElectraForRTDPretraining(tiny_config())
    plain.load_state_dict(model.state_dict())
    assert torch.equal(model(**batch).corrupted_input_ids, plain.eval()(**batch).corrupted_input_ids)


def test_a_trainer_gives_its_collator_the_schedule_over_its_whole_run(blocks, tokenizer, tmp_path):
    model = ElectraForRTDPretraining(tiny_config(temperature_schedule="linear", temperature_start=3.0))
    options = {"num_train_epochs": 2, "max_seq_length": 32, "per_device_train_batch_size": 8, "report_to": []}
    args = RTDTrainingArguments(str(tmp_path), use_cpu=True, disable_tqdm=True, **options)
    trainer = RTDTrainer(model, args, blocks[0], blocks[1], tokenizer)
    steps = 2 * len(blocks[0]) // 8
    *_, last = trainer.get_train_dataloader()
    expected = 1 + 2 * (1 - torch.arange(8 * steps - 8, 8 * steps) / (8 * steps))
    torch.testing.assert_close(last["sampling_temperature"], expected)
    held_out = next(iter(trainer.get_eval_dataloader()))
    assert held_out["sampling_temperature"].unique().tolist() == [1.0]
