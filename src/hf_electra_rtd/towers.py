"""From native towers to the pair, and from the pair to native towers."""

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
from transformers import ElectraForMaskedLM, PreTrainedModel

from hf_electra_rtd.configuration_electra_rtd import (
    ElectraRTDConfig,
    needs_generator_network,
    refuse_unknown_names,
)
from hf_electra_rtd.objectives import get_objective
from hf_electra_rtd.sharing import get_sharing


logger = logging.getLogger(__name__)

VOCABULARY_FILE = "vocab.txt"
CONFIG_FILE = "config.json"
PICKLE_FILE = "pytorch_model.bin"

_HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")
_LISTED = 10  # tensors named in an error


def load_towers(
    generator: str | os.PathLike[str] | ElectraForMaskedLM | None,
    discriminator: str | os.PathLike[str] | PreTrainedModel,
    **kwargs: Any,
) -> tuple[ElectraRTDConfig, dict[str, Any]]:
    """Loads two native towers and derives the configuration of their pair.

    Args:
        generator: a directory, a Hub id, or a model; None where there is no generator network.
        discriminator: likewise.
        **kwargs: fields of `ElectraRTDConfig`, its `generator` by the name of `generator_type`; the others go to
            `from_pretrained`.

    Returns:
        The configuration, and `{"generator": ..., "discriminator": ...}`.

    Raises:
        ValueError: where there is a tower too few or too many, or they have different vocabularies or cannot share,
            or one cannot be loaded whole.
    """
    own = {field.name for field in dataclasses.fields(ElectraRTDConfig)} - {"dtype"}
    options = {key: kwargs.pop(key) for key in list(kwargs) if key in own}
    options["generator"] = kwargs.pop("generator_type", ElectraRTDConfig.generator)
    if kwargs and not isinstance(discriminator, (str, os.PathLike)) and not isinstance(generator, (str, os.PathLike)):
        raise ValueError(f"Nothing is loaded from a file, and ElectraRTDConfig has no option {', '.join(kwargs)}.")
    refuse_unknown_names(options)
    if needs_generator_network(**options) != (generator is not None):
        what = f"objective={options.get('objective', ElectraRTDConfig.objective)!r}"
        what += f" with generator_type={options['generator']!r}"
        raise ValueError(f"{what} {'needs a generator: give one' if generator is None else 'has none: give None'}.")
    objective = get_objective(options.get("objective", ElectraRTDConfig.objective))
    main: Any = _load(objective.main_tower_class, discriminator, kwargs)
    fills: Any = None if generator is None else _load(ElectraForMaskedLM, generator, kwargs)
    pair = {"generator": fills, "discriminator": main}
    config = ElectraRTDConfig(
        generator_config=None if fills is None else fills.config,
        discriminator_config=main.config,
        **options,
    )
    if config.has_generator_network:
        sharing = get_sharing(config.sharing)
        _warn_where_tying_overwrites(pair, sharing.tied_weights(main.electra))
        sharing.join(fills, main)
    return config, pair


def _load(
    model_class: type[PreTrainedModel], tower: str | os.PathLike[str] | PreTrainedModel, kwargs: dict[str, Any]
) -> PreTrainedModel:
    if isinstance(tower, PreTrainedModel):
        if not isinstance(tower, model_class):
            raise ValueError(f"This tower must be an {model_class.__name__}, but is a {type(tower).__name__}.")
        return tower
    return load_tower(model_class, tower, **kwargs)


def load_tower(model_class: type[PreTrainedModel], source: str | os.PathLike[str], **kwargs: Any) -> Any:
    """Loads a native tower whole, in float32 unless told otherwise.

    Args:
        model_class: `ElectraForMaskedLM` or `ElectraForPreTraining`.
        source: a directory, or a Hub id.
        **kwargs: of `from_pretrained`.

    Raises:
        ValueError: as `load_whole` does.
    """
    # Training wants float32 parameters; `from_pretrained` would keep the precision of the file.
    options = {"dtype": torch.float32, **kwargs}
    model, _ = load_whole(model_class.from_pretrained, model_class, source, **options)
    return model


def load_whole(
    load: Callable[..., Any], model_class: type[PreTrainedModel], source: str | os.PathLike[str] | None, **kwargs: Any
) -> tuple[Any, dict[str, Any]]:
    """Loads a model, and refuses what `from_pretrained` lets pass: tensors that are missing, which it would draw at
    random, and tensors that it would leave aside.

    Args:
        load: the `from_pretrained` that does the work.
        model_class: what is loaded.
        source: a directory, or a Hub id.
        **kwargs: of `from_pretrained`; with `ignore_mismatched_sizes=True`, tensors of another shape are drawn anew.

    Returns:
        The model, and the report of what was loaded.

    Raises:
        ValueError: for a source that does not exist or cannot be reached, is of another type of model, holds a pickle
            in place of safetensors, is damaged, or has tensors missing, foreign, or of another shape.
    """
    if source is not None:
        _check_source(model_class, source, kwargs)
    mismatches_allowed = kwargs.pop("ignore_mismatched_sizes", False)
    options = {"use_safetensors": True, **kwargs, "ignore_mismatched_sizes": True, "output_loading_info": True}
    try:
        model, report = load(source, **options)
    except SafetensorError as error:
        raise ValueError(f"The weights of {source} are damaged, or are not safetensors: {error}.") from None
    except OSError as error:
        raise ValueError(_unreachable(source, error)) from None
    problems = [
        _problem("lacks tensors", report["missing_keys"]),
        _problem(f"holds tensors that are foreign to {model_class.__name__}", report["unexpected_keys"]),
    ]
    if not mismatches_allowed:
        shapes = [f"{key} {tuple(there)}, not {tuple(here)}" for key, there, here in report["mismatched_keys"]]
        problems.append(_problem("holds tensors of another shape than its configuration says", shapes))
    if any(problems):
        made_as = ", ".join(model.config.architectures or ()) or "something else"
        raise ValueError(
            f"{source} is not a whole {model_class.__name__} (it was saved as {made_as}): it "
            f"{'; it '.join(filter(None, problems))}."
        )
    return model, report


def read_config(source: str | os.PathLike[str], **kwargs: Any) -> dict[str, Any]:
    """The `config.json` of a directory or a Hub id; of `kwargs`, what says where it lies is used.

    Raises:
        ValueError: if there is none, or it cannot be read or reached.
    """
    name, subfolder = os.fspath(source), kwargs.get("subfolder", "")
    directory = Path(name, subfolder)
    if Path(name).is_file():
        raise ValueError(f"{name} is a file: name the directory that it lies in.")
    if not Path(name).is_dir():
        # A Hub id is `name` or `owner/name`; everything else can only be meant as a path.
        if name.startswith((".", "~")) or Path(name).is_absolute() or name.count("/") > 1 or name.endswith("/"):
            raise ValueError(f"There is no directory {name}.")
        from transformers import PreTrainedConfig

        try:
            hub_options = {key: kwargs[key] for key in _HUB_OPTIONS if key in kwargs}
            return dict(PreTrainedConfig.get_config_dict(name, **hub_options)[0])
        except (OSError, ValueError) as error:
            raise ValueError(_unreachable(name, error)) from None
    path = directory / CONFIG_FILE
    if not path.is_file():
        raise ValueError(f"{directory} holds no model: there is no {CONFIG_FILE} in it.")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}.") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path} is not a configuration.")
    return config


def _check_source(model_class: type[PreTrainedModel], source: str | os.PathLike[str], kwargs: dict[str, Any]) -> None:
    """What can be said before anything is loaded."""
    directory = Path(source, kwargs.get("subfolder", ""))
    if kwargs.get("config") is None:
        config = read_config(source, **kwargs)
        expected = model_class.config_class.model_type  # type: ignore[union-attr]
        found = config.get("model_type", expected)
        if found != expected:
            inside = [str(directory / name) for name in ("generator", "discriminator") if (directory / name).is_dir()]
            hint = f" Its towers lie in {' and '.join(inside)}." if inside else ""
            raise ValueError(f"{source} is a model of type {found!r}, not {expected!r}.{hint}")
    if directory.is_dir() and kwargs.get("state_dict") is None and not list(directory.glob("*.safetensors*")):
        if list(directory.glob("pytorch_model*.bin*")):
            raise ValueError(f"{directory} holds its weights as a pickle. {pickle_remedy(directory)}")
        raise ValueError(f"{directory} holds no weights: there is no model.safetensors in it.")


def pickle_remedy(directory: Path) -> str:
    """Why a pickle is not read, and a command that turns one of tensors, and of nothing else, into safetensors."""
    pickle, converted = repr(str(directory / PICKLE_FILE)), repr(str(directory / "model.safetensors"))
    return (
        "A pickle could run any code, and is not read. If you trust where it comes from, convert it:\n"
        'python -c "import torch, safetensors.torch as st; st.save_file({name: tensor.contiguous().clone() for name, '
        f"tensor in torch.load({pickle}, map_location='cpu', weights_only=True).items()}}, {converted}, "
        "{'format': 'pt'})\""
    )


def _unreachable(source: Any, error: Exception) -> str:
    reason = str(error).strip().partition("\n")[0].rstrip(".")
    return (
        f"{source} cannot be loaded: it is no directory here, and the Hub does not give it as safetensors. Check the "
        f"name, the network (HF_HUB_OFFLINE), and for a private model the login (hf auth login). ({reason}.)"
    )


def listed(names: Iterable[str]) -> str:
    """The first names of a list, and how many more there are."""
    names = sorted(names)
    return ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")


def _problem(what: str, names: Iterable[str]) -> str:
    names = list(names)
    return f"{what}: {listed(names)}" if names else ""


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


def save_towers(
    towers: dict[str, tuple[PreTrainedModel, dict[str, Any] | None]],
    directory: str | os.PathLike[str],
    tokenizer: Any = None,
) -> None:
    """Writes each tower as a native checkpoint into `directory/<name>`, with the tokenizer and its `vocab.txt`.

    Args:
        towers: by name; each with its tensors, where they are not those that it holds.
        directory: made where it does not exist.
        tokenizer: a tokenizer, or None.
    """
    for name, (tower, tensors) in towers.items():
        path = Path(directory) / name
        tower.save_pretrained(path, state_dict=tensors)
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
