"""Generators without a network, counted from the sequences of a run."""

import math
from collections import Counter
from itertools import pairwise

import pytest
import torch

from hf_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.base.accounting import model_flops
from hf_electra_rtd.ops import MaskedSlots, Sampling
from hf_electra_rtd.pair import generators
from hf_electra_rtd.pair.bigram import CountedBigram, count_text
from tests import reference
from tests.conftest import VOCABULARY, pad_batch, tiny_config


SIZE = len(VOCABULARY)
NEVER = (0, 2, 3, 4)  # [PAD], [CLS], [SEP], [MASK]


@pytest.fixture(scope="module")
def rows(blocks):
    return [blocks[0][index]["input_ids"].tolist() for index in range(len(blocks[0]))]


def counted(kind, blocks, tokenizer, **options):
    torch.manual_seed(0)
    model = ElectraForRTDPretraining(tiny_config(generator=kind, **options)).eval()
    count_text(model, blocks[0], tokenizer)
    return model


def expected(kind, blocks, rows, before, after):
    """Of all tokens between two others, written out."""
    seconds = Counter(token for row in rows for token in row[1:])
    share = [(seconds[token] + 1) / (sum(seconds.values()) + SIZE) for token in range(SIZE)]
    weights = share
    if kind == "bigram":
        pairs = {pair for row in rows for pair in pairwise(row)}
        follows = CountedBigram(blocks[0], SIZE).probabilities  # has a test of its own
        tokens = torch.arange(SIZE).numpy()
        first = share
        second = [1.0] * SIZE
        if any(pair[0] == before for pair in pairs):
            first = follows(torch.full((SIZE,), before).numpy(), tokens)
        if any(pair[1] == after for pair in pairs):
            second = follows(tokens, torch.full((SIZE,), after).numpy())
        weights = [one * other for one, other in zip(first, second, strict=True)]
    weights = [0.0 if token in NEVER else float(weight) for token, weight in enumerate(weights)]
    return torch.tensor([weight / sum(weights) for weight in weights])


@pytest.mark.parametrize("kind", ["unigram", "bigram"])
def test_the_distribution_is_that_of_the_counts_between_what_the_masked_sequence_shows(
    kind, batch, blocks, rows, tokenizer
):
    batch["labels"][0, 0] = -100
    output = counted(kind, blocks, tokenizer)(**batch, output_generator_logits=True)
    assert output.generator_logits.shape == (*batch["labels"].shape, SIZE)
    losses = []
    for row, slot in batch["labels"].ne(-100).nonzero().tolist():
        place = batch["masked_positions"][row, slot].item()
        ids = batch["input_ids"][row].tolist()
        truth = expected(kind, blocks, rows, ids[place - 1], ids[place + 1])
        torch.testing.assert_close(output.generator_logits[row, slot].exp(), truth, rtol=1e-4, atol=1e-8)
        losses.append(-math.log(truth[batch["labels"][row, slot]]))
        assert output.generator_predictions[row, slot] == truth.argmax()
    ids = batch["input_ids"]
    places = batch["masked_positions"]
    assert any(ids[row, place + 1] == 4 for row in range(8) for place in places[row])
    assert output.generator_loss.item() == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    torch.testing.assert_close(output.loss, output.generator_loss + 50 * output.discriminator_loss)
    config = tiny_config(generator=kind)
    assert model_flops(config, 8, 32, 5) == model_flops(config.changed(generator="uniform"), 8, 32, 5)


@pytest.mark.parametrize("forbidden", [False, True])
@pytest.mark.parametrize("kind", ["unigram", "bigram"])
def test_samples_have_exactly_this_distribution(kind, forbidden, blocks, rows, tokenizer):
    model = counted(kind, blocks, tokenizer)
    number = 20_000
    before, original, after = rows[0][4:7]
    slots = MaskedSlots(torch.ones(1, number, dtype=torch.int64), torch.full((1, number), original))
    ids = torch.tensor([[before, 4, after]])
    filled = model.generate(ids, slots, Sampling(torch.rand(1, number, 2), disallow_correct=forbidden))
    truth = expected(kind, blocks, rows, before, after).double()
    truth[original] *= not forbidden
    truth /= truth.sum()
    seen = torch.bincount(filled.sampled.flatten(), minlength=SIZE)
    assert seen[truth == 0].sum() == 0
    assert reference.chi_square_p(seen, truth * number) > 1e-3


@pytest.mark.parametrize("kind", ["unigram", "bigram"])
def test_at_the_ends_and_beside_padding_nothing_is_told(kind, batch, blocks, tokenizer, rows):
    model = counted(kind, blocks, tokenizer)
    slots = MaskedSlots(torch.tensor([[0, 2]]), torch.tensor([[7, 8]]))
    logits = model.generate(torch.tensor([[4, 0, 4]]), slots, None, output_logits=True).logits
    truth = expected("unigram", blocks, rows, 0, 0)
    torch.testing.assert_close(logits[0].exp(), truth.expand(2, -1), rtol=1e-4, atol=1e-8)


def test_few_slots_at_a_time_change_nothing(batch, blocks, tokenizer, monkeypatch):
    model = counted("bigram", blocks, tokenizer, disallow_correct=True)
    batch = pad_batch(batch, 3)
    whole = model(**batch, output_generator_logits=True)
    monkeypatch.setattr(generators, "_WEIGHTS", 7 * SIZE)
    parts = model(**batch, output_generator_logits=True)
    for name in ("corrupted_input_ids", "generator_token_losses", "generator_predictions", "generator_logits"):
        assert torch.equal(getattr(whole, name), getattr(parts, name)), name


def test_a_pair_that_counted_nothing_refuses_and_a_saved_one_counts_again(batch, blocks, tokenizer, tmp_path):
    model = counted("bigram", blocks, tokenizer)
    model.save_pretrained(tmp_path)
    again = ElectraForRTDPretraining.from_pretrained(tmp_path).eval()
    assert "generator" not in again.towers
    with pytest.raises(ValueError, match="count_text"):
        again(**batch)
    count_text(again, blocks[0], tokenizer)
    assert again(**batch).loss == model(**batch).loss
    model.resize_token_embeddings(SIZE + 1)
    with pytest.raises(ValueError, match="bigram"):  # counts of fewer tokens
        model(**batch)
    with pytest.raises(ValueError, match="BlockFile"):
        count_text(model, [{"input_ids": [1]}], tokenizer)
    assert model(batch["input_ids"]).logits.shape == batch["input_ids"].shape  # detecting needs no counts
