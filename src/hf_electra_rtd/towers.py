"""Native towers: loaded whole or not at all, joined, and written."""

from __future__ import annotations

import dataclasses
import logging
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import ElectraForMaskedLM, PreTrainedConfig, PreTrainedModel

from hf_electra_rtd.configuration_electra_rtd import ElectraRTDConfig, exports_generator, refuse_unknown_names
from hf_electra_rtd.data.tokenization import save_tokenizer
from hf_electra_rtd.families import FAMILIES, masked_lm_class
from hf_electra_rtd.files import read_json, reading
from hf_electra_rtd.objectives import OBJECTIVES
from hf_electra_rtd.sharing import SHARING


logger = logging.getLogger(__name__)

CONFIG_FILE = "config.json"
_HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")
_SHOWN = 10  # tensors named in an error


def load_towers(
    generator: str | os.PathLike[str] | ElectraForMaskedLM | None,
    discriminator: str | os.PathLike[str] | PreTrainedModel,
    **kwargs: Any,
) -> tuple[ElectraRTDConfig, Any, Any]:
    """The configuration that joins two native towers, the generator and the discriminator. Arguments are those of
    `ElectraForRTDPretraining.from_generator_discriminator_pretrained`."""
    own = {field.name for field in dataclasses.fields(ElectraRTDConfig)} - {"dtype"}
    options = {key: kwargs.pop(key) for key in list(kwargs) if key in own}
    options["generator"] = kwargs.pop("generator_type", ElectraRTDConfig.generator)
    options.setdefault("objective", ElectraRTDConfig.objective)
    if kwargs and not isinstance(discriminator, (str, os.PathLike)) and not isinstance(generator, (str, os.PathLike)):
        raise ValueError(f"Nothing is loaded from a file, and ElectraRTDConfig has no option {', '.join(kwargs)}.")
    refuse_unknown_names(options)
    if exports_generator(**options) != (generator is not None):
        what = f"objective={options['objective']!r} with generator_type={options['generator']!r}"
        raise ValueError(f"{what} {'needs a generator: give one' if generator is None else 'has none: give None'}.")
    main = load_tower(OBJECTIVES[options["objective"]].main_tower_class, discriminator, **kwargs)
    fills = None if generator is None else load_masked_lm(generator, **kwargs)
    fills_config = options.pop("generator_config", None) if fills is None else fills.config
    config = ElectraRTDConfig(generator_config=fills_config, discriminator_config=main.config, **options)
    if fills is not None:
        share(config.sharing, fills, main)
    return config, fills, main


def share(name: str, generator: Any, discriminator: Any) -> None:
    """Prepares towers that were trained on their own for a mode of sharing; warns of tensors that will be lost."""
    sharing, mine, other = SHARING[name](), discriminator.base_model, generator.base_model
    names = sharing.shared_parameters(mine)
    differing = [each for each in names if not torch.equal(mine.get_parameter(each), other.get_parameter(each))]
    if differing:
        what = f"tensors of the generator by the discriminator's, although they differ: {_listed(differing)}"
        logger.warning(f"sharing={name!r} replaces {what}. Use sharing='none' to keep both.")
    sharing.join(generator, discriminator)


def load_tower(
    model_class: type[PreTrainedModel], source: str | os.PathLike[str] | PreTrainedModel, **kwargs: Any
) -> Any:
    """Loads a native tower as `load_whole` does, in float32 unless `dtype` is given; a model stays as it is."""
    if isinstance(source, PreTrainedModel):
        if not isinstance(source, model_class):
            raise ValueError(f"The tower must be an {model_class.__name__}, but is a {type(source).__name__}.")
        return source
    # Training needs float32 parameters; `from_pretrained` keeps the precision of the file.
    return load_whole(model_class.from_pretrained, model_class, source, **{"dtype": torch.float32, **kwargs})[0]


def load_masked_lm(source: str | os.PathLike[str] | PreTrainedModel, **kwargs: Any) -> Any:
    """Loads a masked language model of any family, as `load_tower` does."""
    if isinstance(source, PreTrainedModel):
        family = source.config.model_type
    else:
        family = read_config(source, **kwargs).get("model_type", ElectraRTDConfig.model_type)
    # Poolers and heads for pairs of sentences, which BERT was trained with; and buffers of old versions.
    options = {"unused": r"(^|\.)(pooler|seq_relationship)\.|\.position_ids$", **kwargs}
    return load_tower(masked_lm_class(family) or FAMILIES["electra"].masked_lm, source, **options)


def load_whole(
    load: Callable[..., Any], model_class: type[PreTrainedModel], source: str | os.PathLike[str] | None, **kwargs: Any
) -> tuple[Any, dict[str, Any]]:
    """Loads a model by `load`, a `from_pretrained` that gets `kwargs`. Returns it and the loading info. `unused` is a
    regular expression for names of tensors that may be there, and are not read.

    Raises:
        ValueError: for a source that does not exist or cannot be reached, holds another type of model or a pickle, is
            damaged, or has missing, unknown or (without `ignore_mismatched_sizes=True`) wrongly shaped tensors.
    """
    if source is not None:
        _check_source(model_class, source, kwargs)
    mismatches_allowed, unused = kwargs.pop("ignore_mismatched_sizes", False), kwargs.pop("unused", "$^")
    options = {"use_safetensors": True, **kwargs, "ignore_mismatched_sizes": True, "output_loading_info": True}
    with reading(source, "Its config.json or its weights are damaged."):
        try:
            model, report = load(source, **options)
        except OSError as error:
            raise ValueError(_unreachable(source, error)) from None
    mismatched = [f"{key} {tuple(there)}, not {tuple(here)}" for key, there, here in report["mismatched_keys"]]
    parameters = [(name, each) for name, each in model.named_parameters() if not each.is_meta]
    found = {
        "lacks tensors": report["missing_keys"],
        f"holds tensors unknown to {model_class.__name__}": {
            name for name in report["unexpected_keys"] if not re.search(unused, name)
        },
        "holds tensors of another shape than its configuration says": [] if mismatches_allowed else mismatched,
        "holds numbers that are not finite": [name for name, each in parameters if not each.isfinite().all()],
    }
    problems = [f"{what}: {_listed(names)}" for what, names in found.items() if names]
    if problems:
        made_as = ", ".join(model.config.architectures or ()) or "something else"
        raise ValueError(
            f"{source} is not a whole {model_class.__name__} (it was saved as {made_as}): it {'; it '.join(problems)}."
        )
    return model, report


def read_config(source: str | os.PathLike[str], **kwargs: Any) -> dict[str, Any]:
    """The `config.json` of a directory or a Hub id (`kwargs`: where on the Hub, as in `from_pretrained`). Raises
    ValueError if there is none, or it cannot be read or reached."""
    name = os.fspath(source)
    directory = Path(name, kwargs.get("subfolder", ""))
    if Path(name).is_file():
        raise ValueError(f"{name} is a file. Name its directory.")
    if Path(name).is_dir():
        if not (directory / CONFIG_FILE).is_file():
            remedy = "Name a run, a checkpoint or a tower."
            raise ValueError(f"{directory} holds no model: there is no {CONFIG_FILE}. {remedy}")
        return read_json(directory / CONFIG_FILE)
    # A Hub id is `name` or `owner/name`; everything else can only be meant as a path.
    if name.startswith((".", "~")) or Path(name).is_absolute() or name.count("/") > 1 or name.endswith("/"):
        raise ValueError(f"There is no directory {name}.")
    try:
        hub_options = {key: kwargs[key] for key in _HUB_OPTIONS if key in kwargs}
        return dict(PreTrainedConfig.get_config_dict(name, **hub_options)[0])
    except (OSError, ValueError) as error:
        raise ValueError(_unreachable(name, error)) from None


def _check_source(model_class: type[PreTrainedModel], source: str | os.PathLike[str], kwargs: dict[str, Any]) -> None:
    directory = Path(source, kwargs.get("subfolder", ""))
    if kwargs.get("config") is None:
        expected = model_class.config_class.model_type  # type: ignore[union-attr]
        found = read_config(source, **kwargs).get("model_type", expected)
        if found != expected:
            hint = " Name one of its towers." if found == ElectraRTDConfig.model_type else ""
            raise ValueError(f"{source} is a model of type {found!r}, not {expected!r}.{hint}")
    if directory.is_dir() and kwargs.get("state_dict") is None and not list(directory.glob("*.safetensors*")):
        if list(directory.glob("pytorch_model*.bin*")):
            remedy = "Convert them to safetensors first (save_pretrained of transformers)."
            raise ValueError(f"{directory} holds its weights as a pickle, which could run any code. {remedy}")
        raise ValueError(f"{directory} holds no weights: it has no model.safetensors.")
    for path in directory.glob("*.safetensors"):
        with reading(path, "The weights are damaged or are not safetensors."), safe_open(path, "pt") as file:
            kinds = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118  # no mapping
            whole = [name for name in kinds if kinds[name].startswith(("I", "U")) and not name.endswith("_ids")]
            if whole:
                raise ValueError(f"it holds whole numbers in place of weights: {_listed(whole)}")


def _unreachable(source: Any, error: Exception) -> str:
    reason = str(error).strip().partition("\n")[0].rstrip(".")
    return (
        f"{source} cannot be loaded: there is no such directory, and the Hub does not give it as safetensors. Check "
        f"the name, the network (HF_HUB_OFFLINE), and for a private model the login (hf auth login). ({reason}.)"
    )


def _listed(names: Iterable[str]) -> str:
    names = sorted(names)
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def save_towers(towers: dict[str, PreTrainedModel], directory: str | os.PathLike[str], tokenizer: Any = None) -> None:
    """Writes each tower as a native checkpoint into `directory/<name>`, with the tokenizer and its `vocab.txt`."""
    for name, tower in towers.items():
        path = Path(directory) / name
        tower.save_pretrained(path)
        if tokenizer is not None:
            save_tokenizer(tokenizer, path)
