"""A tiny encoder and a task that it can learn, as files; and a cache for `datasets` that goes with the tests."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import pytest
from transformers import ElectraConfig, ElectraForPreTraining, set_seed

from hf_electra_rtd.finetuning import finetune


QUIET = ["--use_cpu", "True", "--disable_tqdm", "True"]
WORDS = ["river", "mill", "letter", "garden", "horse", "night", "morning", "window", "door", "street"]


@pytest.fixture(scope="session", autouse=True)
def _datasets_cache(tmp_path_factory) -> None:
    import datasets

    datasets.config.HF_DATASETS_CACHE = tmp_path_factory.mktemp("datasets")
    datasets.disable_progress_bars()


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


def write_examples(path: Path, number: int, seed: int, labeled: bool = True) -> str:
    """Sentences of different lengths, `yes` where the word `old` stands in them."""
    draw = random.Random(seed)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["review", "verdict"] if labeled else ["review"])
        for _ in range(number):
            words = draw.choices(WORDS, k=draw.randint(2, 12))
            label = draw.choice(["yes", "no"])
            if label == "yes":
                words.insert(draw.randrange(len(words)), "old")
            writer.writerow([" ".join(words), label] if labeled else [" ".join(words)])
    return str(path)


@pytest.fixture(scope="session")
def finished(encoder, tmp_path_factory) -> tuple[Path, list[str]]:
    """A directory with data and a finished run of two seeds in `run`, and the run's flags. Copy what you change."""
    directory = tmp_path_factory.mktemp("reviews")
    for name, count, seed in (("train", 300, 1), ("dev", 60, 2), ("test", 20, 3)):
        write_examples(directory / f"{name}.csv", count, seed, labeled=name != "test")
    flags = [
        *("--model_name_or_path", encoder, "--output_dir", str(directory / "run"), "--task_name", "reviews"),
        *("--train_file", str(directory / "train.csv"), "--validation_file", str(directory / "dev.csv")),
        *("--test_file", str(directory / "test.csv"), "--text_column_name", "review"),
        *("--label_column_name", "verdict", "--per_device_train_batch_size", "16", "--learning_rate", "4e-3"),
        *("--dropout", "0", "--num_train_epochs", "6", "--seeds", "2", *QUIET),
        *("--bias_correction", "True"),  # without it, so small a model may get stuck in its first, larger steps
    ]
    assert finetune.main(flags) == 0
    return directory, flags
