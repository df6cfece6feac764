"""Files of a tiny encoder and of a task that it can learn, and a temporary cache for `datasets`."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from transformers import ElectraConfig, ElectraForPreTraining, set_seed

from hf_electra_rtd.finetuning import finetune
from hf_electra_rtd.publishing import card


WORDS = ["river", "mill", "letter", "garden", "horse", "night", "morning", "window", "door", "street"]


def flag_words(**flags) -> list[str]:
    """Returns a quiet command line for the CPU. A list becomes several words. None leaves a flag out."""
    return list(card.flag_words({"use_cpu": True, "disable_tqdm": True, **flags}))


def read_lines(source: Path | str) -> list:
    """Parses a file or a text of JSON lines."""
    text = source.read_text(encoding="utf-8") if isinstance(source, Path) else source
    return [json.loads(line) for line in text.splitlines()]


def run_finetune(**flags) -> int:
    return finetune.main(flag_words(**flags))


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
    sizes = {"embedding_size": 16, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 64, "max_position_embeddings": 64, "vocab_size": len(tokenizer)}
    ElectraForPreTraining(ElectraConfig(**sizes)).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return str(directory)


def write_examples(path: Path, number: int, seed: int, labeled: bool = True) -> str:
    """Writes sentences of different lengths, with the label `yes` if they contain the word `old`. Returns the path."""
    draw, lines = random.Random(seed), ["review,verdict" if labeled else "review"]
    for _ in range(number):
        words = draw.choices(WORDS, k=draw.randint(2, 12))
        label = draw.choice(["yes", "no"])
        if label == "yes":
            words.insert(draw.randrange(len(words)), "old")
        lines.append(" ".join(words) + f",{label}" * labeled)
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def review_flags(directory: Path, train: int = 20, dev: int = 20) -> dict[str, object]:
    """Writes the files of a task, and returns its flags."""
    files = write_examples(directory / "train.csv", train, 1), write_examples(directory / "dev.csv", dev, 2)
    flags = {"task_name": "reviews", "text_column_name": "review", "label_column_name": "verdict"}
    return {**flags, "train_file": files[0], "validation_file": files[1]}


@pytest.fixture(scope="session")
def finished(encoder, tmp_path_factory) -> tuple[Path, dict[str, object]]:
    """A directory with data and a finished run of two seeds in `run`, and the run's flags. Change copies only."""
    directory = tmp_path_factory.mktemp("reviews")
    flags = {"model_name_or_path": encoder, "output_dir": directory / "run", **review_flags(directory, 300, 60)}
    flags |= {"test_file": write_examples(directory / "test.csv", 20, 3, labeled=False), "seeds": 2}
    flags |= {"per_device_train_batch_size": 16, "learning_rate": 4e-3, "dropout": 0, "num_train_epochs": 6}
    flags["bias_correction"] = True  # without it, the first steps are larger, and so small a model may get stuck
    assert run_finetune(**flags) == 0
    return directory, flags
