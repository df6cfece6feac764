import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hf_electra_rtd
from hf_electra_rtd.checkpoints.tf_checkpoint import (
    KERNEL,
    discriminator_from_variables,
    pair_from_variables,
    read_tf_variables,
    variables_of,
)
from hf_electra_rtd.checkpoints.tf_hparams import config_from_hparams


VOCABULARY, POSITIONS = 11, 7


def transformer(scope, hidden, layers, feed_forward, embedding):
    """Shapes of the variables of the original's `BertModel` without its embedding block, written down by hand."""

    def dense(name, num_in, num_out):
        return {f"{scope}/{name}/kernel": (num_in, num_out), f"{scope}/{name}/bias": (num_out,)}

    def norm(name):
        return {f"{scope}/{name}/LayerNorm/{part}": (hidden,) for part in ("beta", "gamma")}

    shapes = dense("embeddings_project", embedding, hidden) if embedding != hidden else {}
    for layer in range(layers):
        name = f"encoder/layer_{layer}"
        for part in ("query", "key", "value"):
            shapes |= dense(f"{name}/attention/self/{part}", hidden, hidden)
        shapes |= dense(f"{name}/attention/output/dense", hidden, hidden) | norm(f"{name}/attention/output")
        shapes |= dense(f"{name}/intermediate/dense", hidden, feed_forward)
        shapes |= dense(f"{name}/output/dense", feed_forward, hidden) | norm(f"{name}/output")
    return shapes


def embeddings(scope, size):
    rows = {"word": VOCABULARY, "position": POSITIONS, "token_type": 2}
    shapes = {f"{scope}/embeddings/{name}_embeddings": (count, size) for name, count in rows.items()}
    return shapes | {f"{scope}/embeddings/LayerNorm/{part}": (size,) for part in ("beta", "gamma")}


def masked_lm_head(hidden, embedding):
    scope = "generator_predictions"
    shapes = {f"{scope}/dense/kernel": (hidden, embedding), f"{scope}/output_bias": (VOCABULARY,)}
    return shapes | {f"{scope}/{name}": (embedding,) for name in ("dense/bias", "LayerNorm/beta", "LayerNorm/gamma")}


def discriminator_head(hidden):
    dense = {"dense/kernel": (hidden, hidden), "dense/bias": (hidden,), "dense_1/kernel": (hidden, 1)}
    return {f"discriminator_predictions/{name}": shape for name, shape in {**dense, "dense_1/bias": (1,)}.items()}


def make(shapes, seed=0, slots=False):
    random = np.random.default_rng(seed)
    variables = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    if slots:
        for name, shape in shapes.items():
            variables |= {f"{name}/{slot}": np.zeros(shape, np.float32) for slot in ("adam_m", "adam_v")}
        variables["global_step"] = np.int64(3)
    return variables


def checkpoint(hidden=8, layers=2, embedding=4, width=0.5, depth=1.0, kind="embeddings"):
    """hparams, and the shapes of all variables that the original makes of them."""
    feed_forward = 4 * hidden
    hparams = {
        "vocab_size": VOCABULARY,
        "embedding_size": embedding,
        "generator_hidden_size": width,
        "generator_layers": depth,
        "untied_generator_embeddings": kind == "none",
        "untied_generator": kind != "all",
        "uniform_generator": kind == "uniform",
        "electra_objective": kind != "mlm",
        "model_hparam_overrides": {
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "max_position_embeddings": POSITIONS,
        },
    }
    shapes = embeddings("electra", embedding) | transformer("electra", hidden, layers, feed_forward, embedding)
    if kind != "mlm":
        shapes |= discriminator_head(hidden)
    if kind in ("all", "mlm"):
        shapes |= masked_lm_head(hidden, embedding)
    if kind in ("none", "embeddings"):
        small, shallow = round(hidden * width), round(layers * depth)
        own = small if kind == "none" else embedding
        shapes |= transformer("generator", small, shallow, 4 * small, own) | masked_lm_head(small, own)
        shapes |= embeddings("generator", own) if kind == "none" else {}
    return hparams, shapes


def assert_holds(model, variables, prefix=""):
    """Every variable is a parameter, and every parameter a variable."""
    parameters = variables_of(model, prefix)
    assert parameters.keys() == {name for name in variables if not re.search("adam_|global_step", name)}
    for name, parameter in parameters.items():
        value = parameter.detach().numpy()
        np.testing.assert_array_equal(value.T if name.endswith(KERNEL) else value, variables[name])
    named = dict(model.named_parameters())
    assert {id(parameter) for parameter in named.values()} == {id(parameter) for parameter in parameters.values()}


@settings(max_examples=25, deadline=None)
@given(
    hidden=st.sampled_from([4, 6, 8, 128]),
    layers=st.integers(1, 11),
    embedding=st.sampled_from([4, 6, 8]),
    width=st.sampled_from([0.25, 0.5, 1.0, 2.0]),
    depth=st.sampled_from([0.6, 1.0, 1.4]),
    kind=st.sampled_from(["embeddings", "none", "all", "uniform", "mlm"]),
    slots=st.booleans(),
)
def test_any_width_depth_and_sharing(hidden, layers, embedding, width, depth, kind, slots):
    hparams, shapes = checkpoint(hidden, layers, embedding, width, depth, kind)
    variables = make(shapes, slots=slots)
    assert_holds(pair_from_variables(config_from_hparams(hparams), variables), variables)


def test_a_discriminator_alone():
    hparams, shapes = checkpoint(kind="embeddings")
    alone = {name: shape for name, shape in shapes.items() if not name.startswith("generator")}
    config, variables = config_from_hparams(hparams), make(alone, slots=True)
    assert_holds(discriminator_from_variables(config, variables), variables, "discriminator.")
    with pytest.raises(ValueError, match=r"no generator. load_tf_discriminator"):
        pair_from_variables(config, variables)
    with pytest.raises(ValueError, match=r"variables left over \(37\):\n  generator/encoder/layer_0/attention"):
        discriminator_from_variables(config, make(shapes))
    with pytest.raises(ValueError, match="has no discriminator"):
        discriminator_from_variables(config_from_hparams({**hparams, "electra_objective": False}), variables)


def test_everything_missing_left_over_and_misshapen_is_listed():
    hparams, shapes = checkpoint()
    missing = [name for name in shapes if "layer_1/attention/self" in name]
    foreign = {"cls/kernel": (3, 4), "electra/encoder/layer_2/output/dense/bias": (8,)}
    variables = make({name: shape for name, shape in shapes.items() if name not in missing} | foreign)
    with pytest.raises(ValueError, match="does not fit the hparams") as raised:
        pair_from_variables(config_from_hparams({**hparams, "vocab_size": 12}), variables)
    told = str(raised.value)
    assert f"missing variables ({len(missing)}):" in told
    assert "variables left over (2):" in told
    assert "electra/embeddings/word_embeddings is [11, 4], expected [12, 4]" in told
    for name in (*missing, *foreign):
        assert f"\n  {name}" in told
    # A kernel's shape is that of the file, not of the transposed parameter.
    told = r"generator/encoder/layer_0/intermediate/dense/kernel is \[4, 16\], expected \[2, 8\]"
    with pytest.raises(ValueError, match=told):
        pair_from_variables(config_from_hparams({**hparams, "generator_hidden_size": 0.25}), make(shapes))


def test_files_that_are_not_there_and_tensorflow_that_is_not(tmp_path, monkeypatch):
    prefix = tmp_path / "model.ckpt-7"
    with pytest.raises(ValueError, match=r"up to \.index\.$"):
        read_tf_variables(prefix)
    Path(f"{prefix}.index").touch()
    for wrong in (tmp_path, tmp_path / "model.ckpt-8", f"{prefix}.index"):
        with pytest.raises(ValueError, match=rf"is missing.* Checkpoints there: {re.escape(str(prefix))}\."):
            read_tf_variables(wrong)
    with pytest.raises(ValueError, match=r"no .*model.ckpt-7.data-..."):
        read_tf_variables(prefix)
    Path(f"{prefix}.data-00000-of-00001").touch()
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(ImportError, match=r"needs TensorFlow.*pip install -e '\.\[tf\]'"):
        hf_electra_rtd.load_tf_checkpoint(prefix, {})
