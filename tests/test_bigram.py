"""The counted bigram as a yardstick: its probabilities, and that it tells replaced tokens."""

import itertools
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from hf_electra_rtd import bigram
from hf_electra_rtd.bigram import CountedBigram
from hf_electra_rtd.data.preparation import prepare_blocks
from hf_electra_rtd.measures import observe, report_totals, sum_rows


@pytest.fixture(scope="module", params=["full", "original"])
def sequences(request, corpus, tokenizer, tmp_path_factory):
    """Sequences without padding, and with it."""
    directory, options = tmp_path_factory.mktemp("blocks"), {"packing": request.param, "disable_progress": True}
    return prepare_blocks([str(corpus)], tokenizer, directory, 32, **options)[0]


def test_probabilities_are_those_of_kneser_ney(sequences):
    rows = [sequences[index]["input_ids"].tolist() for index in range(len(sequences))]
    pairs = Counter(pair for row in rows for pair in itertools.pairwise(row))
    counted, vocab_size = CountedBigram(sequences), sequences.header.vocab_size
    for first, second in [*list(pairs)[:50], (5, 6), (0, 7), (7, 0)]:
        begins = {pair: count for pair, count in pairs.items() if pair[0] == first}
        ends = (sum(pair[1] == second for pair in pairs) + 1) / (len(pairs) + vocab_size)
        total = sum(begins.values())
        expected = ends
        if total:
            expected = max(pairs[first, second] - 0.75, 0) / total + 0.75 * len(begins) / total * ends
        assert counted.probabilities(np.array([first]), np.array([second])).item() == pytest.approx(expected)


def test_probabilities_of_what_follows_a_token_add_up_to_one(sequences):
    vocab_size = sequences.header.vocab_size
    firsts = np.repeat(np.arange(vocab_size), vocab_size).reshape(vocab_size, -1)
    sums = CountedBigram(sequences).probabilities(firsts, np.tile(np.arange(vocab_size), (vocab_size, 1))).sum(axis=1)
    np.testing.assert_allclose(sums, 1)


def test_a_long_file_is_counted_in_part_from_all_over_it(sequences, monkeypatch):
    monkeypatch.setattr(bigram, "_MOST_TOKENS", sequences.header.num_tokens // 3)
    rows = [sequences[index]["input_ids"] for index in range(0, len(sequences), 3)]
    assert CountedBigram(sequences)._counts.sum() == sum(len(row) - 1 for row in rows)


def test_the_measure_is_the_area_over_real_tokens(model, batch, blocks):
    counted = CountedBigram(blocks[0])
    output = model(**batch)
    seen = observe(output, batch)
    scores = counted.scores(output.corrupted_input_ids.numpy(), seen.real.numpy())
    wanted = roc_auc_score(output.replaced_labels.flatten(), scores.flatten())
    whole = [tensor.numpy() for tensor in counted.whole(seen)]
    assert report_totals([counted], [], whole) == {"bigram_auc": pytest.approx(wanted)}
    assert sum_rows([*model.measures, counted], seen).shape == sum_rows(model.measures, seen).shape


def test_padding_does_not_count(batch, blocks):
    real = torch.ones_like(batch["input_ids"], dtype=torch.bool)
    real[:, 20:] = False
    ids = batch["input_ids"]
    output = SimpleNamespace(corrupted_input_ids=ids, replaced_labels=torch.ones_like(ids))
    _, labels = CountedBigram(blocks[0]).whole(SimpleNamespace(output=output, real=real))
    assert labels[:, 20:].eq(-100).all()
    assert labels[:, :20].eq(1).all()
