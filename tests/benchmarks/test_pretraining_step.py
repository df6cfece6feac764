"""The benchmark times what it claims to time: all contestants do the same work."""

from __future__ import annotations

import dataclasses
import itertools
from functools import partialmethod
from pathlib import Path

import contestants
import pretraining_step
import pytest
import torch
from contestants import Contestant, Entry, make_pair
from torch import nn
from workload import Rows, Workload


TINY = Workload("tiny", vocab_size=200, batch_size=4, max_seq_length=32, dropout=0.0)
EXAMPLES = Path(__file__).parents[2] / "examples/backbones"
BACKBONES = [None, str(EXAMPLES / "modernbert-tiny.json"), str(EXAMPLES / "deberta-tiny.json")]
FLAGS = ["--size=tiny", "--vocab_size=200", "--batch_size=4", "--max_seq_length=32", "--device=cpu"]


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return Rows(TINY, tmp_path_factory.mktemp("rows"), num_batches=4)


def compete_as(name, rows, device="cpu", workload=TINY) -> Contestant:
    pair = make_pair(workload.config(), TINY.seed, device)
    return Contestant(Entry.parse(name), pair, rows.batches(4, device))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # dynamo instantiates autograd functions
@pytest.mark.parametrize(
    ("name", "backbone"),
    [
        *itertools.product(contestants.ARRANGEMENTS, BACKBONES),
        pytest.param("ours-compiled", None, marks=pytest.mark.slow),  # families compile in tests/test_compilation.py
    ],
)
def test_every_contestant_computes_the_same_losses_and_gradients(name, backbone, rows, monkeypatch):
    # The default backend compiles for a minute. A test of the model trains with it, and the benchmark compares its
    # contestants before it times them.
    monkeypatch.setattr(nn.Module, "compile", partialmethod(nn.Module.compile, backend="aot_eager"))
    workload = dataclasses.replace(TINY, backbone=backbone)
    batch = rows.batches(1, "cpu")[0]
    reference = pretraining_step.measure_work(compete_as("naive", rows, workload=workload), batch)
    work = pretraining_step.check_agreement(compete_as(name, rows, workload=workload), batch, reference)
    assert work == pytest.approx(reference, rel=1e-5)
    assert all(work.values())


def test_nothing_is_timed_after_a_disagreement(monkeypatch):
    forward = contestants.Ours.forward

    def doubled(self, *arguments):
        losses = forward(self, *arguments)
        return losses._replace(generator=2 * losses.generator)

    monkeypatch.setattr(contestants.Ours, "forward", doubled)
    monkeypatch.setattr(pretraining_step, "time_rounds", lambda *_: pytest.fail("timed"))
    quick = ["--rounds=2", "--steps=1", f"--threads={torch.get_num_threads()}", "--contestants", "naive", "ours"]
    with pytest.raises(pretraining_step.DisagreementError, match="ours"):
        pretraining_step.main([*FLAGS, *quick])


def test_the_trainer_goes_on_with_its_weights_in_a_second_round(rows, tmp_path):
    trainer = contestants.TrainerLoop(Entry("trainer"), make_pair(TINY.config(), TINY.seed, "cpu"), rows, 1, tmp_path)
    for _ in range(2):
        before = trainer.model.discriminator.get_input_embeddings().weight.clone()
        assert trainer.run(2) > 0
        assert not torch.equal(before, trainer.model.discriminator.get_input_embeddings().weight)
