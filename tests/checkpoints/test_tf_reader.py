"""Runs the real reader on real checkpoints, which needs the extra `tf` (`make test-tf`)."""

import numpy as np
import pytest
import torch

from hf_electra_rtd import load_tf_checkpoint
from hf_electra_rtd.pair.original_checkpoints import read_tf_variables
from tests.recordings import STEP_COUNTER, VARIANTS, Recording


pytestmark = pytest.mark.tensorflow


def assert_same_variables(ours, expected):
    assert ours.keys() == expected.keys() - {STEP_COUNTER}
    for name, value in ours.items():
        assert value.dtype == expected[name].dtype
        np.testing.assert_array_equal(value, expected[name])


def assert_same_tensors(ours, expected):
    assert ours.state_dict().keys() == expected.state_dict().keys()
    for name, tensor in ours.state_dict().items():
        torch.testing.assert_close(tensor, expected.state_dict()[name], rtol=0, atol=0)


def write_checkpoint(prefix, variables):
    import tensorflow as tf

    names = sorted(variables)
    tensors = [tf.constant(variables[name]) for name in names]
    tf.raw_ops.SaveV2(prefix=str(prefix), tensor_names=names, shape_and_slices=[""] * len(names), tensors=tensors)


@pytest.mark.parametrize("variant", VARIANTS)
def test_reads_what_the_suite_reads_without_it(variant):
    recording = Recording(variant)
    for prefix in (recording.prefix, f"{recording.prefix}.index"):
        assert_same_variables(read_tf_variables(prefix), recording.start_variables)
    assert_same_tensors(load_tf_checkpoint(str(recording.prefix), recording.hparams), recording.load())


def test_slots_of_the_optimizer_are_left_out_and_a_discriminator_may_be_alone(tmp_path):
    recording = Recording("untied_embeddings")
    alone = {name: value for name, value in recording.start_variables.items() if not name.startswith("generator")}
    names = [name for name in alone if name != STEP_COUNTER]
    slots = {f"{name}/{slot}": np.ones_like(alone[name]) for name in names for slot in ("adam_m", "adam_v")}
    write_checkpoint(tmp_path / "model.ckpt-0", alone | slots)
    assert_same_variables(read_tf_variables(tmp_path / "model.ckpt-0"), alone)
    tower = load_tf_checkpoint(tmp_path / "model.ckpt-0", recording.hparams)
    assert_same_tensors(tower, recording.load().discriminator)
