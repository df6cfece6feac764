"""Rows of token ids that were cut by hand: special tokens put around them, and padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase


Row = dict[str, list[int]]


class RowFrame:
    """What a tokenizer puts around one text or a pair: special tokens, and the segment of each part.

    It is read off an encoded letter, so that it holds for any tokenizer.

    Args:
        tokenizer: of the model.
        num_parts: 1 for single texts, 2 for pairs.

    Attributes:
        num_special: special tokens of a row.
        start: place of the first part's first token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, num_parts: int) -> None:
        probe = tokenizer(*["a"] * num_parts, return_token_type_ids=True)
        self._has_segments = "token_type_ids" in tokenizer.model_input_names
        # In order: (None, special token, its segment), or (index of a part, 0, its segment).
        self._slots: list[tuple[int | None, int, int]] = []
        for token, segment, part in zip(
            probe["input_ids"], probe["token_type_ids"], probe.sequence_ids(), strict=True
        ):
            if part is None:
                self._slots.append((None, token, segment))
            elif not self._slots or self._slots[-1][0] != part:
                self._slots.append((part, 0, segment))
        order = [part for part, _, _ in self._slots]
        assert [part for part in order if part is not None] == list(range(num_parts)), order
        self.num_special = len(order) - num_parts
        self.start = order.index(0)

    def row(self, *parts: Sequence[int]) -> Row:
        """The row of these parts: `input_ids`, and `token_type_ids` where the tokenizer gives them."""
        tokens: list[int] = []
        segments: list[int] = []
        for part, special, segment in self._slots:
            inserted = [special] if part is None else parts[part]
            tokens.extend(inserted)
            segments.extend([segment] * len(inserted))
        return {"input_ids": tokens, "token_type_ids": segments} if self._has_segments else {"input_ids": tokens}


def pad_rows(rows: Sequence[Mapping[str, Sequence[int]]], tokenizer: PreTrainedTokenizerBase) -> dict[str, Tensor]:
    """A batch of rows, padded on the right to the longest, with its `attention_mask`.

    On the right whatever the tokenizer prefers, so that a token's place in its row is its place in the outputs.

    Returns:
        `input_ids`, `token_type_ids` where the rows have them, and `attention_mask`, each (rows, longest row).
    """
    batch = {"input_ids": pad_lists([row["input_ids"] for row in rows], tokenizer.pad_token_id)}
    if "token_type_ids" in rows[0]:
        batch["token_type_ids"] = pad_lists([row["token_type_ids"] for row in rows], tokenizer.pad_token_type_id)
    batch["attention_mask"] = pad_lists([[1] * len(row["input_ids"]) for row in rows], 0)
    return batch


def pad_lists(lists: Sequence[Sequence[int]], value: int) -> Tensor:
    """(lists, longest list), filled with a value on the right."""
    return pad_sequence([torch.tensor(numbers) for numbers in lists], batch_first=True, padding_value=value)
