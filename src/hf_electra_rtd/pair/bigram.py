"""A baseline for the discriminator: a bigram model that is counted on a training text.

A discriminator with a lower AUC than the bigram has not learned more than pairs of words yet.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hf_electra_rtd.data.blocks import Blocks
from hf_electra_rtd.ops import IGNORED
from hf_electra_rtd.pair.measures import Measure, Observation, exact_auc


_MOST_TOKENS = 2**24  # tokens that are counted at most, in sequences from all over the file
_DISCOUNT = 0.75  # the usual value of Kneser-Ney smoothing


class CountedBigram(Measure):
    """`bigram_auc`: the area under the ROC curve of

        score(x_t) = -log p(x_t | x_t-1) / p(x_t) - log p(x_t+1 | x_t) / p(x_t+1)

    for "x_t was replaced", over the masked or all real tokens of held-out sequences. p(y) is the share of a token in
    the training sequences, p(y | x) their bigram with interpolated Kneser-Ney smoothing (Ney, Essen and Kneser 1994).
    """

    num_sums = 0
    num_whole = 2

    def __init__(self, sequences: Blocks, vocab_size: int, masked_only: bool = False) -> None:
        header = sequences.header
        self.masked_only = masked_only
        self._vocab_size = max(header.vocab_size, vocab_size)  # a model's vocabulary may be padded
        step = max(1, header.num_tokens // _MOST_TOKENS)
        pairs = [np.empty(0, dtype=np.int64)]
        for first in range(0, len(sequences), 4096 * step):
            batch = sequences.read(np.arange(first, min(first + 4096 * step, len(sequences)), step))
            ids_BL = batch.ids.astype(np.int64)
            inside_BL = np.arange(1, ids_BL.shape[1]) < batch.lengths[:, None]
            pairs.append((ids_BL[:, :-1] * self._vocab_size + ids_BL[:, 1:])[inside_BL])
        self._pairs, self._counts = np.unique(np.concatenate(pairs), return_counts=True)
        firsts, seconds = np.divmod(self._pairs, self._vocab_size)
        self._of_first = np.bincount(firsts, self._counts, self._vocab_size)  # how many pairs begin with each token
        kinds_of_first = np.bincount(firsts, minlength=self._vocab_size)
        # The weight of the lower order.
        self._rest = np.where(kinds_of_first > 0, _DISCOUNT * kinds_of_first / np.maximum(self._of_first, 1), 1.0)
        kinds_of_second = np.bincount(seconds, minlength=self._vocab_size)
        # The lower order of the bigram: the share of the distinct pairs that end in each token, after one was added to
        # every count, so that no share is zero.
        self._ends = (kinds_of_second + 1) / (len(self._pairs) + self._vocab_size)
        counts = np.bincount(seconds, self._counts, self._vocab_size) + 1
        # The share of each token in the text, float64 (V,), as if it occurred once more.
        self.shares = counts / counts.sum()

    def probabilities(self, firsts: np.ndarray, seconds: np.ndarray) -> np.ndarray:
        """Returns p(second | first) for two arrays of ids of one shape."""
        codes = firsts.astype(np.int64) * self._vocab_size + seconds
        places = np.minimum(np.searchsorted(self._pairs, codes), len(self._pairs) - 1)
        counts = np.where(self._pairs[places] == codes, self._counts[places], 0)
        total = np.maximum(self._of_first[firsts], 1)
        return np.maximum(counts - _DISCOUNT, 0) / total + self._rest[firsts] * self._ends[seconds]

    def scores(self, ids_BL: np.ndarray, real_BL: np.ndarray) -> np.ndarray:
        """Returns scores, float64 (B, L): the higher, the likelier it is that a token was replaced. Padding, where
        `real_BL` is False, contributes nothing."""
        gains = np.log(self.probabilities(ids_BL[:, :-1], ids_BL[:, 1:]) / self.shares[ids_BL[:, 1:]])
        gains = gains * real_BL[:, 1:]
        return -np.pad(gains, ((0, 0), (1, 0))) - np.pad(gains, ((0, 0), (0, 1)))

    def sums(self, seen: Observation) -> tuple[Tensor, ...]:
        return ()

    def whole(self, seen: Observation) -> tuple[Tensor, ...]:
        ids_BL = seen.output.corrupted_input_ids
        scored = torch.from_numpy(self.scores(ids_BL.cpu().numpy(), seen.real.cpu().numpy())).float().to(ids_BL.device)
        scores, counts = seen.at(scored, self.masked_only)
        replaced, _ = seen.at(seen.output.replaced_labels, self.masked_only)
        return scores, replaced.to(torch.int8).masked_fill(~counts, IGNORED)

    def report(self, totals: Sequence[float], whole: Sequence[np.ndarray] = ()) -> dict[str, float]:
        return {"bigram_auc": exact_auc(*whole)}
