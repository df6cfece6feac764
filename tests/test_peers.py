"""What other trainers of replaced token detection get wrong (docs/fidelity.md, "Other trainers"), where no test of a
room says it already."""

import copy

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from hf_electra_rtd import ElectraAdamW, ElectraForRTDPretraining, ElectraRTDConfig
from hf_electra_rtd.detectors import detection_logits
from hf_electra_rtd.families import inputs_of
from tests.conftest import VOCABULARY
from tests.families_for_tests import FAMILY_NAMES, tiny_family_config
from tests.reference import originals


def tables(tower):
    """The word table, and the position table where there is one."""
    positions = getattr(tower.base_model.embeddings, "position_embeddings", None)
    return [each.weight for each in (tower.get_input_embeddings(), positions) if each is not None]


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_after_a_joint_step_disentangled_embeddings_are_the_generators_present_tables_and_the_differences(
    family, batch
):
    """Not a copy that is synchronised, nor a frozen table without differences."""
    config = tiny_family_config(family, vocab_size=len(VOCABULARY), pad_token_id=0)
    model = ElectraForRTDPretraining(ElectraRTDConfig(discriminator_config=config, sharing="gdes")).double()
    before = [table.detach().clone() for tower in (model.generator, model.discriminator) for table in tables(tower)]
    model(**batch).loss.backward()
    ElectraAdamW(model.parameters(), lr=0.05).step()
    alone = type(model.discriminator)(copy.deepcopy(model.config.discriminator_config)).double().eval()
    alone.load_state_dict(model.discriminator.state_dict())
    after = [*tables(model.generator), *tables(model.discriminator)]
    assert not any(torch.equal(*pair) for pair in zip(before, after, strict=True))  # tables and differences learn
    with torch.no_grad():
        for table, live in zip(tables(alone), tables(model.generator), strict=True):
            table.add_(live)
        ids = originals(batch)
        expected = detection_logits(alone, **inputs_of(alone.config, {"input_ids": ids}))
        torch.testing.assert_close(model.eval()(ids).logits, expected, rtol=1e-9, atol=1e-12)


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
