"""A step must never wait for a GPU: fake tensors, which have shapes but no values, refuse to be read."""

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from hf_electra_rtd import ElectraAdamW, ElectraForRTDPretraining, get_electra_schedule, get_parameter_groups, layers
from hf_electra_rtd.training.meters import TrainingMeters
from tests.conftest import tiny_config


ROWS, LENGTH, SLOTS = 4, 32, 5


def _batch():
    ids = torch.randint(5, 30, (ROWS, LENGTH))
    return {
        "input_ids": ids,
        "token_type_ids": torch.zeros_like(ids),
        "masked_positions": torch.randint(1, LENGTH, (ROWS, SLOTS)),
        "labels": torch.randint(5, 30, (ROWS, SLOTS)),
        "sampling_uniforms": torch.rand(ROWS, SLOTS, 2),
    }


@pytest.mark.parametrize("options", [{}, {"objective": "replace_mlm"}, {"objective": "mlm"}, {"sharing": "gdes"}])
@pytest.mark.parametrize("exchanged", [True, False])
def test_no_number_is_read_in_a_step(options, exchanged, monkeypatch):
    if not exchanged:
        monkeypatch.setattr(layers, "_is_slow", lambda *_: False)  # as on a GPU
    with FakeTensorMode():
        config = tiny_config(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, **options)
        model = ElectraForRTDPretraining(config).train()
        optimizer = ElectraAdamW(get_parameter_groups(model, 0.01), lr=1e-3)
        schedule, meters = get_electra_schedule(optimizer, 2, 10), TrainingMeters(model.measures)
        for _ in range(2):
            batch = _batch()
            with torch.autocast("cpu", torch.bfloat16):
                output = model(**batch)
            output.loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            meters.update(output, batch)
        with pytest.raises(DataDependentOutputException):
            output.loss.item()  # it would be noticed


def test_labels_at_their_positions_cost_one_reading():
    with FakeTensorMode():
        model = ElectraForRTDPretraining(tiny_config()).train()
        batch = _batch()
        with pytest.raises(DataDependentOutputException):
            model(batch["input_ids"], labels=batch["input_ids"])
