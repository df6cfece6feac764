"""The benchmark times what it says: everybody does the same work."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import agreement
import contest
import contestants
import pretraining_step
import pytest
import timing
import torch
from contestants import Contestant, Entry, make_pair
from loops import BareLoop, TrainerLoop
from workload import Rows, Workload


TINY = Workload("tiny", vocab_size=200, batch_size=4, max_seq_length=32, dropout=0.0)
EXAMPLES = Path(__file__).parents[2] / "examples/backbones"
BACKBONES = [None, *(str(EXAMPLES / f"{name}-tiny.json") for name in ("modernbert", "deberta"))]
FLAGS = ["--size=tiny", "--vocab_size=200", "--batch_size=4", "--max_seq_length=32", "--device=cpu"]


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return Rows(TINY, tmp_path_factory.mktemp("rows"), num_batches=4)


def compete_as(name, rows, device="cpu", workload=TINY) -> Contestant:
    return Contestant(Entry.parse(name), make_pair(workload.config(), TINY.seed, device), workload, rows.tokenizer)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # dynamo instantiates autograd functions
@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("name", [*contestants.ARRANGEMENTS, pytest.param("ours-compiled", marks=pytest.mark.slow)])
def test_every_contestant_computes_the_same_losses_and_gradients(name, backbone, rows):
    workload = dataclasses.replace(TINY, backbone=backbone)
    if contestants.why_absent(Entry.parse(name), workload):
        pytest.skip("for ELECTRA alone, or not installed")
    batch = rows.batches(1, "cpu")[0]
    reference = agreement.measure_work(compete_as("naive", rows, workload=workload), batch)
    found = agreement.check_agreement(compete_as(name, rows, workload=workload), batch, reference)
    assert found == pytest.approx(reference, rel=1e-5)
    assert all(found.values())


def test_nothing_is_timed_after_a_disagreement(monkeypatch):
    add_up = contestants.StockTowers.add_up
    monkeypatch.setattr(contestants.Gathered, "add_up", lambda self, g, d: add_up(self, 2 * g, d), raising=False)
    monkeypatch.setattr(contest, "time_rounds", lambda *_: pytest.fail("timed"))
    quick = ["--rounds=2", "--steps=1", f"--threads={torch.get_num_threads()}", "--contestants", "naive", "gathered"]
    with pytest.raises(agreement.DisagreementError, match=r"gathered does other work .* Nothing was timed"):
        pretraining_step.main([*FLAGS, *quick])


def test_loop_and_trainer_take_the_same_steps(rows, tmp_path):
    pair, clock = make_pair(TINY.config(), TINY.seed, "cpu"), timing.Clock("cpu")
    loop = BareLoop(Entry("loop"), pair, rows, 1, clock)
    trainer = TrainerLoop(Entry("trainer"), pair, rows, 1, clock, tmp_path)
    for _ in range(2):  # the second round begins with the weights of the first
        assert loop.run(2) > 0
        assert trainer.run(2) > 0
    start, ours, theirs = (model.state_dict() for model in (pair, trainer.model, loop.model))
    torch.testing.assert_close(ours, theirs)
    assert not all(torch.equal(start[name], ours[name]) for name in ours)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore:This instance was constructed with capturable=True")  # the steps that warm it up
def test_a_graph_steps_as_the_eager_contestant_does(rows):
    graph, eager = (compete_as(name, rows, "cuda") for name in ("ours-graph", "ours"))
    batch = rows.batches(1, "cuda")[0]
    graph.step(batch)
    for _ in range(4):  # three of them warm the graph up
        eager.step(batch)
    for mine, theirs in zip(graph.arrangement.parameters(), eager.arrangement.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
