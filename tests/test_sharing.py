"""What is shared is one tensor: in memory, in the file, after loading, after a resize."""

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForPreTraining

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
}


def assert_shares_exactly(model, sharing):
    generator = dict(model.generator.electra.embeddings.named_parameters())
    discriminator = dict(model.discriminator.electra.embeddings.named_parameters())
    for name in generator:
        tied = name in SHARED[sharing]
        assert (generator[name] is discriminator[name]) == tied, name
        assert (generator[name].data_ptr() == discriminator[name].data_ptr()) == tied, name
    assert model.generator.generator_lm_head.weight is generator["word_embeddings.weight"]
    for tower in (model.generator, model.discriminator):
        assert tower.get_input_embeddings().padding_idx is None


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
        assert not report["missing_keys"]
        assert not report["unexpected_keys"]
        assert_shares_exactly(loaded, sharing)
        assert torch.equal(loaded.eval()(**batch).loss, model(**batch).loss)


@pytest.mark.parametrize("sharing", SHARED)
@pytest.mark.parametrize("change", [7, -3])
def test_a_resize_keeps_all_three_tables_tied(tmp_path, batch, sharing, change):
    model = ElectraForRTDPretraining(tiny_config(sharing=sharing)).eval()
    before = model.get_input_embeddings().weight.detach().clone()
    size, kept = len(VOCABULARY) + change, len(VOCABULARY) + min(change, 0)
    model.resize_token_embeddings(size)
    assert_shares_exactly(model, sharing)
    assert torch.equal(model.get_input_embeddings().weight[:kept], before[:kept])
    head = model.generator.generator_lm_head
    assert (head.out_features, head.bias.shape, head.weight.shape[0]) == (size, (size,), size)
    for tower in (model.generator, model.discriminator):
        assert tower.get_input_embeddings().num_embeddings == tower.config.vocab_size == size
    batch = {
        **batch,
        "input_ids": batch["input_ids"].clamp(max=size - 1),
        "labels": batch["labels"].clamp(max=size - 1),
    }
    loss = model(**batch).loss
    model.save_pretrained(tmp_path)
    loaded = ElectraForRTDPretraining.from_pretrained(tmp_path).eval()
    assert_shares_exactly(loaded, sharing)
    assert torch.equal(loaded(**batch).loss, loss)


def test_a_resize_to_nothing_in_particular_changes_nothing(model):
    embedding = model.get_input_embeddings()
    assert model.resize_token_embeddings() is embedding
    assert model.resize_token_embeddings(pad_to_multiple_of=64).num_embeddings == 64


@pytest.mark.parametrize("size", ["embedding_size", "max_position_embeddings"])
def test_towers_of_different_sizes_cannot_share(size):
    config = tiny_config()
    setattr(config.generator_config, size, 8)
    with pytest.raises(ValueError, match=f"same {size} in both towers"):
        ElectraForRTDPretraining(config)
    config.sharing = "none"
    ElectraForRTDPretraining(config)
