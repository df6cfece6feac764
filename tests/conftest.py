"""Small things that many tests need. No network, no time, no global randomness."""

from __future__ import annotations

import gc
import os
import signal
import sys


os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertTokenizer, set_seed

from hf_electra_rtd import DataCollatorForRTD, ElectraForRTDPretraining, ElectraRTDConfig
from hf_electra_rtd.data.blocks import BlockFile
from hf_electra_rtd.data.preparation import prepare_blocks
from hf_electra_rtd.data.tokenization import SPECIAL_TOKENS
from hf_electra_rtd.pair.configuration_electra_rtd import needs_generator_network


# A shell that starts the tests in the background makes them, and the commands that they start, ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

_WORDS = (
    "the a of and to in he she it was were had has not but with for on at by from river mill letter garden horse "
    "night morning window door street old young little great said went came saw knew took gave"
)
WORDS = _WORDS.split()
VOCABULARY = [*SPECIAL_TOKENS, ".", ",", "!", "?", '"', *WORDS, "##s", "##ing", "##ed"]


def pytest_collection_modifyitems(items) -> None:
    """Puts the tests with the longest time limits first, so that no process ends with such a test alone."""
    items.sort(key=lambda item: -max((mark.args[0] for mark in item.iter_markers("timeout")), default=0))


def pytest_collection_finish() -> None:
    """Excludes imported objects from garbage collection: the trainers collect in every run, which took 0.5 s each."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    set_seed(0)


@pytest.fixture(autouse=True)
def _quick(request, monkeypatch) -> None:
    """Replaces the picture of the curves, which takes longer than most runs, with an empty file, and does not wait
    for the disk after each file. Slow tests and `finished_run` draw the real picture."""
    if "slow" not in request.keywords:
        monkeypatch.setattr("hf_electra_rtd.training.directory.plot_curves", lambda record, path: Path(path).touch())
        monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture(scope="session")
def tokenizer() -> BertTokenizer:
    vocab = {token: index for index, token in enumerate(VOCABULARY)}
    return BertTokenizer(vocab=vocab, do_lower_case=True, model_max_length=512)


def make_text(num_documents: int, seed: int = 0, lines: tuple[int, int] = (1, 8)) -> str:
    """Text of known words with several sentences on a line; an empty line ends a document."""
    random = np.random.default_rng(seed)

    def sentence():
        return " ".join(random.choice(WORDS, random.integers(3, 12))) + random.choice([" .", " !", " ?", ' . "'])

    def line():
        return " ".join(sentence() for _ in range(random.integers(1, 5)))

    return "\n\n".join("\n".join(line() for _ in range(random.integers(*lines))) for _ in range(num_documents)) + "\n"


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_text(make_text(40), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def blocks(corpus, tokenizer, tmp_path_factory):
    """(training, held-out) sequences of 32 tokens."""
    directory = tmp_path_factory.mktemp("blocks")
    return prepare_blocks([str(corpus)], tokenizer, directory, 32, held_out_share=0.1, disable_progress=True)


def blocks_of_text(directory: Path, text: str, tokenizer, length: int = 32, **options) -> BlockFile:
    """Prepared training sequences of a text."""
    directory.mkdir(exist_ok=True)
    (directory / "text.txt").write_text(text, encoding="utf-8")
    return prepare_blocks([directory / "text.txt"], tokenizer, directory, length, disable_progress=True, **options)[0]


def tiny_config(**options) -> ElectraRTDConfig:
    sizes = {"vocab_size": len(VOCABULARY), "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64}
    sizes |= {"embedding_size": 16, "max_position_embeddings": 64}
    sizes["initializer_range"] = 0.2  # far from uniform, so that mistakes show
    if options.get("sharing") != "all" and needs_generator_network(**options):
        sizes["generator_hidden_size"] = 0.5
    return ElectraRTDConfig.from_size("tiny", **{**sizes, **options})


@pytest.fixture
def model() -> ElectraForRTDPretraining:
    return ElectraForRTDPretraining(tiny_config()).eval()


def save_corrector(source: Path | str, tokenizer, directory: Path) -> str:
    """Saves a model for correction as `finetune` writes it, a masked language model with a new detection head, and
    returns its directory."""
    from hf_electra_rtd.data.tokenization import save_tokenizer
    from hf_electra_rtd.finetuning.heads import load_with_head
    from hf_electra_rtd.finetuning.kinds import KINDS

    model = load_with_head(KINDS["correction"].auto_class, str(source))
    model.config.fine_tuned_for = {"task": {"kind": "correction"}}
    model.save_pretrained(directory)
    save_tokenizer(tokenizer, directory)
    return str(directory)


@pytest.fixture
def batch(blocks, tokenizer) -> dict[str, torch.Tensor]:
    """Eight full sequences of 32 tokens, masked."""
    collator = DataCollatorForRTD(tokenizer, seed=3)
    sequences = blocks[0].read(np.arange(8))
    sequences.stream_positions = np.arange(8)
    return collator(sequences)


def pretraining_flags(workplace: Path, corpus: Path, output_dir: Path | str, *flags: str, **options) -> list[str]:
    """The command line of four pre-training steps on the CPU, in float32 on every processor. Its vocabulary and
    configuration are written to `workplace`. `options` are more flags with their values; None leaves a flag out."""
    (workplace / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    tiny_config().save_pretrained(workplace / "config")
    values = {"output_dir": output_dir, "train_files": corpus, "tokenizer": workplace / "vocab.txt"}
    values |= {"model_config": workplace / "config", "max_seq_length": 32, "per_device_train_batch_size": 8}
    values |= {"max_steps": 4, "warmup_steps": 1, "logging_steps": 1, "eval_steps": 2, "save_steps": 2}
    values |= {"bf16": False, **options}
    given = [part for name, value in values.items() if value is not None for part in (f"--{name}", str(value))]
    return [*given, "--use_cpu", "--disable_tqdm", "True", *flags]


@pytest.fixture(scope="session")
def finished_run(corpus, tmp_path_factory) -> Path:
    """The output directory of a finished pre-training of four steps, with checkpoints 2 and 4, exports after 50 % and
    100 %, and held-out metrics. Tests only read it; copy it to change it."""
    from hf_electra_rtd.training.pretrain import main

    workplace = tmp_path_factory.mktemp("pretraining")
    flags = pretraining_flags(workplace, corpus, workplace / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["hf-electra-rtd pretrain"])
        assert main([*flags, "--checkpoint_fractions", "0.5", "1.0"]) == 0
    return workplace / "run"


def pad_batch(batch: dict[str, torch.Tensor], padding: int) -> dict[str, torch.Tensor]:
    """The same sequences with `padding` more columns of [PAD]."""
    real = batch.get("attention_mask", torch.ones_like(batch["input_ids"]))
    wide = {"input_ids": batch["input_ids"], "token_type_ids": batch["token_type_ids"], "attention_mask": real}
    return {**batch, **{name: torch.nn.functional.pad(tensor, (0, padding)) for name, tensor in wide.items()}}
