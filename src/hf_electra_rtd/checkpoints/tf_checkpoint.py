"""From a pre-training checkpoint of google-research/electra to the pair, or to a discriminator alone."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from transformers import ElectraForPreTraining

from hf_electra_rtd.checkpoints.tf_hparams import config_from_hparams
from hf_electra_rtd.checkpoints.tf_variables import GENERATOR, load_variables, read_tf_variables, variables_of
from hf_electra_rtd.configuration_electra_rtd import ElectraRTDConfig
from hf_electra_rtd.modeling_electra_rtd import ElectraForRTDPretraining


def load_tf_checkpoint(prefix: str | os.PathLike[str], hparams: Mapping[str, Any]) -> ElectraForRTDPretraining:
    """Loads a pre-training checkpoint of google-research/electra, with or without the slots of its optimizer.

    Args:
        prefix: the path of the checkpoint's files up to `.index` and `.data-...`.
        hparams: what the checkpoint was trained with, under the original's names; what is left out has the original's
            default.

    Returns:
        The pair, in evaluation mode.

    Raises:
        ValueError: for hparams that are unknown or cannot be converted, a checkpoint that is missing or damaged, and
            one that does not fit the hparams: lists the variables that are missing, left over, or of another shape.
        ImportError: where TensorFlow is not installed.
    """
    config = config_from_hparams(hparams)
    return pair_from_variables(config, read_tf_variables(prefix))


def load_tf_discriminator(prefix: str | os.PathLike[str], hparams: Mapping[str, Any]) -> ElectraForPreTraining:
    """Loads a checkpoint that holds only the discriminator of a pre-trained pair.

    Args and Raises as of [`load_tf_checkpoint`]; what hparams say of the generator is not used.
    """
    config = config_from_hparams(hparams)
    return discriminator_from_variables(config, read_tf_variables(prefix))


def holds_only_a_discriminator(config: ElectraRTDConfig, variables: Mapping[str, np.ndarray]) -> bool:
    """Whether there should be a generator network, and nothing of it is there."""
    return config.has_generator_network and not any(GENERATOR.match(name) for name in variables)


def pair_from_variables(config: ElectraRTDConfig, variables: Mapping[str, np.ndarray]) -> ElectraForRTDPretraining:
    """The pair of a configuration with these variables.

    Raises:
        ValueError: as [`load_tf_checkpoint`].
    """
    if holds_only_a_discriminator(config, variables):
        raise ValueError(
            "The checkpoint holds nothing of a generator: load_tf_discriminator converts a discriminator alone. (Or "
            "say uniform_generator in the hparams, if that is what it was trained with.)"
        )
    model = ElectraForRTDPretraining(config).eval()
    load_variables(variables_of(model), variables)
    return model


def discriminator_from_variables(
    config: ElectraRTDConfig, variables: Mapping[str, np.ndarray]
) -> ElectraForPreTraining:
    """The discriminator of a configuration with these variables.

    Raises:
        ValueError: as [`load_tf_checkpoint`].
    """
    if config.objective != "rtd":
        raise ValueError(
            "The hparams are of a masked language model (electra_objective false): it has no discriminator."
        )
    tower = ElectraForPreTraining(config.discriminator_config).eval()
    load_variables(variables_of(tower, "discriminator."), variables)
    return tower
