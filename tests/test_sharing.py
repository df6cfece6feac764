"""Shared parameters are one tensor: in memory, in the file, after loading, and after a resize."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors import safe_open
from transformers import AutoModelForPreTraining, ElectraForMaskedLM, ElectraForPreTraining

from hf_electra_rtd import ElectraForRTDPretraining
from tests.conftest import VOCABULARY, tiny_config


SHARED = {
    "none": set(),
    "word": {"word_embeddings.weight"},
    "embeddings": {
        "word_embeddings.weight",
        "position_embeddings.weight",
        "token_type_embeddings.weight",
        "LayerNorm.weight",
        "LayerNorm.bias",
    },
    "gdes": set(),
}
SHARED["all"] = SHARED["embeddings"]


def assert_shares_exactly(model, sharing):
    encoders = [dict(tower.electra.encoder.named_parameters()) for tower in model.towers.values()]
    assert all((encoders[0][name] is encoders[1][name]) == (sharing == "all") for name in encoders[0])
    blocks = [dict(tower.electra.embeddings.named_parameters()) for tower in model.towers.values()]
    for name in blocks[0]:
        assert (blocks[0][name] is blocks[1][name]) == (name in SHARED[sharing]), name
    assert len({id(p) for p in model.parameters()}) == len({p.data_ptr() for p in model.parameters()})
    assert model.generator.generator_lm_head.weight is blocks[0]["word_embeddings.weight"]
    assert all(tower.get_input_embeddings().padding_idx is None for tower in model.towers.values())


@pytest.mark.parametrize("sharing", SHARED)
def test_ties_survive_saving_and_loading_and_no_tensor_is_stored_twice(tmp_path, batch, sharing):
    model = ElectraForRTDPretraining(tiny_config(sharing=sharing)).eval()
    assert_shares_exactly(model, sharing)
    model.save_pretrained(tmp_path)
    assert [path.name for path in tmp_path.glob("*.safetensors")] == ["model.safetensors"]
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        stored = set(file.keys())
    assert len(stored) == len(list(model.parameters()))
    for load in (ElectraForRTDPretraining, AutoModelForPreTraining):
        loaded, report = load.from_pretrained(tmp_path, output_loading_info=True)
        assert not report["missing_keys"] | report["unexpected_keys"]
        assert_shares_exactly(loaded, sharing)
        assert torch.equal(loaded.eval()(**batch).loss, model(**batch).loss)


@pytest.mark.parametrize("sharing", SHARED)
@pytest.mark.parametrize("change", [7, -3])
def test_a_resize_keeps_all_three_tables_tied(tmp_path, batch, sharing, change):
    model = ElectraForRTDPretraining(tiny_config(sharing=sharing)).eval()
    before = model.get_input_embeddings().weight.detach().clone()
    size = len(VOCABULARY) + change
    kept = min(size, len(VOCABULARY))
    model.resize_token_embeddings(size)
    assert_shares_exactly(model, sharing)
    assert torch.equal(model.get_input_embeddings().weight[:kept], before[:kept])
    head = model.generator.generator_lm_head
    assert (head.out_features, head.bias.shape, head.weight.shape[0]) == (size, (size,), size)
    for tower in model.towers.values():
        assert tower.get_input_embeddings().num_embeddings == tower.config.vocab_size == size
    batch |= {name: batch[name].clamp(max=size - 1) for name in ("input_ids", "labels")}
    model.save_pretrained(tmp_path)
    loaded = ElectraForRTDPretraining.from_pretrained(tmp_path).eval()
    assert torch.equal(loaded(**batch).loss, model(**batch).loss)


# ---- Gradients, compared with two towers that share nothing ----


def untied_copy(model):
    """The same towers, with the same weights, as two models that share no tensor."""
    copy = ElectraForRTDPretraining(model.config.changed(sharing="none")).eval().double()
    copy.generator.load_state_dict(model.generator.state_dict())
    copy.discriminator.load_state_dict(model.native_discriminator().state_dict())
    return copy


def gradients(model, batch, loss):
    model.zero_grad()
    getattr(model(**batch), loss).backward()
    return {name: p.grad for name, p in model.named_parameters(remove_duplicate=False)}


@pytest.fixture
def replay(model, batch):
    return {**batch, "corrupted_input_ids": model(**batch).corrupted_input_ids}


def trained_a_little(sharing):
    """A pair whose tables of deltas and biases are not zero."""
    model = ElectraForRTDPretraining(tiny_config(sharing=sharing)).eval().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("sharing", SHARED)
@pytest.mark.parametrize("loss", ["generator_loss", "discriminator_loss", "loss"])
def test_a_tied_tensor_gets_the_sum_of_both_towers_gradients_and_any_other_its_own(replay, sharing, loss):
    model = trained_a_little(sharing)
    copy = untied_copy(model)
    torch.testing.assert_close(model(**replay).loss, copy(**replay).loss)
    ours = gradients(model, replay, loss)
    apart = gradients(copy, replay, loss)
    tied = model.all_tied_weights_keys
    groups = {}
    for name in apart:  # generator_lm_head.weight -> generator's word table -> the discriminator's
        source = name
        while source in tied:
            source = tied[source]
        groups.setdefault(source, []).append(name)
    for source, names in groups.items():
        # A tensor that is shared within a tower already has a single gradient there.
        distinct = {id(copy.get_parameter(name)): apart[name] for name in names}
        parts = [gradient for gradient in distinct.values() if gradient is not None]
        if ours[source] is None:
            assert not parts, source
        else:
            expected = sum(parts, torch.zeros_like(ours[source]))
            torch.testing.assert_close(ours[source], expected, rtol=1e-9, atol=1e-12)
    if sharing == "all":
        shared = "discriminator.electra.encoder.layer.0.attention.self.query.weight"
        assert ours[shared].any()


# ---- Deltas ----


def test_deltas_begin_at_zero_and_the_look_up_is_the_generators(batch):
    model = ElectraForRTDPretraining(tiny_config(sharing="gdes")).eval()
    for table in ("word_embeddings", "position_embeddings"):
        assert not getattr(model.discriminator.electra.embeddings, table).weight.any()
        alone = getattr(model.native_discriminator().electra.embeddings, table).weight
        assert torch.equal(alone, getattr(model.generator.electra.embeddings, table).weight)


@pytest.mark.parametrize("change", [7, -3])
def test_a_resize_keeps_what_the_discriminator_says_and_new_tokens_begin_as_the_generators(batch, change):
    model = trained_a_little("gdes")
    ids = batch["input_ids"].clamp(max=len(VOCABULARY) - 4)
    before = model(ids).logits
    model.resize_token_embeddings(len(VOCABULARY) + change)
    torch.testing.assert_close(model(ids).logits, before)
    assert not model.discriminator.electra.embeddings.word_embeddings.weight[len(VOCABULARY) :].any()


@pytest.mark.parametrize("sharing", SHARED)
def test_exported_towers_say_what_the_pair_says_and_join_again(tmp_path, batch, sharing):
    model = trained_a_little(sharing).float()
    model.save_towers(tmp_path)
    ids = batch["input_ids"]
    generator = ElectraForMaskedLM.from_pretrained(tmp_path / "generator").eval()
    discriminator = ElectraForPreTraining.from_pretrained(tmp_path / "discriminator").eval()
    joined = ElectraForRTDPretraining.from_generator_discriminator_pretrained(
        tmp_path / "generator", tmp_path / "discriminator", sharing=sharing, temperature=0.5
    ).eval()
    assert (joined.dtype, joined.config.sharing, joined.config.temperature) == (torch.float32, sharing, 0.5)
    for logits in (generator(ids).logits, joined.generator(ids).logits):
        torch.testing.assert_close(logits, model.generator(ids).logits, rtol=0, atol=1e-6)
    for logits in (discriminator(ids).logits, joined(ids).logits):
        torch.testing.assert_close(logits, model(ids).logits, rtol=0, atol=1e-5)
    joined.save_pretrained(tmp_path / "pair")
    assert str(tmp_path) not in (tmp_path / "pair" / "config.json").read_text()


@pytest.mark.parametrize(
    ("saved", "wanted"), [("gdes", "none"), ("none", "gdes"), ("none", "word"), ("embeddings", "none")]
)
def test_a_pair_is_not_read_with_another_mode_of_sharing(saved, wanted, tmp_path):
    ElectraForRTDPretraining(tiny_config(sharing=saved)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"'{saved}'.*'{wanted}'"):
        ElectraForRTDPretraining.from_pretrained(tmp_path, sharing=wanted)
    ElectraForRTDPretraining.from_pretrained(tmp_path, sharing=saved)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")  # peft reads it; transformers warns
@pytest.mark.parametrize("sharing", ["none", "word", "embeddings", "gdes"])
def test_a_pair_with_merged_adapters_is_saved_and_read_like_any_other(sharing, tmp_path):
    model = ElectraForRTDPretraining(tiny_config(sharing=sharing))
    adapted = get_peft_model(model, LoraConfig(target_modules=["query"]))
    adapted.merge_and_unload().save_pretrained(tmp_path)
    assert_shares_exactly(ElectraForRTDPretraining.from_pretrained(tmp_path), sharing)
