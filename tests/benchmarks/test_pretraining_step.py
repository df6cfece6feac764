"""The benchmark measures what it says: everybody does the same work, by turns, and the arithmetic is right."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch


sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import agreement
import contest
import contestants
import pretraining_step
import sweeps
import timing
from contestants import Contestant, Entry, make_pair
from loops import BareLoop, TrainerLoop
from workload import Rows, Workload


TINY = Workload("tiny", vocab_size=200, batch_size=4, max_seq_length=32)
FLAGS = ["--size=tiny", "--vocab_size=200", "--batch_size=4", "--max_seq_length=32", "--device=cpu"]
QUICK = ["--rounds=2", "--steps=1", f"--threads={torch.get_num_threads()}"]
STEP_PARTS = ["mask", "generator", "head_and_sampling", "discriminator", "backward", "optimizer"]


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return Rows(TINY, tmp_path_factory.mktemp("rows"), num_batches=4)


@pytest.fixture(scope="module")
def first(rows):
    return rows.batches(1, "cpu")[0]


@pytest.fixture(scope="module")
def pair():
    return make_pair(TINY.config(), TINY.seed, "cpu")


def compete_as(name, pair, rows) -> Contestant:
    if name == "electra-pytorch":
        pytest.importorskip("electra_pytorch")
    return Contestant(Entry.parse(name), pair, TINY, rows.tokenizer)


# ---- The same work ----


@pytest.mark.parametrize("name", contestants.ARRANGEMENTS)
def test_every_contestant_computes_the_same_losses_and_gradients(name, pair, rows, first):
    reference = agreement.measure_work(compete_as("naive", pair, rows), first)
    found = agreement.check_agreement(compete_as(name, pair, rows), first, reference)
    assert found == pytest.approx(reference, rel=1e-5)
    assert all(found.values())


def test_stock_towers_have_nothing_of_ours(pair):
    towers = contestants.Gathered(pair)
    assert {module.config._attn_implementation for module in towers.modules() if hasattr(module, "config")} == {"sdpa"}
    assert {type(module) for module in towers.modules() if isinstance(module, torch.nn.Dropout)} == {torch.nn.Dropout}
    assert pair.config.generator_config._attn_implementation == "sdpa_with_dropout"


def _no_gradient_for_the_generator(contestant):
    add_up = contestant.arrangement.add_up
    contestant.arrangement.add_up = lambda generator, discriminator: add_up(generator.detach(), discriminator)


def _other_weight_of_the_discriminator(contestant):
    contestant.arrangement.weights = (1.0, 49.0)


def _fills_not_read(contestant):
    discriminate = contestant.arrangement.discriminate
    contestant.arrangement.discriminate = lambda batch, corrupted: discriminate(batch, batch.originals)


@pytest.mark.parametrize(
    "spoil", [_no_gradient_for_the_generator, _other_weight_of_the_discriminator, _fills_not_read]
)
def test_a_contestant_that_does_other_work_is_refused(spoil, pair, rows, first):
    reference = agreement.measure_work(compete_as("naive", pair, rows), first)
    wrong = compete_as("gathered", pair, rows)
    spoil(wrong)
    with pytest.raises(agreement.DisagreementError, match=r"gathered does other work .* Nothing was timed"):
        agreement.check_agreement(wrong, first, reference)


def test_nothing_is_timed_after_a_disagreement(monkeypatch):
    add_up = contestants.StockTowers.add_up
    monkeypatch.setattr(contestants.Gathered, "add_up", lambda self, g, d: add_up(self, 2 * g, d), raising=False)
    monkeypatch.setattr(contest, "time_rounds", lambda *_: pytest.fail("timed"))
    with pytest.raises(agreement.DisagreementError, match="gathered"):
        pretraining_step.main([*FLAGS, *QUICK, "--contestants", "naive", "gathered"])


def test_loop_and_trainer_take_the_same_steps(rows, tmp_path):
    still = replace(TINY, dropout=0.0)
    pair = make_pair(still.config(), still.seed, "cpu")
    clock = timing.Clock("cpu")
    loop = BareLoop(Entry("loop"), pair, rows, 1, clock)
    trainer = TrainerLoop(Entry("trainer"), pair, rows, 1, clock, tmp_path)
    for _ in range(2):  # the second round begins with the weights of the first
        assert loop.run(2) > 0
        assert trainer.run(2) > 0
    start = pair.state_dict()
    for name, weight in trainer.model.state_dict().items():
        torch.testing.assert_close(weight, loop.model.state_dict()[name])
        assert not torch.equal(weight, start[name]) or weight.numel() < 2 * TINY.vocab_size, name


# ---- The command ----


def test_the_last_line_is_the_report(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(pretraining_step, "memory_in_new_process", lambda workload, entry, plan: 2**30)
    arguments = [*FLAGS, *QUICK, "--output_dir", str(tmp_path), "--contestants", "naive", "ours", "loop"]
    pretraining_step.main(arguments)
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["name"] for row in report["rows"]] == ["naive", "ours", "loop"]
    assert list(report["rows"][1]["phases_ms"]) == ["data", *STEP_PARTS]
    (written,) = tmp_path.glob("pretraining_step_*.json")
    assert json.loads(written.read_text()) == report
    assert "| ours |" in written.with_suffix(".md").read_text()


def test_a_sweep_draws_its_axes(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sweeps.AXES, "max_seq_length", ("Tokens a row", (16, 32), ()))
    monkeypatch.setitem(sweeps.AXES, "vocab_size", ("Vocabulary", (100, 200), ()))
    arguments = [*FLAGS, *QUICK, "--output_dir", str(tmp_path), "--contestants", "naive", "ours"]
    pretraining_step.main([*arguments, "--sweep", "max_seq_length", "vocab_size"])
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    points = [(point["axis"], point["value"], point["workload"]["batch_size"]) for point in report["points"]]
    assert points == [
        *(("max_seq_length", n, 128 // n) for n in (16, 32)),
        *(("vocab_size", n, 4) for n in (100, 200)),
    ]
    assert all([row["name"] for row in point["rows"]] == ["naive", "ours"] for point in report["points"])
    (picture,) = tmp_path.glob("*.png")
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--contestants", "theirs"], "There is no contestant 'theirs'"),
        (["--contestants", "trainer-graph"], "which trainer makes itself"),
        (["--sync_check"], "leave it out on a CPU"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(arguments, message):
    with pytest.raises(ValueError, match=message):
        pretraining_step.main([*FLAGS, *arguments])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # dynamo instantiates autograd functions
def test_compiled_contestants_agree(pair, rows, first):
    reference = agreement.measure_work(compete_as("naive", pair, rows), first)
    agreement.check_agreement(compete_as("ours-compiled", pair, rows), first, reference)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_graph_steps_as_the_eager_contestant_does(rows):
    still = replace(TINY, dropout=0.0)
    pair = make_pair(still.config(), still.seed, "cuda")
    batch = rows.batches(1, "cuda")[0]
    graph, eager = (Contestant(Entry.parse(name), pair, still, rows.tokenizer) for name in ("ours-graph", "ours"))
    graph.step(batch)
    for _ in range(4):  # three of them warm the graph up
        eager.step(batch)
    for mine, theirs in zip(graph.arrangement.parameters(), eager.arrangement.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
