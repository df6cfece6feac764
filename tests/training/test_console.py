"""What a person sees of a run; a dry run shows what a run does, and changes nothing."""

import copy
import io
import re
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from transformers import TrainerState

from hf_electra_rtd import DataCollatorForRTD, ElectraForRTDPretraining, RTDTrainer, SequenceStream
from hf_electra_rtd.accounting import count_parameters
from hf_electra_rtd.training.console import describe_metrics, format_log
from hf_electra_rtd.training.pretrain import check_disk, dry_run
from tests.conftest import tiny_config
from tests.training.test_trainer import arguments


def test_a_training_log_is_one_line_with_the_time_left():
    state = TrainerState(max_steps=1000)
    state.global_step = 250
    logs = {"loss": 12.3456, "generator_loss": 6.0, "generator_accuracy": 0.1, "discriminator_loss": 0.5}
    logs |= {"discriminator_recall": 0.25, "sampled_accuracy": 0.5, "replaced_share": 0.07, "tokens_per_second": 12345}
    logs |= {"learning_rate": 5e-4, "train_seconds": 100.0}
    assert format_log(logs, state) == (
        "step 250/1,000 (25%)  loss 12.346  generator: loss 6.0000, accuracy 10.0%  discriminator: loss 0.5000, "
        "recall 25.0%  sampled 50.0%, replaced 7.0%  12,345 tokens/s  lr 5.00e-04  0:05:00 left"
    )
    held_out = format_log({"eval_discriminator_loss": 0.5, "eval_discriminator_masked_accuracy": 0.125}, state)
    assert held_out == "step 250/1,000 (25%)  HELD-OUT  encoder: loss 0.5000, masked accuracy 12.5%"
    assert format_log({"train_runtime": 1.0}, state) is None
    assert describe_metrics({"generator_loss": 1.0, "generator_accuracy": None}) == {"generator": "loss 1.0000"}


RUN = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "learning_rate": 5e-4, "save_steps": 2}


@pytest.fixture
def show(model, blocks, tokenizer, tmp_path):
    """Prints a dry run of 48 sequences, and returns what it printed."""

    def show(pair=model, sequences=blocks[0], **options):
        console = Console(file=io.StringIO(), width=110)
        collator = DataCollatorForRTD(tokenizer, seed=1, max_seq_length=32)
        stream, args = SequenceStream(sequences, 48, seed=1), arguments(tmp_path / "run", **RUN, **options)
        dry_run(SimpleNamespace(model=pair, stream=stream, collator=collator, args=args), console)
        return console.file.getvalue()

    return show


def test_a_dry_run_shows_networks_run_and_cost(show, model, blocks):
    text = show(checkpoint_fractions=[0.5, 1.0])
    counts = count_parameters(model)
    shared = counts["generator"] + counts["discriminator"] - counts["total"]
    parameters = f"Together {counts['total']:,} parameters; {shared:,} are shared (--sharing embeddings)."
    memory = f"{4 * 4 * counts['total'] / 1000:.1f} kB for weights, gradients and Adam's moments"  # in float32
    length = ("6 of 8 sequences", f"1,536, {48 / len(blocks[0]):.3g} passes", "after steps 3, 6")
    for expected in (parameters, memory, *length, "matrix products"):
        assert expected in text, expected
    assert re.search(r"hidden size +16 +32\b", text)
    seconds, speed = re.search(r"([\d.e-]+) s a step, ([\d,]+) tokens/s", text).groups()
    assert float(seconds) * int(speed.replace(",", "")) == pytest.approx(8 * 32, rel=0.02)
    assert "\x1b[" not in text


def test_the_sequences_shown_are_those_of_the_first_step(show, model, blocks, tokenizer):
    stream, names = SequenceStream(blocks[0], 48, seed=1), tokenizer.convert_ids_to_tokens
    batch = DataCollatorForRTD(tokenizer, seed=1)(stream.__getitems__([0, 1]))
    output, shown = model.eval()(**batch), " ".join(show().split())
    assert "original/masked/sampled/label" in shown
    for row in range(2):
        words = names(stream[row]["input_ids"])
        for at in batch["masked_positions"][row].tolist():
            parts = names([int(batch["input_ids"][row, at]), int(output.corrupted_input_ids[row, at])])
            words[at] = "/".join([words[at], *parts, str(int(output.replaced_labels[row, at]))])
        assert " ".join(words) in shown


def test_without_a_generator_and_from_any_dataset_there_are_no_samples_and_one_network(show):
    any_dataset = [{"input_ids": [2, *range(5, 25 + i), 3]} for i in range(8)]
    text = show(ElectraForRTDPretraining(tiny_config(objective="mlm")), any_dataset)
    assert f"{48 * 32:,}, 6 passes" in text
    assert not re.search("sampled|label|generator", text.partition("Nothing was trained")[0])


def test_a_dry_run_leaves_everything_as_it_was(show, tmp_path):
    model = ElectraForRTDPretraining(tiny_config(hidden_dropout_prob=0.1)).train()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    show(model, push_to_hub=True, hub_model_id="lab/electra")
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert [path.name for path in tmp_path.iterdir() if any(path.iterdir())] == []


def test_the_disk_that_is_asked_for_is_about_the_disk_that_a_run_takes(blocks, tokenizer, tmp_path):
    model = ElectraForRTDPretraining(tiny_config(hidden_size=256))
    args = arguments(tmp_path, **RUN, save_total_limit=2, checkpoint_fractions=[0.5, 1.0])
    needed, _ = check_disk(model, args)
    trainer = RTDTrainer(model, args, *blocks, processing_class=tokenizer)
    trainer.train()
    trainer.save_run()
    last = [size(path) for path in tmp_path.glob("checkpoint-*")]
    assert len(last) == 2
    assert needed == pytest.approx(size(tmp_path) + last[0], rel=0.15)  # the third is there while the first is deleted
    assert check_disk(model, args)[0] < needed - sum(last) * 0.9  # a run that is resumed


def size(directory):
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
