"""Small things that many tests need. No network, no time, no global randomness."""

from __future__ import annotations

import os


os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertTokenizer, set_seed

from hf_electra_rtd import DataCollatorForRTD, ElectraForRTDPretraining, ElectraRTDConfig
from hf_electra_rtd.configuration_electra_rtd import needs_generator_network
from hf_electra_rtd.data.preparation import prepare_blocks
from hf_electra_rtd.data.tokenization import SPECIAL_TOKENS


WORDS = [
    "the",
    "a",
    "of",
    "and",
    "to",
    "in",
    "he",
    "she",
    "it",
    "was",
    "were",
    "had",
    "has",
    "not",
    "but",
    "with",
    "for",
    "on",
    "at",
    "by",
    "from",
    "river",
    "mill",
    "letter",
    "garden",
    "horse",
    "night",
    "morning",
    "window",
    "door",
    "street",
    "old",
    "young",
    "little",
    "great",
    "said",
    "went",
    "came",
    "saw",
    "knew",
    "took",
    "gave",
]
VOCABULARY = [*SPECIAL_TOKENS, ".", ",", "!", "?", '"', *WORDS, "##s", "##ing", "##ed"]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    set_seed(0)


@pytest.fixture(scope="session")
def tokenizer() -> BertTokenizer:
    return BertTokenizer(
        vocab={token: index for index, token in enumerate(VOCABULARY)}, do_lower_case=True, model_max_length=512
    )


def make_text(num_documents: int, seed: int = 0, lines: tuple[int, int] = (1, 8)) -> str:
    """Sentences of known words, several a line; an empty line ends a document."""
    random = np.random.default_rng(seed)
    documents = []
    for _ in range(num_documents):
        documents.append(
            "\n".join(
                " ".join(
                    " ".join(random.choice(WORDS, random.integers(3, 12))) + random.choice([" .", " !", " ?", ' . "'])
                    for _ in range(random.integers(1, 5))
                )
                for _ in range(random.integers(*lines))
            )
        )
    return "\n\n".join(documents) + "\n"


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_text(make_text(40), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def blocks(corpus, tokenizer, tmp_path_factory):
    """(training rows, held-out rows) of 32 tokens."""
    return prepare_blocks(
        [str(corpus)], tokenizer, tmp_path_factory.mktemp("blocks"), 32, held_out_share=0.1, disable_progress=True
    )


def tiny_config(**options) -> ElectraRTDConfig:
    alike = options.get("sharing") == "all" or not needs_generator_network(**options)
    return ElectraRTDConfig.from_size(
        "tiny",
        **{
            "vocab_size": len(VOCABULARY),
            "num_hidden_layers": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "embedding_size": 16,
            "max_position_embeddings": 64,
            **({} if alike else {"generator_hidden_size": 0.5}),
            "initializer_range": 0.2,  # far from uniform, so that mistakes show
            **options,
        },
    )


@pytest.fixture
def model() -> ElectraForRTDPretraining:
    return ElectraForRTDPretraining(tiny_config()).eval()


@pytest.fixture
def batch(blocks, tokenizer) -> dict[str, torch.Tensor]:
    """Eight full rows of 32 tokens, masked."""
    collator = DataCollatorForRTD(tokenizer, seed=3)
    rows = blocks[0].read(np.arange(8))
    rows.stream_positions = np.arange(8)
    return collator(rows)


def pad_batch(batch: dict[str, torch.Tensor], padding: int) -> dict[str, torch.Tensor]:
    """The same rows with `padding` more columns of [PAD]."""
    size = batch["input_ids"].shape
    real = batch.get("attention_mask", torch.ones(size, dtype=torch.long))
    wide = {
        "input_ids": torch.nn.functional.pad(batch["input_ids"], (0, padding)),
        "token_type_ids": torch.nn.functional.pad(batch["token_type_ids"], (0, padding)),
        "attention_mask": torch.nn.functional.pad(real, (0, padding)),
    }
    return {**batch, **wide}
