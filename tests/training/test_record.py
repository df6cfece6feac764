"""What a record says of a run."""

import json

import pytest

from hf_electra_rtd import PretrainingRecord, RTDTrainingArguments
from hf_electra_rtd.accounting import model_flops, paper_flops
from hf_electra_rtd.training.record import EMISSIONS_FILE, make_record
from hf_electra_rtd.training.stream import fit_stream, held_out_stream


MEASURED = """timestamp,emissions,energy_consumed,country_name,codecarbon_version
2025,0.0125,0.25,Iceland,3.0
2026,0.0075,0.15,Iceland,3.1
"""


@pytest.fixture
def record(model, blocks, tmp_path):
    def make(train=blocks[0], held_out=blocks[1], steps=3, arguments=None, **options):
        given = {"max_steps": 6, "per_device_train_batch_size": 4, "max_seq_length": 32, "use_cpu": True, **options}
        args = RTDTrainingArguments(str(tmp_path), **given)
        stream = fit_stream(train, args)
        held_out = None if held_out is None else held_out_stream(held_out)
        return make_record(model, args, stream, held_out, steps, 2.5, [], {}, arguments=arguments)

    return make


def test_a_record_counts_what_was_trained_until_now(record, model, blocks):
    made = record(steps=3)
    assert (made.steps, made.sequences, made.tokens, made.train_seconds) == (3, 12, 12 * 32, 2.5)
    assert made.flops["model"] == model_flops(model.config, 12, 32, 5)
    assert made.flops["paper"] == paper_flops(model.config, 12, 32, 5 / 32)
    assert made.parameters["total"] == sum(parameter.numel() for parameter in model.parameters())
    assert made.data["train"]["sha256"] == blocks[0].header.sha256
    assert made.data["held_out"]["num_sequences"] == len(blocks[1])


def test_sequences_of_any_dataset_have_a_record(record):
    sequences = [{"input_ids": [2, 10, 11, 3]}] * 5
    made = record(sequences, None)
    assert made.data == {"train": {"num_sequences": 5}}
    assert made.tokens == 12 * 32  # padding included: nothing else is known without reading


def test_arguments_keep_their_types_and_hold_no_path_or_secret(record, tmp_path):
    data = {"train_files": ["../../home/alice/corpus.txt,weight=2"], "held_out_share": 0.5}
    made = record(arguments={"data": data}, hub_model_id="lab/electra", learning_rate=0.25, run_name="alice's")
    made.save(tmp_path)
    arguments = PretrainingRecord.load(tmp_path).arguments
    assert arguments["data"] == {"train_files": ["corpus.txt,weight=2"], "held_out_share": 0.5}
    training = arguments["training"]
    assert (training["max_steps"], training["learning_rate"], training["use_cpu"]) == (6, 0.25, True)
    assert (training["checkpoint_fractions"], training["hub_model_id"]) == (None, "lab/electra")
    assert str(tmp_path.parent) not in json.dumps(arguments)


def test_the_configuration_does_not_say_where_the_model_lay(record, model):
    model.config.name_or_path = "../../home/alice/model"
    assert "alice" not in json.dumps(record().model)


def test_emissions_of_all_sessions_are_in_the_record(record, tmp_path, caplog):
    assert record().emissions == {}
    (tmp_path / EMISSIONS_FILE).write_text(MEASURED)
    emissions = record().emissions
    assert emissions.pop("kg_co2_eq") == pytest.approx(0.02)
    assert emissions.pop("energy_kwh") == pytest.approx(0.4)
    assert emissions == {"country": "Iceland", "source": "codecarbon 3.1"}

    for damaged in ("timestamp,emissions\n2025,much\n", MEASURED.replace("0.0125", "nan"), "\0", ""):
        caplog.clear()
        (tmp_path / EMISSIONS_FILE).write_text(damaged)
        assert record().emissions == {}
        assert "not a file of codecarbon" in caplog.text
