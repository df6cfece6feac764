"""The variables of a google-research/electra checkpoint: how they are read, and which parameter each one is."""

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
# Slots of Adam (model/optimization.py) and the step counter: of the training that was, not of the model.
OPTIMIZER_STATE = re.compile(r"(^|/)(adam_m|adam_v|global_step)$")
# What only a pair, or a masked language model, has.
GENERATOR = re.compile(r"^(generator|generator_predictions)/")

_INSTALL = "pip install -e '.[tf]'"


def read_tf_variables(prefix: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Reads the variables of a TensorFlow checkpoint by name, the optimizer's state left out.

    Args:
        prefix: the path of the checkpoint's files up to `.index` and `.data-...`.

    Raises:
        ValueError: if files of the checkpoint are missing, or cannot be read.
        ImportError: where TensorFlow is not installed.
    """
    prefix = os.fspath(prefix)
    _check_files(prefix)
    # A file is read; what TensorFlow has to say of the processor is not asked for.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        import tensorflow as tf
    except ImportError as error:
        raise ImportError(
            f"Reading a TensorFlow checkpoint needs TensorFlow, an optional extra ({error}). Install it, where this "
            f"project lies: {_INSTALL}"
        ) from error
    try:
        reader = tf.train.load_checkpoint(prefix)
        names = [name for name in reader.get_variable_to_shape_map() if not OPTIMIZER_STATE.search(name)]
        return {name: np.asarray(reader.get_tensor(name)) for name in sorted(names)}
    except (tf.errors.OpError, RuntimeError, ValueError, IndexError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"{prefix} is damaged, or is not a checkpoint of TensorFlow: {reason}") from None


def _check_files(prefix: str) -> None:
    path = Path(prefix)
    if not Path(f"{prefix}.index").is_file():
        directory = path if path.is_dir() else path.parent
        there = sorted(str(file)[: -len(".index")] for file in directory.glob("*.index"))
        hint = f"; of those that are there, name one: {', '.join(there[:10])}" if there else ""
        raise ValueError(
            f"There is no TensorFlow checkpoint {prefix} ({prefix}.index is missing): give the path of its files up "
            f"to .index{hint}."
        )
    if not glob.glob(f"{glob.escape(prefix)}.data-*"):
        raise ValueError(f"{prefix}.index is there, but {prefix}.data-... is not: the weights of the checkpoint.")


def variable_name(parameter: str) -> str | None:
    """The variable of a parameter of the pair; None for the output layer, whose weight is the word table."""
    if parameter.endswith("generator_lm_head.weight"):
        return None
    for pattern, replacement in RULES:
        parameter = re.sub(pattern, replacement, parameter)
    return parameter


def variables_of(model: nn.Module, prefix: str = "") -> dict[str, nn.Parameter]:
    """Every parameter of a model by its variable's name; a tied one once, under the discriminator's.

    Args:
        model: the pair, or one of its towers.
        prefix: what the pair calls the tower, with a dot.
    """
    # The pair names its generator first, so that the discriminator's name of a tied parameter is the last.
    names: dict[nn.Parameter, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        variable = variable_name(prefix + name)
        if variable is not None:
            names[parameter] = variable
    return {name: parameter for parameter, name in names.items()}


@torch.no_grad()
def load_variables(parameters: Mapping[str, nn.Parameter], variables: Mapping[str, Any]) -> None:
    """Copies every variable into its parameter, all of them or none.

    Args:
        parameters: by their variables' names.
        variables: arrays by name; the optimizer's state among them is passed over.

    Raises:
        ValueError: lists the variables that are missing, left over, or of another shape than the parameter.
    """
    variables = {name: value for name, value in variables.items() if not OPTIMIZER_STATE.search(name)}
    missing, left_over = parameters.keys() - variables.keys(), variables.keys() - parameters.keys()
    misshapen = [
        f"{name} is {list(variables[name].shape)}, expected {list(_shape(name, parameter))}"
        for name, parameter in parameters.items()
        if name in variables and tuple(variables[name].shape) != _shape(name, parameter)
    ]
    problems = [
        f"{what} ({len(names)}):\n  " + "\n  ".join(sorted(names))
        for what, names in (
            ("missing variables", missing),
            ("variables left over", left_over),
            ("variables of another shape", misshapen),
        )
        if names
    ]
    if problems:
        raise ValueError("The checkpoint does not fit the hparams.\n" + "\n".join(problems))
    for name, parameter in parameters.items():
        value = torch.from_numpy(np.array(variables[name], dtype=np.float32))
        parameter.copy_(value.T if name.endswith(KERNEL) else value)


def _shape(name: str, parameter: nn.Parameter) -> tuple[int, ...]:
    """Of the variable that fits a parameter."""
    shape = tuple(parameter.shape)
    return shape[::-1] if name.endswith(KERNEL) else shape
