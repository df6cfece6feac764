"""The generator `unigram`, counted from the sequences of a run."""

import math
from collections import Counter

import pytest
import torch

from hf_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.base.accounting import model_flops
from hf_electra_rtd.ops import MaskedSlots, Sampling
from hf_electra_rtd.pair.bigram import count_text
from tests import reference
from tests.conftest import VOCABULARY, tiny_config


SIZE = len(VOCABULARY)
NEVER = (0, 2, 3, 4)  # [PAD], [CLS], [SEP], [MASK]


@pytest.fixture
def model(blocks, tokenizer):
    torch.manual_seed(0)
    model = ElectraForRTDPretraining(tiny_config(generator="unigram")).eval()
    count_text(model, blocks[0], tokenizer)
    return model


@pytest.fixture(scope="module")
def shares(blocks):
    """Of all tokens, written out."""
    counts = Counter(token for index in range(len(blocks[0])) for token in blocks[0][index]["input_ids"].tolist()[1:])
    weights = [0 if token in NEVER else counts[token] + 1 for token in range(SIZE)]
    return torch.tensor(weights, dtype=torch.float64) / sum(weights)


def test_the_distribution_is_that_of_the_counts(model, batch, shares):
    batch["labels"][0, 0] = -100
    output = model(**batch, output_generator_logits=True)
    wanted = shares.float().expand(*batch["labels"].shape, -1)
    torch.testing.assert_close(output.generator_logits.exp(), wanted)
    assert output.generator_predictions.eq(shares.argmax()).all()
    losses = [-math.log(shares[label]) for label in batch["labels"].flatten().tolist() if label != -100]
    assert output.generator_loss.item() == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    torch.testing.assert_close(output.loss, output.generator_loss + 50 * output.discriminator_loss)
    config = model.config
    assert model_flops(config, 8, 32, 5) == model_flops(config.changed(generator="uniform"), 8, 32, 5)


@pytest.mark.parametrize("forbidden", [False, True])
def test_samples_have_exactly_this_distribution(model, shares, forbidden):
    number = 20_000
    original = VOCABULARY.index("river")
    slots = MaskedSlots(torch.ones(1, number, dtype=torch.int64), torch.full((1, number), original))
    sampling = Sampling(torch.rand(1, number, 2), disallow_correct=forbidden)
    filled = model.generate(torch.tensor([[2, 4, 3]]), slots, sampling)
    truth = shares.clone()
    truth[original] *= not forbidden
    truth /= truth.sum()
    seen = torch.bincount(filled.sampled.flatten(), minlength=SIZE)
    assert seen[truth == 0].sum() == 0
    assert reference.chi_square_p(seen, truth * number) > 1e-3


def test_a_pair_that_counted_nothing_refuses_and_a_saved_one_counts_again(model, batch, blocks, tokenizer, tmp_path):
    model.save_pretrained(tmp_path)
    again = ElectraForRTDPretraining.from_pretrained(tmp_path).eval()
    assert "generator" not in again.towers
    with pytest.raises(ValueError, match="count_text"):
        again(**batch)
    count_text(again, blocks[0], tokenizer)
    assert again(**batch).loss == model(**batch).loss
    model.resize_token_embeddings(SIZE + 1)
    with pytest.raises(ValueError, match="unigram"):  # counts of fewer tokens
        model(**batch)
    with pytest.raises(ValueError, match="BlockFile"):
        count_text(model, [{"input_ids": [1]}], tokenizer)
    assert model(batch["input_ids"]).logits.shape == batch["input_ids"].shape  # detecting needs no counts
