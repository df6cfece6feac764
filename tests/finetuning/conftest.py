"""A tiny encoder and a task that it can learn, as files."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import pytest
from transformers import ElectraConfig, ElectraForPreTraining, set_seed


WORDS = ["river", "mill", "letter", "garden", "horse", "night", "morning", "window", "door", "street"]


@pytest.fixture(scope="session")
def encoder(tokenizer, tmp_path_factory) -> str:
    """Directory of an ELECTRA discriminator with random weights, and its tokenizer."""
    directory = tmp_path_factory.mktemp("encoder")
    set_seed(1)
    config = ElectraConfig(
        vocab_size=len(tokenizer),
        embedding_size=16,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    ElectraForPreTraining(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return str(directory)


def write_rows(path: Path, num_rows: int, seed: int, labelled: bool = True) -> str:
    """Sentences of different lengths, `yes` where the word `old` stands in them."""
    draw = random.Random(seed)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["review", "verdict"] if labelled else ["review"])
        for _ in range(num_rows):
            words = draw.choices(WORDS, k=draw.randint(2, 12))
            label = draw.choice(["yes", "no"])
            if label == "yes":
                words.insert(draw.randrange(len(words)), "old")
            writer.writerow([" ".join(words), label] if labelled else [" ".join(words)])
    return str(path)


@pytest.fixture
def own_files(tmp_path) -> dict[str, str]:
    """Files of a task that takes one look at the words."""
    return {
        "train": write_rows(tmp_path / "train.csv", 300, seed=1),
        "dev": write_rows(tmp_path / "dev.csv", 60, seed=2),
        "test": write_rows(tmp_path / "test.csv", 20, seed=3, labelled=False),
    }


@pytest.fixture
def own_flags(encoder, own_files, tmp_path) -> list[str]:
    """A command line for this task."""
    return [
        *("--model_name_or_path", encoder, "--output_dir", str(tmp_path / "run"), "--task_name", "reviews"),
        *("--train_file", own_files["train"], "--dev_file", own_files["dev"], "--test_file", own_files["test"]),
        *("--text_column", "review", "--label_column", "verdict", "--use_cpu", "True", "--disable_tqdm", "True"),
        *("--per_device_train_batch_size", "16", "--learning_rate", "3e-3", "--dropout", "0"),
    ]
