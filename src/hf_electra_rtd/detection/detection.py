"""One sentence through both towers: mask, propose, sample, judge.

Shape suffixes: L tokens of the sentence with [CLS] and [SEP], K masked tokens, V tokens of the vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import BatchEncoding, PreTrainedTokenizerBase

from hf_electra_rtd.judgement import JudgedToken
from hf_electra_rtd.ops import choose_masked_positions, num_masked, sample_tokens


@dataclass(frozen=True)
class Proposal:
    """A token that the generator proposes, and how likely it finds it."""

    token: str
    probability: float


@dataclass(frozen=True)
class Fill:
    """What the generator made of one masked token.

    Attributes:
        position: in the row, where [CLS] is 0.
        original: what stood there, as the generator rates it.
        rank: of the original among all proposals, from 1.
        proposals: the most likely tokens, the likeliest first.
        sampled: what was put in its place.
    """

    position: int
    original: Proposal
    rank: int
    proposals: tuple[Proposal, ...]
    sampled: Proposal


@dataclass(frozen=True)
class Detection:
    """A sentence with some tokens replaced: `tokens` with [CLS] and [SEP], and a fill for each masked one, in
    order."""

    tokens: list[JudgedToken]
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
    """Masks tokens of a sentence, lets the generator fill them, and asks the discriminator about every token.

    Every masked token becomes [MASK]; none is kept visible, as some are in training.

    Args:
        generator: an `ElectraForMaskedLM` in evaluation mode.
        discriminator: an `ElectraForPreTraining` in evaluation mode.
        tokenizer: of both; a fast one.
        sentence: the text.
        words: to mask, wherever they stand in the sentence, in upper or lower case, with all their wordpieces. None
            masks at random.
        mask_probability: share of the tokens that is masked at random, [CLS] and [SEP] counted; at least one.
        temperature: of the generator's softmax when it samples; 0.0 takes the most likely token. The probabilities
            that are returned are those of temperature 1.
        top_k: proposals for each masked token.
        random: where masks and samples are drawn from; on the CPU; by default torch's own.

    Raises:
        ValueError: for a sentence without tokens or with too many, or a word that does not stand in it.
    """
    encoding = _encode(tokenizer, sentence, generator, discriminator)
    ids_L = torch.tensor(encoding["input_ids"])
    if words is None:
        positions_K = _at_random(encoding, mask_probability, random)
    else:
        positions_K = torch.tensor(find_words(encoding, sentence, words))
    masked_L = ids_L.index_fill(0, positions_K, int(tokenizer.mask_token_id))
    logits_KV = generator(masked_L[None].to(generator.device)).logits[0].float().cpu()[positions_K]
    uniforms_K2 = torch.rand(len(positions_K), 2, generator=random)
    sampled_K = sample_tokens(logits_KV, uniforms_K2, temperature)

    corrupted_L = ids_L.index_put((positions_K,), sampled_K)
    return Detection(
        _judge(discriminator, tokenizer, ids_L, corrupted_L, set(positions_K.tolist())),
        _fills(tokenizer, positions_K, logits_KV, ids_L[positions_K], sampled_K, top_k),
    )


@torch.no_grad()
def judge(discriminator: Any, tokenizer: PreTrainedTokenizerBase, sentence: str) -> list[JudgedToken]:
    """The discriminator's word on every token of a sentence as it stands, [CLS] and [SEP] included.

    Args:
        discriminator: an `ElectraForPreTraining` in evaluation mode.
        tokenizer: its own; a fast one.
        sentence: the text.

    Raises:
        ValueError: for a sentence without tokens, or with more than the discriminator has positions.
    """
    ids_L = torch.tensor(_encode(tokenizer, sentence, discriminator)["input_ids"])
    return _judge(discriminator, tokenizer, ids_L, ids_L, set())


def find_words(encoding: BatchEncoding, sentence: str, words: Sequence[str]) -> list[int]:
    """The positions of the tokens of some words, ascending.

    Args:
        encoding: of the sentence, by a fast tokenizer, with offsets.
        sentence: the text.
        words: one or more of its words each, spelt as in the sentence but for upper and lower case.

    Raises:
        ValueError: for a word that does not stand in the sentence; the error lists those that do.
    """
    spans = [
        (position, start, stop)
        for position, (start, stop) in enumerate(encoding["offset_mapping"])
        if encoding.word_ids()[position] is not None
    ]
    there = _word_spans(encoding)
    starts, stops = {start for start, _ in there}, {stop for _, stop in there}
    found: set[int] = set()
    for word in words:
        matches = [
            match.span()
            for match in re.finditer(re.escape(word), sentence, re.IGNORECASE)
            if match.start() in starts and match.end() in stops
        ]
        if not word or not matches:
            listed = ", ".join(dict.fromkeys(sentence[start:stop] for start, stop in there))
            raise ValueError(f"The word {word!r} does not stand in the sentence. Its words are: {listed}.")
        found.update(
            position
            for position, start, stop in spans
            if any(first <= start and stop <= last for first, last in matches)
        )
    return sorted(found)


def _word_spans(encoding: BatchEncoding) -> list[tuple[int, int]]:
    """From where to where each word reaches, in characters of the sentence."""
    spans: dict[int, tuple[int, int]] = {}
    for word, (start, stop) in zip(encoding.word_ids(), encoding["offset_mapping"], strict=True):
        if word is not None:
            spans[word] = (spans.get(word, (start, stop))[0], stop)
    return list(spans.values())


def _encode(tokenizer: PreTrainedTokenizerBase, sentence: str, *towers: Any) -> BatchEncoding:
    encoding: BatchEncoding = tokenizer(sentence, return_offsets_mapping=True, verbose=False)
    length = len(encoding["input_ids"])
    if all(word is None for word in encoding.word_ids()):
        raise ValueError(f"The sentence {sentence!r} has no token.")
    positions = min(tower.config.max_position_embeddings for tower in towers)
    if length > positions:
        raise ValueError(
            f"The sentence has {length} tokens with [CLS] and [SEP], the model {positions} positions: shorten or "
            f"split it ({sentence[:40]!r}...)."
        )
    return encoding


def _at_random(encoding: BatchEncoding, mask_probability: float, random: torch.Generator | None) -> Tensor:
    candidates_L = torch.tensor([word is not None for word in encoding.word_ids()])
    count = min(num_masked(mask_probability, len(candidates_L)), int(candidates_L.sum()))
    uniforms_L = torch.rand(len(candidates_L), generator=random)
    return choose_masked_positions(candidates_L[None], uniforms_L[None], torch.tensor([count]), count)[0]


def _judge(
    discriminator: Any, tokenizer: PreTrainedTokenizerBase, original_L: Tensor, corrupted_L: Tensor, masked: set[int]
) -> list[JudgedToken]:
    probabilities = discriminator(corrupted_L[None].to(discriminator.device)).logits[0].float().sigmoid().tolist()
    name: Any = tokenizer.convert_ids_to_tokens
    return [
        JudgedToken(original, corrupted, position in masked, probability)
        for position, (original, corrupted, probability) in enumerate(
            zip(name(original_L.tolist()), name(corrupted_L.tolist()), probabilities, strict=True)
        )
    ]


def _fills(
    tokenizer: PreTrainedTokenizerBase,
    positions_K: Tensor,
    logits_KV: Tensor,
    originals_K: Tensor,
    sampled_K: Tensor,
    top_k: int,
) -> list[Fill]:
    name: Any = tokenizer.convert_ids_to_tokens
    fills = []
    for position, probabilities, original, sampled in zip(
        positions_K.tolist(), logits_KV.softmax(dim=-1), originals_K.tolist(), sampled_K.tolist(), strict=True
    ):
        best = probabilities.topk(min(top_k, len(probabilities))).indices.tolist()
        first, drawn, *proposals = (
            Proposal(name(token), float(probabilities[token])) for token in (original, sampled, *best)
        )
        rank = 1 + int((probabilities > probabilities[original]).sum())
        fills.append(Fill(position, first, rank, tuple(proposals), drawn))
    return fills
