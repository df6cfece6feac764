"""One sentence through both networks: mask, propose, sample, detect.

Shape suffixes: L tokens of the sentence with [CLS] and [SEP], K masked tokens, V tokens of the vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from transformers import BatchEncoding, PreTrainedTokenizerBase

from hf_electra_rtd.ops import choose_masked_positions, num_masked, sample_tokens
from hf_electra_rtd.scored_tokens import ScoredToken


class Proposal(NamedTuple):
    """A token and its probability by the generator."""

    token: str
    probability: float


class Fill(NamedTuple):
    """The generator's proposals for one masked token."""

    position: int  # in the sequence, where [CLS] is 0
    original: Proposal
    rank: int  # of the original among all tokens, from 1
    proposals: tuple[Proposal, ...]  # the most likely tokens, in order
    sampled: Proposal  # the token put in its place


class Detection(NamedTuple):
    """A sentence with some tokens replaced."""

    tokens: list[ScoredToken]  # all of them, with [CLS] and [SEP]
    fills: list[Fill]


@torch.no_grad()
def detect(
    generator: Any,
    discriminator: Any,
    tokenizer: PreTrainedTokenizerBase,
    sentence: str,
    words: Sequence[str] | None = None,
    mask_probability: float = 0.15,
    temperature: float = 1.0,
    top_k: int = 5,
    random: torch.Generator | None = None,
) -> Detection:
    """Masks tokens of a sentence, fills them by the generator, and scores every token by the discriminator.

    Every masked token becomes [MASK]; in training, some stay visible.

    Args:
        generator: an `ElectraForMaskedLM` in evaluation mode.
        discriminator: an `ElectraForPreTraining` in evaluation mode.
        tokenizer: of both; a fast one.
        words: to mask, at every occurrence, in upper or lower case, with all their wordpieces. None masks at random.
        mask_probability: share of the tokens to mask at random, [CLS] and [SEP] counted; at least one is masked.
        temperature: of sampling; 0.0 takes the most likely token. Returned probabilities have temperature 1.
        top_k: proposals for each masked token.
        random: generator of masks and samples, on the CPU; by default torch's own.

    Raises:
        ValueError: for a sentence without tokens or with too many, or a word that is not in it.
    """
    encoding = _encode(tokenizer, sentence, generator, discriminator)
    ids_L = torch.tensor(encoding["input_ids"])
    if words is None:
        candidates_L = torch.tensor([word is not None for word in encoding.word_ids()])
        count = min(num_masked(mask_probability, len(ids_L)), int(candidates_L.sum()))
        uniforms_L = torch.rand(len(ids_L), generator=random)
        positions_K = choose_masked_positions(candidates_L[None], uniforms_L[None], torch.tensor([count]), count)[0]
    else:
        positions_K = torch.tensor(find_words(encoding, sentence, words))
    masked_L = ids_L.index_fill(0, positions_K, int(tokenizer.mask_token_id))
    logits_KV = generator(masked_L[None].to(generator.device)).logits[0].float().cpu()[positions_K]
    uniforms_K2 = torch.rand(len(positions_K), 2, generator=random)
    sampled_K = sample_tokens(logits_KV, uniforms_K2, temperature)

    corrupted_L = ids_L.index_put((positions_K,), sampled_K)
    tokens = _score(discriminator, tokenizer, ids_L, corrupted_L, set(positions_K.tolist()))
    fills = []
    for position, softmax_V in zip(positions_K.tolist(), logits_KV.softmax(dim=-1), strict=True):
        original, sampled = int(ids_L[position]), int(corrupted_L[position])
        best = softmax_V.topk(min(top_k, len(softmax_V))).indices.tolist()
        names: Any = tokenizer.convert_ids_to_tokens([original, sampled, *best])
        first, drawn, *proposals = map(Proposal, names, softmax_V[[original, sampled, *best]].tolist())
        rank = 1 + int((softmax_V > softmax_V[original]).sum())
        fills.append(Fill(position, first, rank, tuple(proposals), drawn))
    return Detection(tokens, fills)


@torch.no_grad()
def score_tokens(discriminator: Any, tokenizer: PreTrainedTokenizerBase, sentence: str) -> list[ScoredToken]:
    """The probability that each token of a sentence was replaced, [CLS] and [SEP] included, by an
    `ElectraForPreTraining` in evaluation mode with its own tokenizer, a fast one.

    Raises:
        ValueError: for a sentence without tokens, or with more tokens than the discriminator has positions.
    """
    ids_L = torch.tensor(_encode(tokenizer, sentence, discriminator)["input_ids"])
    return _score(discriminator, tokenizer, ids_L, ids_L, set())


def find_words(encoding: BatchEncoding, sentence: str, words: Sequence[str]) -> list[int]:
    """The positions of the tokens of some words, ascending.

    Args:
        encoding: of the sentence, by a fast tokenizer.
        words: each one or more words of the sentence; upper and lower case do not matter.

    Raises:
        ValueError: for a word that is not in the sentence; lists those that are.
    """
    indices = sorted({index for index in encoding.word_ids() if index is not None})
    spans = {index: encoding.word_to_chars(index) for index in indices}
    starts, stops = {start for start, _ in spans.values()}, {stop for _, stop in spans.values()}
    found: set[int] = set()
    for word in words:
        matches = [
            match.span()
            for match in re.finditer(re.escape(word), sentence, re.IGNORECASE)
            if match.start() in starts and match.end() in stops
        ]
        if not word or not matches:
            listed = ", ".join(dict.fromkeys(sentence[start:stop] for start, stop in spans.values()))
            raise ValueError(f"The word {word!r} is not in the sentence. Its words are: {listed}.")
        for index, (start, stop) in spans.items():
            if any(first <= start and stop <= last for first, last in matches):
                found.update(range(*(encoding.word_to_tokens(index) or ())))
    return sorted(found)


def _encode(tokenizer: PreTrainedTokenizerBase, sentence: str, *towers: Any) -> BatchEncoding:
    encoding: BatchEncoding = tokenizer(sentence, verbose=False)
    length = len(encoding["input_ids"])
    if all(word is None for word in encoding.word_ids()):
        raise ValueError(f"The sentence {sentence!r} has no token.")
    positions = min(tower.config.max_position_embeddings for tower in towers)
    if length > positions:
        raise ValueError(
            f"The sentence {sentence[:40]!r}... has {length} tokens with [CLS] and [SEP], and the model {positions} "
            "positions. Split it."
        )
    return encoding


def _score(
    discriminator: Any, tokenizer: Any, original_L: torch.Tensor, corrupted_L: torch.Tensor, masked: set[int]
) -> list[ScoredToken]:
    probabilities = discriminator(corrupted_L[None].to(discriminator.device)).logits[0].float().sigmoid().tolist()
    originals, corrupted = (tokenizer.convert_ids_to_tokens(ids_L.tolist()) for ids_L in (original_L, corrupted_L))
    was_masked = [position in masked for position in range(len(probabilities))]
    return list(map(ScoredToken, originals, corrupted, was_masked, probabilities))
