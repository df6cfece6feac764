"""What a record says of a run."""

import json

import pytest
from transformers import TrainerState

from hf_electra_rtd import PretrainingRecord, RTDTrainingArguments
from hf_electra_rtd.accounting import model_flops, paper_flops
from hf_electra_rtd.training.meters import make_record
from hf_electra_rtd.training.trainer import fit_stream, held_out_stream


@pytest.fixture
def record(model, blocks, tmp_path):
    def make(train=blocks[0], held_out=blocks[1], arguments=None, **options):
        given = {"max_steps": 6, "per_device_train_batch_size": 4, "max_seq_length": 32, "use_cpu": True, **options}
        args, state = RTDTrainingArguments(str(tmp_path), **given), TrainerState(global_step=3, max_steps=6)
        held_out = None if held_out is None else held_out_stream(held_out)
        return make_record(model, args, fit_stream(train, args), held_out, state, 2.5, arguments=arguments)

    return make


def test_a_record_counts_what_was_trained_until_now(record, model, blocks):
    made = record()
    assert (made.steps, made.sequences, made.tokens, made.train_seconds) == (3, 12, 12 * 32, 2.5)
    assert made.flops["model"] == model_flops(model.config, 12, 32, 5)
    assert made.flops["paper"] == paper_flops(model.config, 12, 32, 5 / 32)
    assert made.parameters["total"] == sum(parameter.numel() for parameter in model.parameters())
    assert made.data["train"]["sha256"] == blocks[0].header.sha256
    assert made.data["held_out"]["num_sequences"] == len(blocks[1])
    made = record([{"input_ids": [2, 10, 11, 3]}] * 5, None)  # any dataset
    assert made.data == {"train": {"num_sequences": 5}}
    assert made.tokens == 12 * 32  # padding included: nothing else is known without reading


def test_a_record_keeps_types_of_arguments_and_holds_no_path(record, model, tmp_path):
    data = {"train_files": ["../../home/alice/corpus.txt,weight=2"], "held_out_share": 0.5}
    model.config.name_or_path = "../../home/alice/model"
    made = record(arguments={"data": data}, hub_model_id="lab/electra", learning_rate=0.25)
    made.save(tmp_path)
    loaded = PretrainingRecord.load(tmp_path)
    assert "alice/" not in json.dumps(loaded.model)
    assert loaded.arguments["data"] == {"train_files": ["corpus.txt,weight=2"], "held_out_share": 0.5}
    training = loaded.arguments["training"]
    assert (training["max_steps"], training["learning_rate"], training["use_cpu"]) == (6, 0.25, True)
    assert (training["checkpoint_fractions"], training["hub_model_id"]) == (None, "lab/electra")
    assert str(tmp_path.parent) not in json.dumps(loaded.arguments)
