import re
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hf_electra_rtd
from hf_electra_rtd import ElectraRTDConfig
from hf_electra_rtd.checkpoints import (
    KERNEL,
    OVERRIDES,
    SIZE_HPARAMS,
    config_from_hparams,
    model_from_variables,
    variables_of,
)
from tests.recordings import Recording


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


def make(shapes, slots=False):
    random = np.random.default_rng(0)
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
    }
    hparams["model_hparam_overrides"] = {"hidden_size": hidden, "num_hidden_layers": layers}
    hparams["model_hparam_overrides"]["max_position_embeddings"] = POSITIONS
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
    assert_holds(model_from_variables(config_from_hparams(hparams), variables), variables)


def test_a_discriminator_alone():
    hparams, shapes = checkpoint(kind="embeddings")
    alone = {name: shape for name, shape in shapes.items() if not name.startswith("generator")}
    config, variables = config_from_hparams(hparams), make(alone, slots=True)
    assert_holds(model_from_variables(config, variables, True), variables, "discriminator.")
    with pytest.raises(ValueError, match=r"missing variables \(37\):\n  generator/encoder/layer_0/attention"):
        model_from_variables(config, variables)
    with pytest.raises(ValueError, match=r"variables left over \(37\):\n  generator/encoder/layer_0/attention"):
        model_from_variables(config, make(shapes), True)


def test_everything_missing_left_over_and_misshapen_is_listed():
    hparams, shapes = checkpoint()
    missing = [name for name in shapes if "layer_1/attention/self" in name]
    foreign = {"cls/kernel": (3, 4), "electra/encoder/layer_2/output/dense/bias": (8,)}
    variables = make({name: shape for name, shape in shapes.items() if name not in missing} | foreign)
    with pytest.raises(ValueError, match="does not fit the hparams") as raised:
        model_from_variables(config_from_hparams({**hparams, "vocab_size": 12}), variables)
    told = str(raised.value)
    assert f"missing variables ({len(missing)}):" in told
    assert "variables left over (2):" in told
    assert "electra/embeddings/word_embeddings is [11, 4], expected [12, 4]" in told
    for name in (*missing, *foreign):
        assert f"\n  {name}" in told
    # A kernel's shape is that of the file, not of the transposed parameter.
    told = r"generator/encoder/layer_0/intermediate/dense/kernel is \[4, 16\], expected \[2, 8\]"
    with pytest.raises(ValueError, match=told):
        model_from_variables(config_from_hparams({**hparams, "generator_hidden_size": 0.25}), make(shapes))


def test_the_message_where_tensorflow_is_not_installed_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(ValueError, match=r"needs TensorFlow.*pip install -e '\.\[tf\]'"):
        hf_electra_rtd.load_tf_checkpoint("model.ckpt-7", {})


# ---- hparams ----


@pytest.mark.parametrize("size", SIZE_HPARAMS)
def test_named_sizes_are_the_released_ones_by_the_originals_formulas(size):
    assert config_from_hparams(SIZE_HPARAMS[size]).to_dict() == ElectraRTDConfig.from_size(size).to_dict()


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        ("small_shared", ("rtd", "masked_lm", "embeddings")),
        ("untied_embeddings", ("rtd", "masked_lm", "none")),
        ("all_tied", ("rtd", "masked_lm", "all")),
        ("uniform_generator", ("rtd", "uniform", "none")),
        ("mlm_only", ("mlm", "masked_lm", "none")),
    ],
)
def test_the_recorded_hparams_give_the_recorded_configurations(variant, expected):
    recorded = Recording(variant).config
    config = config_from_hparams(recorded["hparams"])
    assert (config.objective, config.generator, config.sharing) == expected
    has_own_generator = variant in ("small_shared", "untied_embeddings")
    for name in ("generator", "discriminator") if has_own_generator else ("discriminator",):
        assert {key: getattr(config.towers[name], key) for key in OVERRIDES} == recorded[name]


SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "embedding_size")


@pytest.mark.parametrize(
    ("hparams", "discriminator", "generator"),
    [
        ({}, (256, 12, 4, 1024, 128), (64, 12, 1, 256, 128)),
        ({"embedding_size": None}, (256, 12, 4, 1024, 256), (64, 12, 1, 256, 256)),
        ({"embedding_size": 64}, (256, 12, 4, 1024, 64), (64, 12, 1, 256, 64)),
        ({"model_size": "base"}, (768, 12, 12, 3072, 768), (192, 12, 3, 768, 768)),
        ({"model_size": "base", "hidden_size": 512}, (512, 12, 8, 2048, 512), (128, 12, 2, 512, 512)),
        ({"hidden_size": 320, "num_hidden_layers": 5}, (320, 5, 5, 1280, 128), (80, 5, 1, 320, 128)),
        (
            {"num_attention_heads": 8, "intermediate_size": 96, "generator_layers": 0.4},
            (256, 12, 8, 96, 128),
            (64, 5, 1, 256, 128),
        ),
    ],
)
def test_sizes_follow_the_model_size_and_the_width_unless_they_are_given(hparams, discriminator, generator):
    overrides = {name: value for name, value in hparams.items() if name in OVERRIDES}
    others = {name: value for name, value in hparams.items() if name not in OVERRIDES}
    towers = config_from_hparams({**others, "model_hparam_overrides": overrides}).towers
    for name, sizes in (("discriminator", discriminator), ("generator", generator)):
        assert tuple(getattr(towers[name], size) for size in SIZES) == sizes


def test_what_the_original_ignores_is_left_out():
    sampling = {"temperature": 2.0, "disallow_correct": True}
    assert config_from_hparams({**sampling, "electra_objective": False, "gen_weight": 2.0}).discriminator_weight == 2.0
    assert config_from_hparams({**sampling, "uniform_generator": True}).disallow_correct
    config = config_from_hparams({**sampling, "untied_generator": False, "untied_generator_embeddings": True})
    assert (config.temperature, config.sharing) == (2.0, "all")


@pytest.mark.parametrize(
    ("hparams", "message"),
    [
        ({"generator_size": 0.5}, "no hparam 'generator_size'. Did you mean 'generator_hidden_size'"),
        ({"foo": 1}, "no hparam 'foo'. Known names: .*debug"),
        ({"model_hparam_overrides": {"embedding_size": 64}}, "model_hparam_overrides cannot name 'embedding_size'"),
        ({"model_size": "tiny"}, "no model_size 'tiny'. Known sizes: small, base, large"),
        ({"electric_objective": True}, "model of electric_objective cannot be converted"),
        ({"two_tower_generator": True, "debug": True}, "model of two_tower_generator and debug cannot"),
        ({"uniform_generator": True, "electra_objective": False}, "no variable to learn"),
        ({"model_hparam_overrides": {"hidden_act": "relu"}}, "no other hidden_act than 'gelu'"),
        ({"model_hparam_overrides": {"num_attention_heads": 3}}, "3 attention heads do not divide"),
        ({"generator_layers": 0.01}, "cannot be built"),
    ],
)
def test_hparams_that_cannot_be_converted(hparams, message):
    with pytest.raises(ValueError, match=message):
        config_from_hparams(hparams)
