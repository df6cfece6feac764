"""Electric: what the recording of the original does not check, and where its pair differs from ELECTRA's.

The loss itself is in test_objectives.py, the recording in test_parity.py.
"""

import pytest
import torch

from hf_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.ops import masked_slots
from hf_electra_rtd.training.model import ModelArguments, build_model
from tests import reference
from tests.conftest import VOCABULARY, pad_batch, tiny_config
from tests.training.test_trainer import make_trainer


ELECTRIC = {"objective": "electric", "generator": "two_tower", "special_token_ids": [2, 3, 4]}
PAD = 0


@pytest.fixture
def pair():
    return ElectraForRTDPretraining(tiny_config(**ELECTRIC)).eval().double()


def generated(pair, batch):
    slots = masked_slots(batch["input_ids"], batch["masked_positions"], batch["labels"])
    inputs = {name: batch.get(name) for name in ("attention_mask", "token_type_ids")}
    return pair.generate(batch["input_ids"], slots, **inputs)


def log_q(pair, ids, mask=None):
    """The log probabilities (B, L, V) of the noise."""
    return pair.generator.cloze_lm_head(pair.generator(ids, mask)).log_softmax(dim=-1).detach()


@pytest.mark.parametrize("padding", [0, 3])
def test_the_noise_is_blind_to_a_token_itself_and_to_no_other(pair, batch, padding):
    ids = reference.originals(batch)[:1]
    length = ids.shape[1]
    mask = (torch.arange(length + padding) < length).long()[None] if padding else None
    ids = torch.nn.functional.pad(ids, (0, padding))
    before = log_q(pair, ids, mask)
    for place in range(1, length - 1):
        changed = ids.clone()
        changed[0, place] = 7 if ids[0, place] != 7 else 8
        moved = (log_q(pair, changed, mask) - before)[0].abs().amax(dim=-1)
        assert moved[place] < 1e-12
        others = torch.arange(1, length - 1)
        assert (moved[others[others != place]] > 1e-9).all()


def test_the_log_probabilities_of_all_tokens_are_those_of_the_softmax(pair, batch):
    batch = pad_batch(batch, 4)
    batch["labels"][0, 0] = -100
    said = generated(pair, batch)
    every = torch.stack([said.log_prob_of(torch.full_like(batch["input_ids"], v)) for v in range(len(VOCABULARY))], -1)
    torch.testing.assert_close(every.logsumexp(dim=-1), torch.zeros_like(every[..., 0]), rtol=0, atol=1e-12)
    hidden = pair.generator(
        reference.originals(batch), batch["attention_mask"], token_type_ids=batch["token_type_ids"]
    )
    torch.testing.assert_close(every, pair.generator.cloze_lm_head(hidden).log_softmax(-1).detach())
    handle = pair.generator.cloze_lm_head.register_forward_hook(lambda *_: None)  # a layer with a hook must be called
    again = generated(pair, batch).log_prob_of(batch["input_ids"])
    torch.testing.assert_close(again, said.log_prob_of(batch["input_ids"]))
    handle.remove()


def test_a_draw_that_is_the_original_is_labelled_drawn(pair, batch):
    originals = reference.originals(batch)
    output = pair(**batch, corrupted_input_ids=originals)
    drawn = torch.zeros_like(originals).scatter(1, batch["masked_positions"], 1)
    assert torch.equal(output.replaced_labels, drawn)
    rtd = ElectraForRTDPretraining(tiny_config(generator="two_tower")).eval()(**batch, corrupted_input_ids=originals)
    assert not rtd.replaced_labels.any()


@pytest.mark.parametrize("side", [-1, 1], ids=["right to left", "left to right"])
def test_a_padding_token_that_stands_for_a_word_is_learnt_by_both_encoders(pair, side):
    ids = torch.tensor([[2, 8, 9, PAD, 10, 11, 3]])
    state = pair.generator(ids)[0, 3 + side]
    (gradient,) = torch.autograd.grad(state[0], pair.get_input_embeddings().weight)
    assert gradient[PAD].any()


def test_both_encoders_and_the_head_share_the_discriminators_embeddings(pair, batch, tmp_path):
    def blocks(model):
        encoders = (model.discriminator.electra, model.generator.ltr, model.generator.rtl)
        return [dict(encoder.embeddings.named_parameters()) for encoder in encoders]

    pair.resize_token_embeddings(len(VOCABULARY) + 3)
    pair.save_pretrained(tmp_path)
    for model in (pair, ElectraForRTDPretraining.from_pretrained(tmp_path)):
        first, *others = blocks(model)
        for block in others:
            assert all(block[name] is parameter for name, parameter in first.items())
        assert model.generator.cloze_lm_head.weight is first["word_embeddings.weight"]
        assert len(model.generator.cloze_lm_head.bias) == len(VOCABULARY) + 3
        assert model.float().eval()(**batch).loss.isfinite()


# ---- The pair and its run ----


def test_a_trainer_needs_the_mask_probability_of_an_electric_pair_and_tells_it_to_others(tmp_path, blocks, tokenizer):
    def settled(config, **options):
        pair = ElectraForRTDPretraining(config)
        return make_trainer(tmp_path, blocks, tokenizer, model=pair, **options).model.config

    electric = tiny_config(objective="electric", generator="two_tower", mask_probability=0.3)
    with pytest.raises(ValueError, match="mask_probability"):
        settled(electric)
    assert settled(electric, mask_probability=0.3).special_token_ids == [2, 3, 4]
    assert settled(tiny_config(), mask_probability=0.3).mask_probability == 0.3


def test_a_trained_discriminator_gets_a_new_generator_of_two_encoders(tmp_path, tokenizer):
    ElectraForRTDPretraining(tiny_config()).save_towers(tmp_path, tokenizer)
    source = str(tmp_path / "discriminator")
    electric = {"objective": "electric", "generator_type": "two_tower"}
    by_flags = build_model(ModelArguments(discriminator=source, generator_hidden_size=0.5, **electric), tokenizer, 32)
    assert by_flags.config.generator_config.hidden_size == 16
    for attention in ("flash_attention_2", "flex_attention"):
        with pytest.raises(ValueError, match="TwoTowerForCloze"):
            by_flags.generator.set_attn_implementation(attention)
    joined = ElectraForRTDPretraining.from_generator_discriminator_pretrained(None, source, **electric)
    for pair in (by_flags, joined):
        assert torch.equal(pair.get_input_embeddings().weight, pair.generator.get_input_embeddings().weight)
        assert pair.native_towers().keys() == {"discriminator"}
    with pytest.raises(ValueError, match="two_tower"):  # such a generator is never trained alone
        ElectraForRTDPretraining.from_generator_discriminator_pretrained(tmp_path / "generator", source, **electric)
