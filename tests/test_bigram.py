"""The counted bigram as a baseline: its probabilities, and its ROC area as a detector of replaced tokens."""

import itertools
from collections import Counter

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from hf_electra_rtd.data.preparation import prepare_blocks
from hf_electra_rtd.pair import bigram
from hf_electra_rtd.pair.bigram import CountedBigram
from hf_electra_rtd.pair.measures import observe, report_totals, sum_rows
from tests.conftest import pad_batch


@pytest.fixture(scope="module", params=["full", "original"])
def sequences(request, corpus, tokenizer, tmp_path_factory):
    """Sequences without padding, then sequences with padding."""
    directory = tmp_path_factory.mktemp("blocks")
    options = {"packing": request.param, "disable_progress": True}
    return prepare_blocks([str(corpus)], tokenizer, directory, 32, **options)[0]


@pytest.mark.parametrize("padded", [0, 7])
def test_probabilities_are_those_of_kneser_ney(sequences, padded):
    rows = [sequences[index]["input_ids"].tolist() for index in range(len(sequences))]
    pairs = Counter(pair for row in rows for pair in itertools.pairwise(row))
    vocab_size = sequences.header.vocab_size + padded
    counted = CountedBigram(sequences, vocab_size)
    for first, second in [*list(pairs)[:50], (5, 6), (0, 7), (7, 0)]:
        begins = {pair: count for pair, count in pairs.items() if pair[0] == first}
        ends = (sum(pair[1] == second for pair in pairs) + 1) / (len(pairs) + vocab_size)
        total = sum(begins.values())
        expected = ends
        if total:
            expected = max(pairs[first, second] - 0.75, 0) / total + 0.75 * len(begins) / total * ends
        assert counted.probabilities(np.array([first]), np.array([second])).item() == pytest.approx(expected)


def test_a_long_file_is_counted_in_part_from_all_over_it(sequences, monkeypatch):
    monkeypatch.setattr(bigram, "_MOST_TOKENS", sequences.header.num_tokens // 3)
    rows = [sequences[index]["input_ids"] for index in range(0, len(sequences), 3)]
    assert CountedBigram(sequences, 0)._counts.sum() == sum(len(row) - 1 for row in rows)


@pytest.mark.parametrize("masked_only", [False, True])
def test_the_measure_is_the_area_over_real_or_masked_tokens(model, batch, blocks, masked_only):
    counted = CountedBigram(blocks[0], 0, masked_only)
    batch = pad_batch(batch, 5)
    output = model(**batch)
    output.replaced_labels[::2] = 0  # an untrained generator hits no token
    seen = observe(output, batch)
    scores, labels = (tensor.numpy() for tensor in counted.whole(seen))
    real = (seen.masked if masked_only else seen.real).numpy()
    expected = counted.scores(output.corrupted_input_ids.numpy(), seen.real.numpy())[real]
    wanted = roc_auc_score(output.replaced_labels.numpy()[real], expected)
    assert report_totals([counted], [], [scores, labels]) == {"bigram_auc": pytest.approx(wanted)}
    assert sum_rows([*model.measures, counted], seen).shape == sum_rows(model.measures, seen).shape
