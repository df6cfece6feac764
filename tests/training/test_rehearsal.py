"""A rehearsal tells what a run does, and changes nothing."""

import io
import shutil
import tempfile
from collections import namedtuple

import numpy as np
import pytest
import torch
from rich.console import Console

from hf_electra_rtd import DataCollatorForRTD, ElectraForRTDPretraining, RowStream, RTDTrainer, RTDTrainingArguments
from hf_electra_rtd.accounting import model_flops, paper_flops
from hf_electra_rtd.training.disk import check_output_dir, estimate_disk, format_bytes
from hf_electra_rtd.training.rehearsal import find_ties, print_rehearsal, rehearse
from tests.conftest import tiny_config


DiskUsage = namedtuple("DiskUsage", "total used free")


def arguments(directory, **options):
    return RTDTrainingArguments(
        **{
            "output_dir": str(directory),
            "max_steps": 6,
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 2,
            "warmup_steps": 2,
            "logging_steps": 1,
            "eval_steps": 3,
            "save_steps": 2,
            "row_length": 32,
            "disable_tqdm": True,
            "use_cpu": True,
            **options,
        }
    )


class Clock:
    """Ten seconds pass between two looks at it."""

    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        self.seconds += 10.0
        return self.seconds


@pytest.fixture
def run(model, blocks, tokenizer, tmp_path):
    def run(**options):
        args = arguments(tmp_path / "run", **options)
        stream, collator = RowStream(blocks[0], 48, seed=1), DataCollatorForRTD(tokenizer, seed=1)
        return rehearse(model, tokenizer, stream, collator, args, clock=Clock())

    return run


def test_a_rehearsal_tells_the_run_its_speed_and_its_memory(run, model, blocks):
    rehearsal = run()
    assert (rehearsal.steps, rehearsal.rows_per_step, rehearsal.tokens) == (6, 8, 48 * 32)
    assert rehearsal.passes == 48 / len(blocks[0])
    assert (rehearsal.warmup_steps, rehearsal.learning_rate) == (2, 5e-4)
    assert rehearsal.seconds_per_step == pytest.approx(10 / 3)
    assert rehearsal.seconds == pytest.approx(20.0)
    assert rehearsal.tokens_per_second == pytest.approx(8 * 32 / (10 / 3))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert rehearsal.parameter_bytes == rehearsal.gradient_bytes == 4 * parameters
    tensors = len(list(model.parameters()))
    assert rehearsal.optimizer_bytes == 2 * 4 * parameters + 4 * tensors  # two moments, and a count a tensor
    assert rehearsal.parameters.total == parameters
    shared = sum(p.numel() for p in model.discriminator.electra.embeddings.parameters())
    assert rehearsal.parameters.shared == shared
    assert rehearsal.towers["generator"]["hidden size"] == 16
    assert rehearsal.towers["discriminator"]["vocabulary"] == 55
    assert 0 < rehearsal.parameter_bytes < rehearsal.peak_bytes < rehearsal.device_bytes
    assert rehearsal.model_flops == model_flops(model.config, 48, 32, 5)
    assert rehearsal.paper_flops == paper_flops(model.config, 48, 32, 5 / 32)


def test_the_rows_shown_are_those_of_the_first_step(run, model, blocks, tokenizer):
    rehearsal = run()
    stream = RowStream(blocks[0], 48, seed=1)
    batch = DataCollatorForRTD(tokenizer, seed=1)(stream.__getitems__([0, 1, 2, 3]))
    output = model.eval()(**batch)
    name = tokenizer.convert_ids_to_tokens
    for row, tokens in enumerate(rehearsal.rows):
        assert [token.original for token in tokens] == name(stream[row]["input_ids"])
        assert [token.masked_input for token in tokens] == name(batch["input_ids"][row])
        assert [token.corrupted for token in tokens] == name(output.corrupted_input_ids[row])
        assert [token.label for token in tokens] == output.replaced_labels[row].tolist()
        assert [i for i, token in enumerate(tokens) if token.masked] == batch["masked_positions"][row].tolist()


def test_a_rehearsal_leaves_everything_as_it_was(blocks, tokenizer, tmp_path):
    model = ElectraForRTDPretraining(tiny_config(hidden_dropout_prob=0.1)).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    stream, collator = RowStream(blocks[0], 48), DataCollatorForRTD(tokenizer, seed=1)
    fields = RTDTrainingArguments.__dataclass_fields__
    name = "activation_checkpointing" if "activation_checkpointing" in fields else "gradient_checkpointing"
    args = arguments(tmp_path / "run", bf16=True, **{name: True})
    rehearse(model, tokenizer, stream, collator, args)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.training
    assert not any(getattr(module, "gradient_checkpointing", False) for module in model.modules())
    assert list(tmp_path.iterdir()) == []


def test_ties_are_told_by_both_names_and_checked_by_their_storage(model):
    ties = {tie.name: tie for tie in find_ties(model)}
    words = ties["generator.electra.embeddings.word_embeddings.weight"]
    assert words.source == "discriminator.electra.embeddings.word_embeddings.weight"
    assert words.shape == (55, 16)
    assert len(ties) == 6
    assert all(tie.same_storage for tie in ties.values())
    embeddings = model.generator.electra.embeddings
    embeddings.LayerNorm.bias = torch.nn.Parameter(embeddings.LayerNorm.bias.detach().clone())
    torn = [tie.name for tie in find_ties(model) if not tie.same_storage]
    assert torn == ["generator.electra.embeddings.LayerNorm.bias"]


@pytest.mark.parametrize("sharing", ["none", "embeddings"])
def test_the_disk_that_is_promised_is_the_disk_that_a_run_takes(blocks, tokenizer, tmp_path, sharing):
    model = ElectraForRTDPretraining(tiny_config(sharing=sharing, vocab_size=55, hidden_size=128))
    args = arguments(tmp_path, save_total_limit=2, checkpoint_fractions=[0.5, 1.0])
    need = estimate_disk(model, tokenizer, args, 6)
    RTDTrainer(model, args, *blocks, processing_class=tokenizer).train()
    checkpoints = sorted(tmp_path.glob("checkpoint-*"))
    assert (len(checkpoints), need.num_checkpoints) == (2, 3)
    assert need.checkpoint == pytest.approx(size(checkpoints[-1]), rel=0.05)
    model.save_pretrained(tmp_path / "final")
    tokenizer.save_pretrained(tmp_path / "final")
    model.save_towers(tmp_path / "final", tokenizer)
    assert need.final == pytest.approx(size(tmp_path / "final"), rel=0.05)
    assert need.fractions == pytest.approx(size(tmp_path / "fractions"), rel=0.05)
    assert need.total == 3 * need.checkpoint + need.final + need.fractions


def size(directory):
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("options", "number"),
    [
        ({"save_total_limit": None}, 5),
        ({"save_total_limit": 10}, 5),
        ({"save_total_limit": 1}, 2),
        ({"save_steps": 0.5, "save_total_limit": None}, 2),
        ({"save_strategy": "no"}, 0),
    ],
)
def test_as_many_checkpoints_are_counted_as_lie_there_at_once(model, tokenizer, tmp_path, options, number):
    assert estimate_disk(model, tokenizer, arguments(tmp_path, **options), 9).num_checkpoints == number


def test_an_output_directory_with_too_little_room_is_refused_with_both_numbers(run, monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: DiskUsage(10**9, 10**9 - 5000, 5000))
    assert check_output_dir(str(tmp_path / "run"), 5000) == 5000
    with pytest.raises(ValueError, match=r"needs 5 kB \(5,001 bytes\), and 5 kB \(5,000 bytes\).*--save_total_limit"):
        check_output_dir(str(tmp_path / "run"), 5001)
    with pytest.raises(ValueError, match="not enough room"):
        run()


def test_an_output_directory_that_cannot_be_written_is_refused(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    for name in ("file", "file/run"):
        with pytest.raises(ValueError, match=r"file is a file, so nothing can be written into"):
            check_output_dir(str(tmp_path / name))

    def denied(**kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", denied)
    with pytest.raises(ValueError, match=r"Nothing can be written into .*: Permission denied"):
        check_output_dir(str(tmp_path / "run" / "of" / "today"))


def test_checking_a_directory_leaves_nothing_in_it(tmp_path):
    assert check_output_dir(str(tmp_path / "run")) > 0
    assert list(tmp_path.iterdir()) == []


def test_a_stream_of_less_than_a_step_is_refused(model, blocks, tokenizer, tmp_path):
    with pytest.raises(ValueError, match="7 rows, too few for one step of 8"):
        rehearse(model, tokenizer, RowStream(blocks[0], 7), DataCollatorForRTD(tokenizer, seed=1), arguments(tmp_path))


def test_a_batch_that_does_not_fit_is_an_error_with_a_remedy(run, model, monkeypatch):
    def full(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(ElectraForRTDPretraining, "generate", full)
    with pytest.raises(ValueError, match=r"batch of 4 rows does not fit.*--gradient_accumulation_steps"):
        run()


def test_what_the_rehearsal_left_out_is_said(run):
    assert run().caveats == []
    assert run(optim="adafactor").caveats == ["timed with ElectraAdamW, not with adafactor"]


def test_everything_is_printed_within_the_width_and_without_colour(run):
    console = Console(file=io.StringIO(), width=100)
    print_rehearsal(run(optim="adafactor"), console)
    text = console.file.getvalue()
    for expected in (
        "hidden size               16             32",
        "word_embeddings.weight = discriminator.electra.embeddings.word_embeddings.weight (55 x 16, one storage)",
        "label",
        "6 of 8 rows",
        "3.33 s a step, 77 tokens/s",
        "3 checkpoints of",
        "matrix products",
        "not with adafactor",
    ):
        assert expected in text, expected
    assert "\x1b[" not in text
    assert text.count("[MASK]") == sum(token.masked_input == "[MASK]" for row in run().rows for token in row[:48])


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 B"), (999, "999 B"), (5001, "5 kB"), (5.77e6, "5.77 MB"), (1.339e9, "1.34 GB")]
)
def test_bytes_have_a_unit(number, text):
    assert format_bytes(number) == text


def test_rows_of_any_dataset_can_be_rehearsed(model, tokenizer, tmp_path):
    rows = [{"input_ids": [2, *np.random.default_rng(i).integers(5, 55, 20 + i).tolist(), 3]} for i in range(8)]
    collator = DataCollatorForRTD(tokenizer, seed=1, row_length=32)
    rehearsal = rehearse(model, tokenizer, RowStream(rows, shuffle=False), collator, arguments(tmp_path))
    assert rehearsal.tokens == 8 * 32
    assert [len(row) for row in rehearsal.rows] == [22, 23]
