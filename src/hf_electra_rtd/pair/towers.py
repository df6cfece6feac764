"""Loads, joins and writes native towers. A tower is loaded whole or not at all."""

from __future__ import annotations

import copy
import dataclasses
import logging
import os
import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import ElectraForMaskedLM, ElectraForPreTraining, PreTrainedModel

from hf_electra_rtd.base.files import load_pretrained, naming, reading
from hf_electra_rtd.data.tokenization import fit_tokenizer, save_tokenizer
from hf_electra_rtd.encoders.detectors import is_labelled
from hf_electra_rtd.encoders.families import choose_head, masked_lm_class, token_classifier_class
from hf_electra_rtd.pair.configuration_electra_rtd import ElectraRTDConfig, exports_generator, refuse_unknown_names
from hf_electra_rtd.pair.objectives import OBJECTIVES
from hf_electra_rtd.pair.places import DETECTOR, identify, read_config, unreachable
from hf_electra_rtd.pair.sharing import SHARING


logger = logging.getLogger(__name__)

_SHOWN = 10  # tensors named in an error
# Tensors that may stay unread: BERT's poolers and heads for pairs of sentences, and buffers of old versions.
_UNUSED = r"(^|\.)(pooler|seq_relationship)\.|\.position_ids$"


def load_towers(
    generator: str | os.PathLike[str] | PreTrainedModel | None,
    discriminator: str | os.PathLike[str] | PreTrainedModel,
    **kwargs: Any,
) -> tuple[ElectraRTDConfig, Any, Any]:
    """Loads two native towers. Returns the configuration that joins them, the generator, and the discriminator.
    Arguments are those of `ElectraForRTDPretraining.from_generator_discriminator_pretrained`."""
    own = {field.name for field in dataclasses.fields(ElectraRTDConfig)} - {"dtype"}
    options = {key: kwargs.pop(key) for key in list(kwargs) if key in own}
    options["generator"] = kwargs.pop("generator_type", ElectraRTDConfig.generator)
    options.setdefault("objective", ElectraRTDConfig.objective)
    if kwargs and not isinstance(discriminator, (str, os.PathLike)) and not isinstance(generator, (str, os.PathLike)):
        raise ValueError(f"Nothing is loaded from a file, and ElectraRTDConfig has no option {', '.join(kwargs)}.")
    refuse_unknown_names(options)
    if exports_generator(**options) != (generator is not None):
        raise ValueError(
            f"objective={options['objective']!r} with generator_type={options['generator']!r} "
            f"{'needs a generator: give one' if generator is None else 'has none: give None'}."
        )
    main = load_main_tower(options["objective"], discriminator, **kwargs)
    fills = None if generator is None else load_masked_lm(generator, **kwargs)
    fills_config = options.pop("generator_config", None) if fills is None else fills.config
    config = ElectraRTDConfig(generator_config=fills_config, discriminator_config=main.config, **options)
    if fills is not None:
        share(config.sharing, fills, main)
    return config, fills, main


def share(name: str, generator: Any, discriminator: Any) -> None:
    """Prepares towers that were trained separately for a mode of sharing; warns of tensors that will be lost."""
    sharing = SHARING[name]()
    mine = discriminator.base_model
    other = generator.base_model
    pairs = sharing.shared_pairs(other, mine)
    differing = [name for its, name in pairs if not torch.equal(mine.get_parameter(name), other.get_parameter(its))]
    if differing:
        logger.warning(
            f"sharing={name!r} replaces tensors of the generator by the discriminator's, although they differ: "
            f"{_listed(differing)}. Use sharing='none' to keep both."
        )
    sharing.join(generator, discriminator)


def load_tower(
    model_class: type[PreTrainedModel], source: str | os.PathLike[str] | PreTrainedModel, **kwargs: Any
) -> Any:
    """Loads a native tower as `load_whole` does, in float32 unless `dtype` is given. A model is returned as it is.
    Raises ValueError if it is of another class."""
    if isinstance(source, PreTrainedModel):
        if not isinstance(source, model_class):
            raise ValueError(f"The tower must be {model_class.__name__}, but is {type(source).__name__}.")
        return source
    # Training needs float32 parameters; `from_pretrained` keeps the precision of the file.
    options = {"dtype": torch.float32, "unused": _UNUSED, **kwargs}
    return load_whole(model_class, source, **options)[0]


def load_masked_lm(source: str | os.PathLike[str] | PreTrainedModel, **kwargs: Any) -> Any:
    """Loads a masked language model of any family, as `load_tower` does."""
    return load_tower(masked_lm_class(_config_of(source, kwargs).model_type) or ElectraForMaskedLM, source, **kwargs)


def load_main_tower(objective: str, source: str | os.PathLike[str] | PreTrainedModel, **kwargs: Any) -> Any:
    """Loads a discriminator of any family with its head, for an objective, as `load_tower` does. Also raises
    ValueError for a model that classifies tokens by other labels than those of a detector."""
    config = _config_of(source, kwargs)
    model_class: Any = OBJECTIVES[objective].tower_class
    wanted = model_class(config.model_type) or model_class("electra")
    if wanted is token_classifier_class(config.model_type) and not is_labelled(config):
        raise ValueError(
            f"{type(source).__name__ if isinstance(source, PreTrainedModel) else source} is no detector: it does not "
            "classify tokens as original and replaced. Name a run's detector/, or name the encoder as a backbone."
        )
    return load_tower(wanted, source, **kwargs)


def _config_of(source: str | os.PathLike[str] | PreTrainedModel, hub: dict[str, Any]) -> Any:
    return source.config if isinstance(source, PreTrainedModel) else identify(source, **hub).load_config()


def load_encoder(source: str | os.PathLike[str], config: Any) -> Any:
    """Loads the masked language model of an encoder's family with the weights of a directory or a Hub id. Its head is
    new if the weights have none; layers beyond those of `config` are left out."""
    model_class: Any = masked_lm_class(config.model_type)
    new = rf"^(?!{re.escape(model_class.base_model_prefix)}\.)"
    return load_tower(model_class, source, config=config, unused="", new=new)


def load_detector(source: str | os.PathLike[str]) -> Any:
    """Loads a model for `detectors.detection_logits`: ELECTRA's discriminator, or any family's detector, from its
    directory or Hub id. Raises ValueError as `load_whole` does, and for any other model."""
    place = identify(source)
    if place.kind != DETECTOR:
        raise place.error("a run, or the discriminator/ or detector/ of one")
    if place.architecture in (None, ElectraForPreTraining.__name__):
        return load_tower(ElectraForPreTraining, source)
    return load_tower(token_classifier_class(place.family) or ElectraForPreTraining, source)


def load_whole(
    model_class: type[PreTrainedModel],
    source: str | os.PathLike[str] | None,
    load: Callable[..., Any] | None = None,
    **kwargs: Any,
) -> tuple[Any, dict[str, Any]]:
    """Loads a model by `load` (by default `load_pretrained`), which gets `source` and `kwargs`. Returns the model and
    the loading info. `unused` is a regular expression for the names of tensors that may be there and are not read,
    `new` one for tensors that may be missing and are drawn. Raises ValueError for a source that cannot be reached,
    holds another type of model or a pickle, is damaged, or has missing, unknown or (without
    `ignore_mismatched_sizes=True`) wrongly shaped tensors."""
    if source is not None:
        _check_source(model_class, source, kwargs)
    mismatches_allowed = kwargs.pop("ignore_mismatched_sizes", False)
    unused = kwargs.pop("unused", "$^")
    new = kwargs.pop("new", "$^")
    options = {
        "use_safetensors": True,
        **kwargs,
        "ignore_mismatched_sizes": True,
        "output_loading_info": True,
    }
    load = load or partial(load_pretrained, model_class)
    with reading(source, "Its config.json or its weights are damaged, or an option is wrong."):
        try:
            model, report = load(source, **options)
            if choose_head(model, report["unexpected_keys"], options.setdefault("config", model.config)):
                model, report = load(source, **options)
        except OSError as error:
            raise ValueError(unreachable(source, error)) from None
    mismatched = [f"{key} {tuple(there)}, not {tuple(here)}" for key, there, here in report["mismatched_keys"]]
    lists = {
        "lacks tensors": {name for name in report["missing_keys"] if not re.search(new, name)},
        f"holds tensors unknown to {model_class.__name__}": {
            name for name in report["unexpected_keys"] if not re.search(unused, name)
        },
        "holds tensors of another shape than its configuration says": [] if mismatches_allowed else mismatched,
    }
    problems = [f"{what}: {_listed(names)}" for what, names in lists.items() if names]
    if problems:
        made_as = ", ".join(model.config.architectures or ()) or "something else"
        raise ValueError(
            f"{source} is not a whole {model_class.__name__} (it was saved as {made_as}): it {'; it '.join(problems)}."
        )
    return model, report


def fit_vocabulary(config: Any, tokenizer: Any) -> None:
    """Sets the vocabulary size and the ids of special tokens in the configuration of a new network."""
    config.vocab_size = len(tokenizer)
    for name in ("pad", "cls", "sep", "bos", "eos"):
        if name == "pad" or getattr(config, f"{name}_token_id", None) is not None:
            setattr(config, f"{name}_token_id", getattr(tokenizer, f"{name}_token_id"))


def _check_source(model_class: type[PreTrainedModel], source: str | os.PathLike[str], kwargs: dict[str, Any]) -> None:
    directory = Path(source, kwargs.get("subfolder", ""))
    if kwargs.get("config") is None:
        expected = model_class.config_class.model_type  # type: ignore[union-attr]
        family = read_config(source, **kwargs).get("model_type", expected)
        if family != expected:
            hints = {family: " Name one of its towers.", expected: " Name the run or the saved pair."}
            hint = hints.get(ElectraRTDConfig.model_type, "")
            raise ValueError(f"{source} is a model of type {family!r}, not {expected!r}.{hint}")
    if directory.is_dir() and kwargs.get("state_dict") is None and not list(directory.glob("*.safetensors*")):
        raise ValueError(
            f"{directory} holds no weights: it has no model.safetensors. A pickle, which could run any code, is not "
            "read: convert it (save_pretrained of transformers)."
        )


def _listed(names: Iterable[str]) -> str:
    names = sorted(names)
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def save_towers(towers: dict[str, PreTrainedModel], directory: str | os.PathLike[str], tokenizer: Any = None) -> None:
    """Writes each tower as a native checkpoint into `directory/<name>`, with a copy of the tokenizer that fits it."""
    for name, tower in towers.items():
        path = Path(directory) / name
        with naming(path):
            tower.save_pretrained(path)
        if tokenizer is not None:
            own = copy.deepcopy(tokenizer)
            fit_tokenizer(own, tower.config)
            save_tokenizer(own, path)
