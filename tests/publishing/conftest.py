"""A Hub on loopback, no way to any other, and tiny runs to publish."""

from __future__ import annotations

import shutil
import socket
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import HfApi, close_session, constants

from hf_electra_rtd.publishing.hub import Publisher
from tests.conftest import make_text, tiny_config
from tests.finetuning.conftest import write_rows
from tests.publishing.fake_hub import TOKEN, FakeHub


EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

import finetune  # noqa: E402
import pretrain  # noqa: E402


@pytest.fixture(autouse=True)
def _loopback_only(monkeypatch):
    connect = socket.socket.connect

    def guarded(self, address):
        if self.family != socket.AF_UNIX and address[0] != "127.0.0.1":
            raise AssertionError(f"a test wants to reach {address}")
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)


@pytest.fixture
def fake_hub(monkeypatch):
    """A running [`FakeHub`]. In this process `HfApi(endpoint=hub.endpoint)` speaks to it; give another process
    `hub.environment(home)`."""
    # `huggingface_hub` reads the environment when it is imported.
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", "hf_thisIsNotToBeSent")
    without_sleep = SimpleNamespace(**{**vars(time), "sleep": lambda seconds: None})
    monkeypatch.setattr("huggingface_hub.utils._http.time", without_sleep)
    close_session()
    with FakeHub() as hub:
        yield hub
    close_session()


@pytest.fixture
def waits():
    """The seconds that `publisher` would have waited."""
    return []


@pytest.fixture
def publisher(fake_hub, waits):
    return Publisher(HfApi(endpoint=fake_hub.endpoint, token=TOKEN), pauses=(1, 2), sleep=waits.append)


# ---- Runs ----


@pytest.fixture
def hub(fake_hub, waits, monkeypatch):
    """The fake Hub, in place of the one that scripts publish to; maria is logged in."""
    log_in(monkeypatch, fake_hub.endpoint, TOKEN, waits)
    return fake_hub


def log_in(monkeypatch, endpoint, token, waits):
    """Has scripts publish to a Hub with a token."""
    made = partial(Publisher, HfApi(endpoint=endpoint, token=token), pauses=(1,), sleep=waits.append)
    for module in ("publishing.command", "training.publication", "finetuning.publication"):
        monkeypatch.setattr(f"hf_electra_rtd.{module}.Publisher", made)


def nowhere() -> str:
    """An endpoint where nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def pretraining_flags(files: Path, output_dir: Path) -> list[str]:
    """Four steps of a pair that is as small as can be, with dropout: a random number more or less changes its weights.
    `files` is the directory of `training_files`."""
    return [
        *("--train_files", str(files / "corpus.txt"), "--vocab_size", "100", "--model_config", str(files / "model")),
        *("--output_dir", str(output_dir), "--row_length", "32", "--per_device_train_batch_size", "8"),
        *("--max_steps", "4", "--warmup_steps", "1", "--logging_steps", "1", "--eval_steps", "2"),
        *("--save_steps", "2", "--checkpoint_fractions", "0.5", "1.0", "--use_cpu", "True", "--disable_tqdm", "True"),
    ]


def fine_tuning_flags(files: Path, model: Path, output_dir: Path) -> list[str]:
    """Two steps of a task of one's own."""
    return [
        *("--model_name_or_path", str(model), "--output_dir", str(output_dir), "--task_name", "reviews"),
        *("--train_file", str(files / "train.csv"), "--dev_file", str(files / "dev.csv"), "--text_column", "review"),
        *("--label_column", "verdict", "--max_steps", "2", "--use_cpu", "True", "--disable_tqdm", "True"),
    ]


@pytest.fixture(scope="session")
def training_files(tmp_path_factory) -> Path:
    """Text, a tiny architecture, and rows of a task."""
    directory = tmp_path_factory.mktemp("files")
    (directory / "corpus.txt").write_text(make_text(40), encoding="utf-8")
    tiny_config(vocab_size=100, hidden_dropout_prob=0.1).save_pretrained(directory / "model")
    write_rows(directory / "train.csv", 60, seed=1)
    write_rows(directory / "dev.csv", 20, seed=2)
    return directory


@pytest.fixture(scope="session")
def finished(training_files, tmp_path_factory) -> Path:
    """What scripts leave: `tiny`, a pre-training run; `tuned`, its discriminator fine-tuned with two seeds; `halfway`,
    likewise that after half of the run; `adapted`, adapters for it."""
    directory = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(EXAMPLES / "script.py")])
        assert pretrain.main(pretraining_flags(training_files, directory / "tiny")) == 0
        tower = directory / "tiny/fractions/50/discriminator"
        for name, model, more in (
            ("tuned", directory / "tiny", ["--seeds", "2"]),
            ("halfway", tower, ["--keep_models", "none"]),
            ("adapted", directory / "tiny", ["--peft", "lora"]),
        ):
            flags = fine_tuning_flags(training_files, model, directory / name)
            assert finetune.main([*flags, "--language", "en", *more]) == 0
    return directory


@pytest.fixture
def runs(finished, tmp_path, monkeypatch) -> Path:
    """A copy of the finished runs, to write into."""
    monkeypatch.setattr(sys, "argv", [str(EXAMPLES / "publish.py")])
    return shutil.copytree(finished, tmp_path / "runs")
