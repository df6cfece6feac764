"""The console output of a run. A dry run shows what the run would do, and changes nothing."""

import copy
import io
import re

import pytest
import torch
from rich.console import Console
from transformers import TrainerState

from hf_electra_rtd import DataCollatorForRTD, ElectraForRTDPretraining, SequenceStream, get_parameter_groups
from hf_electra_rtd.base.accounting import count_parameters
from hf_electra_rtd.training import console
from hf_electra_rtd.training.dry_run import advise, dry_run
from hf_electra_rtd.training.meters import TrainingMeters
from tests.conftest import tiny_config
from tests.training.test_trainer import arguments


RUN = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "learning_rate": 5e-4, "save_steps": 2}


@pytest.fixture
def show(model, blocks, tokenizer, tmp_path):
    """Returns a function that makes a dry run of 48 sequences, and returns its output."""

    def show(pair=model, memory=None, **options):
        screen = Console(file=io.StringIO(), width=110)
        collator = DataCollatorForRTD(tokenizer, seed=1, max_seq_length=32)
        args = arguments(tmp_path / "run", **RUN, **options)
        dry_run(pair, args, SequenceStream(blocks[0], 48, seed=1), collator, "tiny", memory, screen)
        return screen.file.getvalue()

    return show


def test_a_dry_run_shows_networks_run_and_cost(show, model, blocks):
    text = show()
    counts = count_parameters(model)
    shared = counts["generator"] + counts["discriminator"] - counts["total"]
    parameters = f"Together {counts['total']:,} parameters; {shared:,} are shared (--sharing embeddings)."
    # Weights, gradients and Adam's two moments, in float32.
    memory = f"{4 * 4 * counts['total'] / 1000:.1f} kB for weights, gradients and the optimizer's states"
    length = ("6 of 8 sequences", f"1,536, {48 / len(blocks[0]):.2f} passes")
    for expected in (parameters, memory, *length, "matrix products"):
        assert expected in text, expected
    assert re.search(r"hidden size +16 +32\b", text)
    seconds, speed = re.search(r"([\d.e-]+) s a step, ([\d,]+) tokens/s", text).groups()
    assert float(seconds) * int(speed.replace(",", "")) == pytest.approx(8 * 32, rel=0.02)
    assert "\x1b[" not in text


def test_the_time_left_is_that_of_the_recent_speed():
    history = [
        {"step": step, "train_seconds": 60.0 * step + (36_000 if step > 2 else 0)}  # ten hours of sleep in step 3
        for step in range(1, 21)
    ]
    for step, left in ((1, "29 min 0 s left"), (20, "10 min 0 s left")):
        state = TrainerState(global_step=step, max_steps=30, log_history=history[:step])
        assert console.format_log({"discriminator_loss": 0.3, **history[step - 1]}, state).endswith(left)


def test_the_memory_of_a_run_is_that_of_its_optimizer(show, model):
    total = count_parameters(model)["total"]
    groups = get_parameter_groups(model, 0.01, muon=True)
    matrices = sum(each.numel() for group in groups if "muon" in group for each in group["params"])
    assert matrices > 0  # Muon keeps one moment of these, not two
    assert f"{4 * (4 * total - matrices) / 1000:.1f} kB for weights" in show(optim="muon")


def test_a_dry_run_advises_where_a_run_is_too_long_for_its_text_or_machine():
    for steps, seconds, wanted in (
        (400, 1.0, []),
        (401, 1.0, ["--max_steps 400"]),
        (400, 2000.0, ["--max_steps 43"]),
        (9000, 2000.0, ["--max_steps 400", "--max_steps 43"]),
    ):
        advised = list(advise("small", 100, 10, steps, seconds))
        assert [re.search(r"--max_steps \d+", advice)[0] for advice in advised] == wanted
        assert all("--size" in advice for advice in advised)
        assert not any("--size" in advice for advice in advise("tiny", 100, 10, steps, seconds))


def test_the_sequences_shown_are_those_of_the_first_step(show, model, blocks, tokenizer):
    stream = SequenceStream(blocks[0], 48, seed=1)
    names = tokenizer.convert_ids_to_tokens
    batch = DataCollatorForRTD(tokenizer, seed=1)(stream.__getitems__([0, 1]))
    output = model.eval()(**batch)
    shown = " ".join(show().split())
    assert "original/masked/sampled/label" in shown
    for row in range(2):
        words = names(stream[row]["input_ids"])
        for at in batch["masked_positions"][row].tolist():
            parts = names([int(batch["input_ids"][row, at]), int(output.corrupted_input_ids[row, at])])
            words[at] = "/".join([words[at], *parts, str(int(output.replaced_labels[row, at]))])
        assert " ".join(words) in shown


def test_a_dry_run_without_a_generator_shows_no_samples_and_leaves_everything_as_it_was(show, tmp_path):
    model = ElectraForRTDPretraining(tiny_config(objective="mlm", hidden_dropout_prob=0.1)).train()
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    schedule = {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 1e-5}}
    text = show(model, push_to_hub=True, hub_model_id="lab/electra", **schedule)
    assert not re.search("sampled|label|generator", text.partition("Nothing was trained")[0])
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert [path.name for path in tmp_path.iterdir() if any(path.iterdir())] == []


@pytest.mark.slow
def test_a_dry_run_names_the_batches_that_fit_a_gpu(show):
    text = show(memory=1_600_000)
    assert re.search(r"8 accumulated +4 x 2 ", text)
    assert "tokens/s" not in text  # nothing is timed


# ---- What the discriminator finds ----


@pytest.mark.parametrize("objective", ["rtd", "rtd_masked_only"])
def test_found_missed_and_false_alarms_are_those_of_the_metrics(blocks, tokenizer, objective):
    model = ElectraForRTDPretraining(tiny_config(objective=objective)).eval()
    collator = DataCollatorForRTD(tokenizer, seed=1)
    sequences = SequenceStream(blocks[1], shuffle=False).__getitems__(range(6))
    tokens = [token for sequence in console.read_tokens(model, collator, sequences) for token in sequence]
    meters = TrainingMeters(model.measures)
    batch = collator(sequences)
    meters.update(model(**batch), batch)
    measured = meters.drain()
    found, replaced, alarms = map(int, re.findall(r"\d+", console.describe_verdicts(tokens)))
    assert found / replaced == pytest.approx(measured["discriminator_recall"])
    assert found / (found + alarms) == pytest.approx(measured["discriminator_precision"])
    asked = sum(token.masked for token in tokens) if objective == "rtd_masked_only" else len(tokens)
    assert sum(token.probability >= 0 for token in tokens) == asked


def test_an_auc_is_told_beside_chance_and_counted_pairs_of_words():
    aucs = {"chance": (0.55, 0.7), "below": (0.7, 0.75), "above": (0.8, 0.75), "alone": (0.8, None)}
    told = {name: console.describe_reading(*pair) for name, pair in aucs.items()}
    assert len(set(told.values())) == 4
    assert told["below"] == console.describe_reading(0.75, 0.75)
    assert told["chance"] == console.describe_reading(0.55, None)
