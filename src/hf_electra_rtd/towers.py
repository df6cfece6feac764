"""Native towers: loaded whole or not at all, joined, and written."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import ElectraForMaskedLM, PreTrainedConfig, PreTrainedModel

from hf_electra_rtd.configuration_electra_rtd import ElectraRTDConfig, needs_generator_network, refuse_unknown_names
from hf_electra_rtd.data.tokenization import save_tokenizer
from hf_electra_rtd.families import FAMILIES
from hf_electra_rtd.objectives import get_objective
from hf_electra_rtd.sharing import get_sharing


logger = logging.getLogger(__name__)

CONFIG_FILE = "config.json"
PICKLE_FILE = "pytorch_model.bin"

_HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")
_LISTED = 10  # tensors named in an error


def load_towers(
    generator: str | os.PathLike[str] | ElectraForMaskedLM | None,
    discriminator: str | os.PathLike[str] | PreTrainedModel,
    **kwargs: Any,
) -> tuple[ElectraRTDConfig, dict[str, Any]]:
    """Loads two native towers and derives the configuration that joins them: returns the configuration, and
    `{"generator": ..., "discriminator": ...}`. `kwargs` are as in
    `ElectraForRTDPretraining.from_generator_discriminator_pretrained`.

    Raises:
        ValueError: for a tower too few or too many, different vocabularies, sizes that cannot be shared, or a tower
            that cannot be loaded whole.
    """
    own = {field.name for field in dataclasses.fields(ElectraRTDConfig)} - {"dtype"}
    options = {key: kwargs.pop(key) for key in list(kwargs) if key in own}
    options["generator"] = kwargs.pop("generator_type", ElectraRTDConfig.generator)
    options.setdefault("objective", ElectraRTDConfig.objective)
    if kwargs and not isinstance(discriminator, (str, os.PathLike)) and not isinstance(generator, (str, os.PathLike)):
        raise ValueError(f"Nothing is loaded from a file, and ElectraRTDConfig has no option {', '.join(kwargs)}.")
    refuse_unknown_names(options)
    if needs_generator_network(**options) != (generator is not None):
        what = f"objective={options['objective']!r} with generator_type={options['generator']!r}"
        raise ValueError(f"{what} {'needs a generator: give one' if generator is None else 'has none: give None'}.")
    main: Any = _load(get_objective(options["objective"]).main_tower_class, discriminator, kwargs)
    fills: Any = None if generator is None else _load(FAMILIES["electra"].masked_lm, generator, kwargs)
    pair = {"generator": fills, "discriminator": main}
    config = ElectraRTDConfig(
        generator_config=None if fills is None else fills.config,
        discriminator_config=main.config,
        **options,
    )
    if config.has_generator_network:
        sharing = get_sharing(config.sharing)
        _warn_where_tying_overwrites(pair, sharing.tied_weights(main))
        sharing.join(fills, main)
    return config, pair


def _load(
    model_class: type[PreTrainedModel], tower: str | os.PathLike[str] | PreTrainedModel, kwargs: dict[str, Any]
) -> PreTrainedModel:
    if isinstance(tower, PreTrainedModel):
        if not isinstance(tower, model_class):
            raise ValueError(f"The tower must be an {model_class.__name__}, but is a {type(tower).__name__}.")
        return tower
    return load_tower(model_class, tower, **kwargs)


def load_tower(model_class: type[PreTrainedModel], source: str | os.PathLike[str], **kwargs: Any) -> Any:
    """Loads a native tower from a directory or Hub id as `load_whole` does, in float32 unless `dtype` is given."""
    # Training needs float32 parameters; `from_pretrained` keeps the precision of the file.
    options = {"dtype": torch.float32, **kwargs}
    model, _ = load_whole(model_class.from_pretrained, model_class, source, **options)
    return model


def load_whole(
    load: Callable[..., Any], model_class: type[PreTrainedModel], source: str | os.PathLike[str] | None, **kwargs: Any
) -> tuple[Any, dict[str, Any]]:
    """Loads a model by `load`, a `from_pretrained` that gets `kwargs`, and refuses what that accepts: missing tensors,
    which it would draw at random, and unknown tensors, which it would ignore. (With `ignore_mismatched_sizes=True`,
    tensors of another shape are drawn anew.) Returns the model and the loading info.

    Raises:
        ValueError: for a source that does not exist or cannot be reached, holds another type of model or a pickle, is
            damaged, or has missing, unknown or wrongly shaped tensors.
    """
    if source is not None:
        _check_source(model_class, source, kwargs)
    mismatches_allowed = kwargs.pop("ignore_mismatched_sizes", False)
    options = {"use_safetensors": True, **kwargs, "ignore_mismatched_sizes": True, "output_loading_info": True}
    try:
        model, report = load(source, **options)
    except SafetensorError as error:
        raise ValueError(f"The weights of {source} are damaged or are not safetensors: {error}.") from None
    except OSError as error:
        raise ValueError(_unreachable(source, error)) from None
    found = {
        "lacks tensors": report["missing_keys"],
        f"holds tensors unknown to {model_class.__name__}": report["unexpected_keys"],
        "holds tensors of another shape than its configuration says": []
        if mismatches_allowed
        else [f"{key} {tuple(there)}, not {tuple(here)}" for key, there, here in report["mismatched_keys"]],
    }
    problems = [f"{what}: {listed(names)}" for what, names in found.items() if names]
    if problems:
        made_as = ", ".join(model.config.architectures or ()) or "something else"
        raise ValueError(
            f"{source} is not a whole {model_class.__name__} (it was saved as {made_as}): it {'; it '.join(problems)}."
        )
    return model, report


def read_config(source: str | os.PathLike[str], **kwargs: Any) -> dict[str, Any]:
    """The `config.json` of a directory or a Hub id (`kwargs`: where on the Hub, as in `from_pretrained`).

    Raises:
        ValueError: if there is none, or it cannot be read or reached.
    """
    name, subfolder = os.fspath(source), kwargs.get("subfolder", "")
    directory = Path(name, subfolder)
    if Path(name).is_file():
        raise ValueError(f"{name} is a file. Name its directory.")
    if not Path(name).is_dir():
        # A Hub id is `name` or `owner/name`; everything else can only be meant as a path.
        if name.startswith((".", "~")) or Path(name).is_absolute() or name.count("/") > 1 or name.endswith("/"):
            raise ValueError(f"There is no directory {name}.")
        try:
            hub_options = {key: kwargs[key] for key in _HUB_OPTIONS if key in kwargs}
            return dict(PreTrainedConfig.get_config_dict(name, **hub_options)[0])
        except (OSError, ValueError) as error:
            raise ValueError(_unreachable(name, error)) from None
    path = directory / CONFIG_FILE
    if not path.is_file():
        raise ValueError(
            f"{directory} holds no model: there is no {CONFIG_FILE}. Name a run, a checkpoint or a tower."
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}.") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path} is not a configuration.")
    return config


def _check_source(model_class: type[PreTrainedModel], source: str | os.PathLike[str], kwargs: dict[str, Any]) -> None:
    directory = Path(source, kwargs.get("subfolder", ""))
    if kwargs.get("config") is None:
        config = read_config(source, **kwargs)
        expected = model_class.config_class.model_type  # type: ignore[union-attr]
        found = config.get("model_type", expected)
        if found != expected:
            inside = [str(directory / name) for name in ("generator", "discriminator") if (directory / name).is_dir()]
            hint = f" Its towers are {' and '.join(inside)}." if inside else ""
            raise ValueError(f"{source} is a model of type {found!r}, not {expected!r}.{hint}")
    if directory.is_dir() and kwargs.get("state_dict") is None and not list(directory.glob("*.safetensors*")):
        if list(directory.glob("pytorch_model*.bin*")):
            raise ValueError(f"{directory} holds its weights as a pickle. {pickle_remedy(directory)}")
        raise ValueError(f"{directory} holds no weights: it has no model.safetensors.")


def pickle_remedy(directory: Path) -> str:
    """Why a pickle is not read, and the command that converts one."""
    pickle, converted = repr(str(directory / PICKLE_FILE)), repr(str(directory / "model.safetensors"))
    return (
        "A pickle can run any code, so it is not read. If you trust its source, convert it:\n"
        'python -c "import torch, safetensors.torch as st; st.save_file({name: tensor.contiguous().clone() for name, '
        f"tensor in torch.load({pickle}, map_location='cpu', weights_only=True).items()}}, {converted}, "
        "{'format': 'pt'})\""
    )


def _unreachable(source: Any, error: Exception) -> str:
    reason = str(error).strip().partition("\n")[0].rstrip(".")
    return (
        f"{source} cannot be loaded: there is no such directory, and the Hub does not give it as safetensors. Check "
        f"the name, the network (HF_HUB_OFFLINE), and for a private model the login (hf auth login). ({reason}.)"
    )


def listed(names: Iterable[str]) -> str:
    """The first names of a list, and how many more there are."""
    names = sorted(names)
    return ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")


def _warn_where_tying_overwrites(pair: dict[str, Any], tied: dict[str, str]) -> None:
    differing = []
    for target, source in tied.items():
        (tower, name), (other, other_name) = target.split(".", 1), source.split(".", 1)
        if not torch.equal(pair[tower].get_parameter(name), pair[other].get_parameter(other_name)):
            differing.append(name)
    if differing:
        logger.warning(
            f"Sharing replaces tensors of the generator by the discriminator's, although they differ: "
            f"{', '.join(differing)}. Use sharing='none' to keep both."
        )


def save_towers(
    towers: dict[str, tuple[PreTrainedModel, dict[str, Any] | None]],
    directory: str | os.PathLike[str],
    tokenizer: Any = None,
) -> None:
    """Writes each tower (by name, with the tensors to write, or None for its own) as a native checkpoint into
    `directory/<name>`, with the tokenizer and its `vocab.txt`.
    """
    for name, (tower, tensors) in towers.items():
        path = Path(directory) / name
        tower.save_pretrained(path, state_dict=tensors)
        if tokenizer is not None:
            save_tokenizer(tokenizer, path)
