"""The work of every contestant: a pair's configuration, random rows in a block file, and masked batches of them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoConfig, BertTokenizer

from hf_electra_rtd import BlockFile, DataCollatorForRTD, ElectraRTDConfig, SequenceStream
from hf_electra_rtd.base.accounting import model_flops
from hf_electra_rtd.base.files import load_pretrained
from hf_electra_rtd.data.blocks import writing_blocks
from hf_electra_rtd.data.packing import PackedSequence
from hf_electra_rtd.data.tokenization import SPECIAL_TOKENS
from hf_electra_rtd.encoders.families import DROPOUTS
from hf_electra_rtd.ops import IGNORED, num_masked


@dataclass(frozen=True)
class Workload:
    """One optimizer step: both towers of a named size (or with `backbone`, the configuration of another encoder), and
    full rows."""

    size: str = "small"
    vocab_size: int = 30522
    batch_size: int = 16
    max_seq_length: int = 128
    mask_probability: float = 0.15
    dropout: float = 0.1
    seed: int = 0
    backbone: str | None = None

    @property
    def tokens(self) -> int:
        return self.batch_size * self.max_seq_length

    @property
    def num_masked(self) -> int:
        """K, the number of masked tokens of a row."""
        return num_masked(self.mask_probability, self.max_seq_length)

    def config(self) -> ElectraRTDConfig:
        if self.backbone is not None:
            tower = load_pretrained(AutoConfig, self.backbone, vocab_size=self.vocab_size)
            tower.update({name: self.dropout for name in DROPOUTS if hasattr(tower, name)})
            return ElectraRTDConfig(discriminator_config=tower)
        return ElectraRTDConfig.from_size(
            self.size,
            vocab_size=self.vocab_size,
            hidden_dropout_prob=self.dropout,
            attention_probs_dropout_prob=self.dropout,
            max_position_embeddings=max(512, self.max_seq_length),
        )

    def flops(self) -> int:
        """Returns the FLOPs of a step, with a vocabulary projection of only the masked tokens: the same count for
        every contestant."""
        return model_flops(self.config(), self.batch_size, self.max_seq_length, self.num_masked)

    def tokenizer(self) -> BertTokenizer:
        words = (f"word{index}" for index in range(self.vocab_size - len(SPECIAL_TOKENS)))
        vocab = {token: index for index, token in enumerate([*SPECIAL_TOKENS, *words])}
        return BertTokenizer(vocab=vocab, model_max_length=self.max_seq_length)

    def write_rows(self, directory: str | os.PathLike[str], num_sequences: int) -> BlockFile:
        """Writes rows `[CLS] A [SEP] B [SEP]` of random words as a block file in `directory`."""
        random = np.random.default_rng(self.seed)
        ids = random.integers(len(SPECIAL_TOKENS), self.vocab_size, (num_sequences, self.max_seq_length))
        middle = self.max_seq_length // 2
        ids[:, 0] = SPECIAL_TOKENS.index("[CLS]")
        ids[:, [middle, -1]] = SPECIAL_TOKENS.index("[SEP]")
        path = Path(directory) / "rows.blocks"
        with writing_blocks(path, self.max_seq_length, self.vocab_size) as writer:
            writer.write([PackedSequence(row, middle + 1) for row in ids])
            writer.finish(tokenizer_hash="", packing="random", statistics={}, sources=[], recipe={})
        return BlockFile(path)


@dataclass(frozen=True)
class Batch:
    """A masked batch in the forms that contestants need.

    Attributes:
        inputs: what the collator gives: `model(**inputs)`.
        labels: (B, L); the original ids of masked tokens, elsewhere -100.
        originals: (B, L); the rows before masking.
        corrupted: (B, L); the rows with made-up fills, about half of them the original, to compare losses.
    """

    inputs: dict[str, Tensor]
    labels: Tensor
    originals: Tensor
    corrupted: Tensor

    def tensors(self) -> list[Tensor]:
        return [*self.inputs.values(), self.labels, self.originals, self.corrupted]


def make_batch(inputs: dict[str, Tensor], vocab_size: int, device: torch.device | str) -> Batch:
    """Returns a collated batch of full rows on the device, in all its forms. Raises ValueError for unused slots."""
    ids_BL = inputs["input_ids"]
    positions_BK = inputs["masked_positions"]
    labels_BK = inputs["labels"]
    if bool(labels_BK.eq(IGNORED).any()):
        raise ValueError("A row has fewer words than slots: lower mask_probability or take longer rows.")
    generator = torch.Generator().manual_seed(0)
    fills_BK = torch.randint(len(SPECIAL_TOKENS), vocab_size, labels_BK.shape, generator=generator)
    fills_BK = fills_BK.where(torch.rand(labels_BK.shape, generator=generator) < 0.5, labels_BK)
    return Batch(
        inputs={name: tensor.to(device) for name, tensor in inputs.items()},
        labels=torch.full_like(ids_BL, IGNORED).scatter(1, positions_BK, labels_BK).to(device),
        originals=ids_BL.scatter(1, positions_BK, labels_BK).to(device),
        corrupted=ids_BL.scatter(1, positions_BK, fills_BK).to(device),
    )


class Rows:
    """Rows, their collator, and the first batches of their stream."""

    def __init__(self, workload: Workload, directory: str | os.PathLike[str], num_batches: int) -> None:
        self.workload = workload
        self.blocks = workload.write_rows(directory, num_batches * workload.batch_size)
        self.tokenizer = workload.tokenizer()
        self.collator = DataCollatorForRTD(
            self.tokenizer, workload.mask_probability, seed=workload.seed, max_seq_length=workload.max_seq_length
        )

    def stream(self, num_steps: int) -> SequenceStream:
        return SequenceStream(self.blocks, num_steps * self.workload.batch_size, self.workload.seed)

    def collate(self, index: int) -> dict[str, Tensor]:
        first = index * self.workload.batch_size
        rows: Any = self.stream(index + 1).__getitems__(list(range(first, first + self.workload.batch_size)))
        return self.collator(rows)

    def batches(self, number: int, device: torch.device | str) -> list[Batch]:
        return [make_batch(self.collate(index), self.workload.vocab_size, device) for index in range(number)]
