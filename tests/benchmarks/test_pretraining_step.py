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


TINY = Workload("tiny", vocab_size=200, batch_size=4, row_length=32)
FLAGS = ["--size=tiny", "--vocab_size=200", "--batch_size=4", "--row_length=32", "--device=cpu"]
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


@pytest.mark.parametrize("name", contestants.ARRANGEMENTS)
def test_a_step_trains_both_towers_and_samples(name, pair, rows, first):
    contestant = compete_as(name, pair, rows)
    before = {key: value.clone() for key, value in contestant.arrangement.state_dict().items()}
    contestant.step(first)
    after = contestant.arrangement.state_dict()
    for layer in ("generator.electra.encoder", "discriminator.electra.encoder", "word_embeddings"):
        assert any(layer in key and not torch.equal(before[key], value) for key, value in after.items()), layer
    with torch.no_grad(), contestant.without_dropout():
        draws = {contestant.losses(first).discriminator.item() for _ in range(3)}
    # Our samples are a function of the batch; the others draw anew.
    assert len(draws) == (1 if name == "ours" else 3)


def _other_weights(contestant):
    with torch.no_grad():
        contestant.arrangement.generator.generator_lm_head.bias[: TINY.vocab_size // 2] += 0.1


def _no_gradient_for_the_generator(contestant):
    add_up = contestant.arrangement.add_up
    contestant.arrangement.add_up = lambda generator, discriminator: add_up(generator.detach(), discriminator)


def _other_weight_of_the_discriminator(contestant):
    contestant.arrangement.weights = (1.0, 49.0)


def _fills_not_read(contestant):
    discriminate = contestant.arrangement.discriminate
    contestant.arrangement.discriminate = lambda batch, corrupted: discriminate(batch, batch.originals)


def _one_label_less(contestant):
    forward = contestant.arrangement.forward
    contestant.arrangement.forward = lambda batch, corrupted: forward(
        replace(batch, labels=batch.labels.where(torch.arange(len(batch.labels))[:, None] > 0, -100)), corrupted
    )


@pytest.mark.parametrize(
    "spoil",
    [
        _other_weights,
        _no_gradient_for_the_generator,
        _other_weight_of_the_discriminator,
        _fills_not_read,
        _one_label_less,
    ],
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


def test_the_trainer_stays_in_bfloat16_from_round_to_round(rows, pair, tmp_path):
    trainer = TrainerLoop(Entry("trainer", bf16=True), pair, rows, 1, timing.Clock("cpu"), tmp_path)
    seen = []
    layer = trainer.model.generator.electra.encoder.layer[0].attention.self.query
    layer.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    trainer.run(1)
    trainer.run(1)
    assert seen == [torch.bfloat16] * 4  # a step that is not timed and one that is, twice


# ---- Time ----


class _Turns:
    def __init__(self, name: str, turns: list[str]) -> None:
        self.name, self.turns = name, turns

    def run(self, steps: int) -> float:
        self.turns.append(self.name)
        return len(self.turns) / steps


def test_contestants_run_by_turns():
    turns: list[str] = []
    found = timing.time_rounds([_Turns("a", turns), _Turns("b", turns)], rounds=2, steps=2, say=lambda line: None)
    assert turns == ["a", "b", "a", "b"]
    assert found == {"a": [0.5, 1.5], "b": [1.0, 2.0]}


def test_seconds_are_those_of_a_step(pair, rows, first):
    contestant = compete_as("ours", pair, rows)
    times = iter([10.0, 16.0])
    assert timing.Stepping(contestant, [first], lambda: next(times)).run(3) == 2.0


def test_shares_are_of_the_median_step():
    found = timing.summarise([1.0, 2.0, 3.0, 4.0, 50.0], tokens=600, flops=30_000, gemm_peak=40_000.0)
    assert found == pytest.approx(
        {
            "median_ms": 3000.0,
            "p10_ms": 1400.0,
            "p90_ms": 31_600.0,
            "tokens_per_second": 200.0,
            "model_flops_per_second": 10_000.0,
            "gemm_share": 0.25,
        }
    )


def test_flops_of_the_papers_small_model():
    """70.2 MFLOP a token: forward 23.4, of them 1.16 for the head on 19 of 128 tokens."""
    small = Workload()
    assert small.flops() / small.tokens == pytest.approx(70.2e6, rel=1e-3)


def test_gemm_peak_counts_two_operations_a_product(monkeypatch):
    class Ticking(timing.Clock):
        now = 0.0

        def __call__(self) -> float:
            Ticking.now += 0.5
            return Ticking.now

    monkeypatch.setattr(timing, "Clock", Ticking)
    peak, shapes = timing.measure_gemm_peak([(2, 3, 5)], torch.float32, "cpu", seconds=0.1)
    assert shapes == {"2x3x5": 120.0, "2048x2048x2048": 4.0 * 2048**3}
    assert peak == 4.0 * 2048**3


def test_phases_add_up_to_a_step(pair, rows, first):
    contestant = compete_as("ours", pair, rows)
    phases = timing.measure_phases(contestant, [first], 2, timing.Clock("cpu"))
    assert list(phases) == STEP_PARTS
    assert all(ms >= 0 for ms in phases.values())
    assert not contestant.arrangement.generator_encoder._forward_hooks


def test_phases_that_cannot_be_told_apart_are_one(pair, rows, first):
    contestant = compete_as("ours", pair, rows)
    contestant.arrangement.generator_encoder = torch.nn.Identity()  # never called
    phases = timing.measure_phases(contestant, [first], 1, timing.Clock("cpu"))
    assert list(phases) == ["forward", "backward", "optimizer"]


def test_peak_memory_sees_what_was_allocated():
    before = timing.peak_memory("cpu")
    block = torch.ones(64 * 2**20)
    assert timing.peak_memory("cpu") > before - 2**20
    assert timing.peak_memory("cpu") >= block.nbytes


# ---- The command ----

ROW_FIELDS = {
    *("name", "description", "median_ms", "p10_ms", "p90_ms", "tokens_per_second", "model_flops_per_second"),
    *("gemm_share", "rounds_ms", "phases_ms", "waits_for_device", "speedup", "peak_memory_bytes"),
}


def test_the_last_line_is_the_report(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(pretraining_step, "memory_in_new_process", lambda workload, entry, plan: 2**30)
    arguments = [*FLAGS, *QUICK, "--output_dir", str(tmp_path), "--contestants", "naive", "ours", "loop"]
    pretraining_step.main(arguments)
    *table, last = capsys.readouterr().out.splitlines()
    report = json.loads(last)
    assert report.keys() == {
        *("benchmark", "sha", "uncommitted_changes", "date", "hardware", "versions", "load_average", "config"),
        *("gemm_peak", "flops", "agreement", "rows", "left_out"),
    }
    assert [row["name"] for row in report["rows"]] == ["naive", "ours", "loop"]
    assert all(row.keys() == ROW_FIELDS and len(row["rounds_ms"]) == 2 for row in report["rows"])
    assert report["rows"][0]["speedup"] == 1.0
    best = report["gemm_peak"]["float32"]["best"]
    assert all(row["gemm_share"] == row["model_flops_per_second"] / best for row in report["rows"])
    assert list(report["rows"][1]["phases_ms"]) == ["data", *STEP_PARTS]
    assert report["rows"][2]["phases_ms"] == {}
    assert report["config"]["workload"]["vocab_size"] == 200
    assert any("1,024" in line and "ours" in line for line in table)

    (written,) = tmp_path.glob("*.json")
    assert written.name.startswith("pretraining_step_")
    assert json.loads(written.read_text()) == report
    assert "| ours |" in written.with_suffix(".md").read_text()


def test_a_sweep_draws_its_axes(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sweeps.AXES, "row_length", ("Tokens a row", (16, 32), ()))
    monkeypatch.setitem(sweeps.AXES, "vocab_size", ("Vocabulary", (100, 200), ()))
    arguments = [*FLAGS, *QUICK, "--output_dir", str(tmp_path), "--contestants", "naive", "ours"]
    pretraining_step.main([*arguments, "--sweep", "row_length", "vocab_size"])
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    points = [(point["axis"], point["value"], point["workload"]["batch_size"]) for point in report["points"]]
    assert points == [("row_length", 16, 8), ("row_length", 32, 4), ("vocab_size", 100, 4), ("vocab_size", 200, 4)]
    assert all([row["name"] for row in point["rows"]] == ["naive", "ours"] for point in report["points"])
    (picture,) = tmp_path.glob("*.png")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_line_of_the_peak():
    peaks = {"float32": {"best": 4e9}, "bfloat16": {"best": 8e9}}
    assert sweeps.roofline({"flops_per_token": 2e6}, peaks) == 4000.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--contestants", "theirs"], "There is no contestant 'theirs'"),
        (["--contestants", "ours-bf16-bf16"], "There is no contestant"),
        (["--contestants", "trainer-graph"], "which trainer makes itself"),
        (["--rounds", "0"], "--rounds is 0"),
        (["--dropout", "1.5"], "dropout is 1.5"),
        (["--row_length", "4"], "row_length is 4"),
        (["--mask_probability", "0.9"], "mask_probability is 0.9"),
        (["--generator_size", "0.001"], "choose other fractions"),
        (["--sync_check"], "leave it out on a CPU"),
        (["--output_dir", __file__], "give a directory"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(arguments, message):
    with pytest.raises(ValueError, match=message):
        pretraining_step.main([*FLAGS, *arguments])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_is_asked_for_in_vain():
    with pytest.raises(ValueError, match="There is no CUDA device"):
        pretraining_step.main(["--device", "cuda"])
    with pytest.raises(ValueError, match="CUDA graphs need a CUDA device"):
        pretraining_step.main([*FLAGS, "--contestants", "ours-graph"])


def test_a_package_that_is_missing_is_left_out_unless_asked_for(monkeypatch):
    monkeypatch.setattr(contestants.importlib.util, "find_spec", lambda name: None)
    entries, left_out = pretraining_step.choose_entries(["naive", "electra-pytorch"], asked_for=False)
    assert [entry.name for entry in entries] == ["naive"]
    assert "pip install --no-deps electra-pytorch" in left_out["electra-pytorch"]
    with pytest.raises(ValueError, match="electra-pytorch cannot compete"):
        pretraining_step.choose_entries(["electra-pytorch"], asked_for=True)


@pytest.mark.parametrize(("cuda", "pays"), [(False, False), (False, True), (True, False), (True, True)])
def test_default_contestants_have_names_that_mean_something(cuda, pays):
    names = contestants.default_entries(cuda, pays)
    assert [Entry.parse(name).name for name in names] == names
    assert any("bf16" in name for name in names) == pays
    assert any("graph" in name for name in names) == cuda


def test_a_contestant_that_cannot_be_compiled_is_left_out(monkeypatch):
    def refuse(self) -> None:
        self.forward = lambda *_: (_ for _ in ()).throw(RuntimeError("no compiler\nmore"))

    monkeypatch.setattr(contestants.Ours, "compile_parts", refuse)
    plan = contest.Plan("cpu", 1, rounds=1, steps=1, warmup=1)
    entries = [Entry("naive"), Entry("ours", compiled=True)]
    found = contest.compete(TINY, entries, plan, {"float32": {"best": 1e9}}, lambda line: None, with_phases=False)
    assert [row["name"] for row in found["rows"]] == ["naive"]
    assert found["left_out"] == {"ours-compiled": "RuntimeError: no compiler"}


@pytest.mark.slow
def test_memory_is_that_of_a_process_of_its_own():
    plan = contest.Plan("cpu", 1, rounds=1, steps=1, warmup=1)
    small = contest.memory_in_new_process(TINY, Entry("naive"), plan)
    large = contest.memory_in_new_process(replace(TINY, vocab_size=20_000, batch_size=64), Entry("naive"), plan)
    # Logits (B, L, V) in float32, with their gradient.
    assert large - small > 64 * 32 * 20_000 * 4 * 2


@pytest.mark.slow
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
