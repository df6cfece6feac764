"""A dry run shows what a run does, and changes nothing."""

import io
import re
import shutil
from collections import namedtuple

import pytest
import torch
from rich.console import Console

from hf_electra_rtd import DataCollatorForRTD, ElectraForRTDPretraining, RTDTrainer, RTDTrainingArguments
from hf_electra_rtd.accounting import count_parameters
from hf_electra_rtd.data.stream import SequenceStream
from hf_electra_rtd.training.dry_run import check_disk, dry_run
from tests.conftest import tiny_config


def arguments(directory, **options):
    given = {"max_steps": 6, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "warmup_steps": 2}
    given |= {"logging_steps": 1, "eval_steps": 3, "save_steps": 2, "max_seq_length": 32, "use_cpu": True}
    return RTDTrainingArguments(str(directory), **{**given, "disable_tqdm": True, **options})


@pytest.fixture
def show(model, blocks, tokenizer, tmp_path):
    """Prints a dry run of 48 sequences, and returns what it printed."""

    def show(pair=model, sequences=blocks[0], **options):
        console = Console(file=io.StringIO(), width=110)
        collator = DataCollatorForRTD(tokenizer, seed=1, max_seq_length=32)
        stream = SequenceStream(sequences, 48, seed=1)
        dry_run(pair, stream, collator, arguments(tmp_path / "run", **options), console)
        return console.file.getvalue()

    return show


def test_a_dry_run_shows_networks_run_and_cost(show, model, blocks):
    text = show(checkpoint_fractions=[0.5, 1.0])
    counts = count_parameters(model)
    tied = "word_embeddings.weight = discriminator.electra.embeddings.word_embeddings.weight (55 x 16, one storage)"
    parameters = f"Together {counts.total:,} parameters; {counts.shared:,} are shared."
    moments = f"optimizer {2 * 4 * counts.total / 1000:.3g}"  # two, in float32
    length = ("6 of 8 sequences", f"1,536, {48 / len(blocks[0]):.3g} passes", "after steps 3, 6")
    for expected in (parameters, tied, moments, *length, "0.0005 after 2 steps", "matrix products"):
        assert expected in text, expected
    assert re.search(r"hidden size +16 +32\b", text)
    seconds, speed = re.search(r"([\d.e-]+) s a step, ([\d,]+) tokens/s", text).groups()
    assert float(seconds) * int(speed.replace(",", "")) == pytest.approx(8 * 32, rel=0.02)
    assert "\x1b[" not in text
    bias = model.generator.electra.embeddings.LayerNorm
    bias.bias = torch.nn.Parameter(bias.bias.detach().clone())
    assert show().count("NOT ONE STORAGE") == 1


def test_the_sequences_shown_are_those_of_the_first_step(show, model, blocks, tokenizer):
    lines = [line.split() for line in show().splitlines() if line.split()]
    stream = SequenceStream(blocks[0], 48, seed=1)
    batch = DataCollatorForRTD(tokenizer, seed=1)(stream.__getitems__([0, 1]))
    output = model.eval()(**batch)
    joined = {
        name: [word for line in lines if line[0] == name for word in line[1:]]
        for name in ("original", "masked", "sampled", "label")
    }
    names = tokenizer.convert_ids_to_tokens
    assert joined["original"] == [token for i in range(2) for token in names(stream[i]["input_ids"])]
    positions = [sorted(row) for row in batch["masked_positions"].tolist()]
    for name, ids in (("masked", batch["input_ids"]), ("sampled", output.corrupted_input_ids)):
        assert joined[name] == [names(int(ids[row, at])) for row in range(2) for at in positions[row]]
    assert joined["label"] == [str(label) for label in output.replaced_labels.flatten().tolist()]


def test_without_a_generator_and_from_any_dataset_there_are_no_samples_and_one_network(show):
    any_dataset = [{"input_ids": [2, *range(5, 25 + i), 3]} for i in range(8)]
    text = show(ElectraForRTDPretraining(tiny_config(objective="mlm")), any_dataset)
    assert f"{48 * 32:,}, 6 passes" in text
    assert "sampled" not in text
    assert "generator" not in text.partition("No tensor")[0].partition("Tied")[0]


def test_a_dry_run_leaves_everything_as_it_was(show, tmp_path):
    model = ElectraForRTDPretraining(tiny_config(hidden_dropout_prob=0.1)).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    show(model, push_to_hub=True, hub_model_id="lab/electra", logging_steps=1)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert [path.name for path in tmp_path.iterdir() if any(path.iterdir())] == []


def test_what_does_not_fit_is_refused_with_a_remedy(show, monkeypatch):
    def full(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(ElectraForRTDPretraining, "generate", full)
        with pytest.raises(ValueError, match=r"batch of 4 sequences does not fit.*--gradient_accumulation_steps"):
            show()
    usage = namedtuple("DiskUsage", "total used free")(10**9, 10**9 - 5000, 5000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ValueError, match=r"but 5 kB are free.*--save_total_limit"):
        show()


def test_the_disk_that_is_asked_for_is_about_the_disk_that_a_run_takes(blocks, tokenizer, tmp_path):
    model = ElectraForRTDPretraining(tiny_config(hidden_size=256))
    args = arguments(tmp_path, save_total_limit=2, checkpoint_fractions=[0.5, 1.0])
    needed, _ = check_disk(model, args, 6)
    trainer = RTDTrainer(model, args, *blocks, processing_class=tokenizer)
    trainer.train()
    trainer.save_run()
    last = [size(path) for path in tmp_path.glob("checkpoint-*")]
    assert len(last) == 2
    assert needed == pytest.approx(size(tmp_path) + last[0], rel=0.15)  # the third is there while the first is deleted
    assert check_disk(model, args, 6)[0] < needed - sum(last) * 0.9  # a run that is resumed


def size(directory):
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def test_as_many_checkpoints_count_as_lie_there_at_once(model, tmp_path):
    for options, checkpoints in (
        ({"save_total_limit": None}, 5),
        ({"save_total_limit": 1}, 2),
        ({"save_steps": 0.5, "save_total_limit": None}, 2),
        ({"save_strategy": "no"}, 0),
    ):
        needed, _ = check_disk(model, arguments(tmp_path, **options), 9)
        assert needed == 4 * count_parameters(model).total * (3 * checkpoints + 2), options
