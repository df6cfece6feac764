"""A pre-training checkpoint of google-research/electra as a joint model, or as a discriminator only."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import ElectraForPreTraining

from hf_electra_rtd.checkpoints.tf_hparams import config_from_hparams
from hf_electra_rtd.configuration_electra_rtd import ElectraRTDConfig
from hf_electra_rtd.modeling_electra_rtd import ElectraForRTDPretraining


# From a parameter's name in [`ElectraForRTDPretraining`] to its variable's name (model/modeling.py and
# run_pretraining.py of the original), rule after rule. What ends in KERNEL is transposed.
RULES = (
    (r"^discriminator\.electra\.", "electra."),
    (r"^generator\.electra\.", "generator."),
    (r"^\w+\.(generator_predictions|discriminator_predictions)\.", r"\1."),
    (r"^\w+\.generator_lm_head\.bias$", "generator_predictions.output_bias"),
    (r"\bencoder\.layer\.(\d+)\.", r"encoder.layer_\1."),
    (r"\bdense_prediction\.", "dense_1."),
    (r"\b(word|position|token_type)_embeddings\.weight$", r"\1_embeddings"),
    (r"\bLayerNorm\.weight$", "LayerNorm.gamma"),
    (r"\bLayerNorm\.bias$", "LayerNorm.beta"),
    (r"\.weight$", ".kernel"),
    (r"\.", "/"),
)
KERNEL = "/kernel"
# Slots of Adam (model/optimization.py) and the step counter.
OPTIMIZER_STATE = re.compile(r"(^|/)(adam_m|adam_v|global_step)$")
# Variables that only a generator or a masked language model has.
GENERATOR = re.compile(r"^(generator|generator_predictions)/")


def load_tf_checkpoint(prefix: str | os.PathLike[str], hparams: Mapping[str, Any]) -> ElectraForRTDPretraining:
    """Loads a pre-training checkpoint of google-research/electra, with or without the slots of its optimizer.

    Args:
        prefix: the path of the checkpoint's files up to `.index` and `.data-...`.
        hparams: of its training, under the original's names; the others have the original's defaults.

    Returns:
        The joint model, in evaluation mode.

    Raises:
        ValueError: for hparams that are unknown or cannot be converted, a checkpoint that is missing or damaged, and
            one that does not fit the hparams: lists the variables that are missing, left over, or of another shape.
        ImportError: where TensorFlow is not installed.
    """
    return pair_from_variables(config_from_hparams(hparams), read_tf_variables(prefix))


def load_tf_discriminator(prefix: str | os.PathLike[str], hparams: Mapping[str, Any]) -> ElectraForPreTraining:
    """Loads a checkpoint that holds only the discriminator of a pre-trained pair, as [`load_tf_checkpoint`] does;
    hparams of the generator are not used.
    """
    return discriminator_from_variables(config_from_hparams(hparams), read_tf_variables(prefix))


def holds_only_a_discriminator(config: ElectraRTDConfig, variables: Mapping[str, np.ndarray]) -> bool:
    """Whether a generator network is configured, but none of its variables is there."""
    return config.has_generator_network and not any(GENERATOR.match(name) for name in variables)


def pair_from_variables(config: ElectraRTDConfig, variables: Mapping[str, np.ndarray]) -> ElectraForRTDPretraining:
    """The joint model of a configuration with these variables; raises what [`load_tf_checkpoint`] raises."""
    if holds_only_a_discriminator(config, variables):
        raise ValueError(
            "The checkpoint holds no generator. load_tf_discriminator converts a discriminator only; for a model that "
            "was trained with a uniform generator, set uniform_generator in the hparams."
        )
    model = ElectraForRTDPretraining(config).eval()
    _load(variables_of(model), variables)
    return model


def discriminator_from_variables(
    config: ElectraRTDConfig, variables: Mapping[str, np.ndarray]
) -> ElectraForPreTraining:
    """Likewise the discriminator alone."""
    if config.objective != "rtd":
        raise ValueError(
            "The hparams are of a masked language model (electra_objective false): it has no discriminator."
        )
    tower = ElectraForPreTraining(config.discriminator_config).eval()
    _load(variables_of(tower, "discriminator."), variables)
    return tower


def read_tf_variables(prefix: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Reads the variables of a TensorFlow checkpoint by name, the optimizer's state left out.

    Raises:
        ValueError: if files of the checkpoint are missing, or cannot be read.
        ImportError: where TensorFlow is not installed.
    """
    prefix = os.fspath(prefix)
    if not Path(f"{prefix}.index").is_file():
        directory = Path(prefix) if Path(prefix).is_dir() else Path(prefix).parent
        there = sorted(str(file).removesuffix(".index") for file in directory.glob("*.index"))
        hint = f" Checkpoints there: {', '.join(there[:10])}." if there else ""
        raise ValueError(
            f"There is no TensorFlow checkpoint {prefix}: {prefix}.index is missing. Give the path of its files up to "
            f".index.{hint}"
        )
    if not glob.glob(f"{glob.escape(prefix)}.data-*"):
        raise ValueError(f"The checkpoint has no weights: there is {prefix}.index, but no {prefix}.data-...")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        import tensorflow as tf
    except ImportError as error:
        raise ImportError(
            f"Reading a TensorFlow checkpoint needs TensorFlow ({error}). In the project's directory: "
            "pip install -e '.[tf]'"
        ) from error
    try:
        reader = tf.train.load_checkpoint(prefix)
        names = [name for name in reader.get_variable_to_shape_map() if not OPTIMIZER_STATE.search(name)]
        return {name: np.asarray(reader.get_tensor(name)) for name in sorted(names)}
    except (tf.errors.OpError, RuntimeError, ValueError, IndexError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"{prefix} is damaged, or is not a checkpoint of TensorFlow: {reason}") from None


def variables_of(model: nn.Module, prefix: str = "") -> dict[str, nn.Parameter]:
    """Every parameter of a model by its variable's name; a tied one once, under the discriminator's.

    `prefix` is the name of a single tower in the joint model, with a dot. The output layer's weight has no variable:
    it is the word table.
    """
    # The generator comes first, so that the discriminator's name of a tied parameter is the last.
    names: dict[nn.Parameter, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if not name.endswith("generator_lm_head.weight"):
            variable = prefix + name
            for pattern, replacement in RULES:
                variable = re.sub(pattern, replacement, variable)
            names[parameter] = variable
    return {name: parameter for parameter, name in names.items()}


@torch.no_grad()
def _load(parameters: Mapping[str, nn.Parameter], variables: Mapping[str, Any]) -> None:
    """Copies every variable into its parameter, all of them or none; the optimizer's state is ignored.

    Raises:
        ValueError: lists the variables that are missing, left over, or of another shape than the parameter.
    """
    variables = {name: value for name, value in variables.items() if not OPTIMIZER_STATE.search(name)}
    # As they are in the checkpoint.
    views = {name: p.T if name.endswith(KERNEL) else p for name, p in parameters.items()}
    misshapen = [
        f"{name} is {list(variables[name].shape)}, expected {list(view.shape)}"
        for name, view in views.items()
        if name in variables and variables[name].shape != tuple(view.shape)
    ]
    problems = [
        f"{what} ({len(names)}):\n  " + "\n  ".join(sorted(names))
        for what, names in (
            ("missing variables", views.keys() - variables.keys()),
            ("variables left over", variables.keys() - views.keys()),
            ("variables of another shape", misshapen),
        )
        if names
    ]
    if problems:
        raise ValueError("The checkpoint does not fit the hparams.\n" + "\n".join(problems))
    for name, view in views.items():
        view.copy_(torch.from_numpy(np.array(variables[name], dtype=np.float32)))
