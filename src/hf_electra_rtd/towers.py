"""From native towers to the pair, and from the pair to native towers."""

from __future__ import annotations

import dataclasses
import logging
import os
from pathlib import Path
from typing import Any

import torch
from transformers import ElectraForMaskedLM, ElectraForPreTraining, PreTrainedModel

from hf_electra_rtd.configuration_electra_rtd import ElectraRTDConfig
from hf_electra_rtd.objectives import get_objective
from hf_electra_rtd.sharing import get_sharing


logger = logging.getLogger(__name__)

VOCABULARY_FILE = "vocab.txt"


def load_towers(
    generator: str | os.PathLike[str] | ElectraForMaskedLM,
    discriminator: str | os.PathLike[str] | ElectraForPreTraining,
    **kwargs: Any,
) -> tuple[ElectraRTDConfig, dict[str, Any]]:
    """Loads two native towers and derives the configuration of their pair.

    Args:
        generator: a directory, a Hub id, or a model.
        discriminator: likewise.
        **kwargs: fields of `ElectraRTDConfig`; the others go to `from_pretrained`.

    Returns:
        The configuration, and `{"generator": ..., "discriminator": ...}`.

    Raises:
        ValueError: where the towers have different vocabularies or cannot share.
    """
    own = {field.name for field in dataclasses.fields(ElectraRTDConfig)} - {"dtype"}
    options = {key: kwargs.pop(key) for key in list(kwargs) if key in own}
    if kwargs and isinstance(generator, PreTrainedModel) and isinstance(discriminator, PreTrainedModel):
        raise ValueError(f"Nothing is loaded from a file, and ElectraRTDConfig has no option {', '.join(kwargs)}.")
    objective = get_objective(options.get("objective", ElectraRTDConfig.objective))
    pair = {
        "generator": _load(objective.generator_class, generator, kwargs),
        "discriminator": _load(objective.main_tower_class, discriminator, kwargs),
    }
    config = ElectraRTDConfig(
        generator_config=pair["generator"].config, discriminator_config=pair["discriminator"].config, **options
    )
    sharing = get_sharing(config.sharing)
    sharing.check(config.generator_config, config.discriminator_config)
    _warn_where_tying_overwrites(pair, sharing.tied_weights())
    return config, pair


def _load(
    model_class: type[PreTrainedModel], tower: str | os.PathLike[str] | PreTrainedModel, kwargs: dict[str, Any]
) -> PreTrainedModel:
    if isinstance(tower, PreTrainedModel):
        if not isinstance(tower, model_class):
            raise ValueError(f"This tower must be an {model_class.__name__}, but is a {type(tower).__name__}.")
        return tower
    # Training wants float32 parameters; `from_pretrained` would keep the precision of the file.
    return model_class.from_pretrained(tower, **{"dtype": torch.float32, **kwargs})


def _warn_where_tying_overwrites(pair: dict[str, Any], tied: dict[str, str]) -> None:
    differing = []
    for target, source in tied.items():
        (tower, name), (other, other_name) = target.split(".", 1), source.split(".", 1)
        if not torch.equal(pair[tower].get_parameter(name), pair[other].get_parameter(other_name)):
            differing.append(name)
    if differing:
        logger.warning(
            f"Sharing replaces these tensors of the generator by the discriminator's, which differ: "
            f"{', '.join(differing)}. Use sharing='none' to keep both."
        )


def save_towers(towers: dict[str, PreTrainedModel], directory: str | os.PathLike[str], tokenizer: Any = None) -> None:
    """Writes each tower as a native checkpoint into `directory/<name>`, with the tokenizer and its `vocab.txt`."""
    for name, tower in towers.items():
        path = Path(directory) / name
        tower.save_pretrained(path)
        if tokenizer is not None:
            save_tokenizer(tokenizer, path)


def save_tokenizer(tokenizer: Any, directory: str | os.PathLike[str]) -> None:
    """Writes the tokenizer, and the `vocab.txt` that `transformers` 5 no longer writes but older tools read."""
    tokenizer.save_pretrained(directory)
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    if [index for _, index in vocabulary] != list(range(len(vocabulary))):
        logger.warning(f"No {VOCABULARY_FILE} is written to {directory}: the tokenizer's ids have gaps.")
        return
    text = "".join(f"{token}\n" for token, _ in vocabulary)
    (Path(directory) / VOCABULARY_FILE).write_text(text, encoding="utf-8")
