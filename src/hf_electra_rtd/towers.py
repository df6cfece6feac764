"""Native towers: loaded whole or not at all, joined, and written."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import (
    CONFIG_MAPPING,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    PreTrainedConfig,
    PreTrainedModel,
)

from hf_electra_rtd.configuration_electra_rtd import (
    OBJECTIVE_TRAITS,
    ElectraRTDConfig,
    exports_generator,
    refuse_unknown_names,
)
from hf_electra_rtd.data.tokenization import fit_tokenizer, save_tokenizer
from hf_electra_rtd.detectors import is_labelled
from hf_electra_rtd.families import masked_lm_class, token_classifier_class
from hf_electra_rtd.files import read_json, reading
from hf_electra_rtd.objectives import OBJECTIVES
from hf_electra_rtd.sharing import SHARING


logger = logging.getLogger(__name__)

CONFIG_FILE = "config.json"
_HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")
_SHOWN = 10  # tensors named in an error


def load_towers(
    generator: str | os.PathLike[str] | PreTrainedModel | None,
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
    main = load_main_tower(options["objective"], discriminator, **kwargs)
    fills = None if generator is None else load_masked_lm(generator, **kwargs)
    fills_config = options.pop("generator_config", None) if fills is None else fills.config
    config = ElectraRTDConfig(generator_config=fills_config, discriminator_config=main.config, **options)
    if fills is not None:
        share(config.sharing, fills, main)
    return config, fills, main


def share(name: str, generator: Any, discriminator: Any) -> None:
    """Prepares towers that were trained on their own for a mode of sharing; warns of tensors that will be lost."""
    sharing, mine, other = SHARING[name](), discriminator.base_model, generator.base_model
    pairs = sharing.shared_pairs(other, mine)
    differing = [name for its, name in pairs if not torch.equal(mine.get_parameter(name), other.get_parameter(its))]
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
            raise ValueError(f"The tower must be {model_class.__name__}, but is {type(source).__name__}.")
        return source
    # Training needs float32 parameters; `from_pretrained` keeps the precision of the file.
    return load_whole(model_class.from_pretrained, model_class, source, **{"dtype": torch.float32, **kwargs})[0]


def load_masked_lm(source: str | os.PathLike[str] | PreTrainedModel, **kwargs: Any) -> Any:
    """Loads a masked language model of any family, as `load_tower` does."""
    # Poolers and heads for pairs of sentences, which BERT was trained with; and buffers of old versions.
    options = {"unused": r"(^|\.)(pooler|seq_relationship)\.|\.position_ids$", **kwargs}
    return load_tower(masked_lm_class(_family(source, kwargs)) or ElectraForMaskedLM, source, **options)


def load_main_tower(objective: str, source: str | os.PathLike[str] | PreTrainedModel, **kwargs: Any) -> Any:
    """Loads a discriminator of any family with its head, for an objective, as `load_tower` does."""
    find: Any = OBJECTIVES[objective].tower_class
    wanted = find(_family(source, kwargs)) or find("electra")
    if wanted is token_classifier_class(_family(source, kwargs)):
        _refuse_other_labels(source, kwargs)
    return load_tower(wanted, source, **kwargs)


def load_encoder(source: str | os.PathLike[str], config: Any, **kwargs: Any) -> Any:
    """The masked language model of an encoder's family with the weights of a directory or a Hub id. Its head is new
    where there is none; layers beyond those of `config` are left out."""
    model_class: Any = masked_lm_class(config.model_type)
    new = rf"^(?!{re.escape(model_class.base_model_prefix)}\.)"
    return load_tower(model_class, source, **{"config": config, "unused": "", "new": new, **kwargs})


def load_detector(source: str | os.PathLike[str], **kwargs: Any) -> Any:
    """Loads a model whose `detectors.detection_logits` tell replaced tokens: ELECTRA's discriminator, or any family's
    detector, from its directory or Hub id. Raises ValueError as `load_whole`, and for other labels."""
    family, own = _family(source, kwargs), ElectraForPreTraining.__name__
    if family == "electra" and own in (read_config(source, **kwargs).get("architectures") or [own]):
        return load_tower(ElectraForPreTraining, source, **kwargs)
    _refuse_other_labels(source, kwargs)
    return load_tower(token_classifier_class(family) or ElectraForPreTraining, source, **kwargs)


def _refuse_other_labels(source: str | os.PathLike[str] | PreTrainedModel, hub: dict[str, Any]) -> None:
    """Raises ValueError for what was not trained to tell replaced tokens."""
    if isinstance(source, PreTrainedModel):
        name, config = type(source).__name__, source.config
    else:
        name, config = str(source), PreTrainedConfig.from_dict(read_config(source, **hub))
    if not is_labelled(config):
        what = "it is no model for token classification with the labels original and replaced"
        raise ValueError(f"{name} is no detector: {what}. Name a run's detector/, or an encoder with --backbone.")


def _family(source: str | os.PathLike[str] | PreTrainedModel, hub: dict[str, Any]) -> str:
    if isinstance(source, PreTrainedModel):
        return str(source.config.model_type)
    return str(read_config(source, **hub).get("model_type", "electra"))


def load_whole(
    load: Callable[..., Any], model_class: type[PreTrainedModel], source: str | os.PathLike[str] | None, **kwargs: Any
) -> tuple[Any, dict[str, Any]]:
    """Loads a model by `load`, a `from_pretrained` that gets `kwargs`. Returns it and the loading info. `unused` is a
    regular expression for names of tensors that may be there, and are not read; `new` one for tensors that may be
    missing, and are drawn. Raises ValueError for a source that cannot be reached, holds another type of model or a
    pickle, is damaged, or has missing, unknown or (without `ignore_mismatched_sizes=True`) wrongly shaped tensors."""
    if source is not None:
        _check_source(model_class, source, kwargs)
    mismatches_allowed, unused = kwargs.pop("ignore_mismatched_sizes", False), kwargs.pop("unused", "$^")
    new = kwargs.pop("new", "$^")
    options = {"use_safetensors": True, **kwargs, "ignore_mismatched_sizes": True, "output_loading_info": True}
    with reading(source, "Its config.json or its weights are damaged."):
        try:
            model, report = load(source, **options)
        except OSError as error:
            raise ValueError(_unreachable(source, error)) from None
    mismatched = [f"{key} {tuple(there)}, not {tuple(here)}" for key, there, here in report["mismatched_keys"]]
    parameters = [(name, each) for name, each in model.named_parameters() if not each.is_meta]
    found = {
        "lacks tensors": {name for name in report["missing_keys"] if not re.search(new, name)},
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
    if Path(name).is_file():
        raise ValueError(f"{name} is a file. Name its directory.")
    if Path(name).is_dir():
        directory = Path(name, kwargs.get("subfolder", ""))
        if not (directory / CONFIG_FILE).is_file():
            remedy = "Name a run, a checkpoint or a tower."
            raise ValueError(f"{directory} holds no model: there is no {CONFIG_FILE}. {remedy}")
        return read_json(directory / CONFIG_FILE)
    # A Hub id is `name` or `owner/name`; everything else can only be meant as a path.
    if name.startswith((".", "~")) or Path(name).is_absolute() or name.count("/") > 1 or name.endswith("/"):
        raise ValueError(f"There is no directory {name}.")
    try:
        on_hub = {key: kwargs[key] for key in _HUB_OPTIONS if key in kwargs}
        return dict(PreTrainedConfig.get_config_dict(name, **on_hub)[0])
    except (OSError, ValueError) as error:
        raise ValueError(_unreachable(name, error)) from None


def refuse_energies(source: str) -> None:
    """Raises ValueError for a pair, or a discriminator in the directory of a run, whose outputs are energies and not
    logits of being replaced."""
    parent = Path(source).parent
    for home in (source, *([str(parent)] if (parent / CONFIG_FILE).is_file() else [])):
        objective = read_config(home).get("objective")
        if objective in OBJECTIVE_TRAITS and OBJECTIVE_TRAITS[objective].needs_noise:
            what = f"--objective {objective}: its discriminator gives energies, not probabilities of being replaced"
            raise ValueError(f"{home} was trained with {what}. Use `hf-electra-rtd score --model {home}`.")


def load_config(source: str, flag: str) -> Any:
    """The configuration of an encoder of any family: a file, a directory or a Hub id. Raises ValueError, with the
    flag, if there is none, or transformers does not know its family."""
    values = read_json(source) if Path(source).is_file() else read_config(source)
    family: Any = values.get("model_type")
    if family not in CONFIG_MAPPING or family == ElectraRTDConfig.model_type:
        raise ValueError(f"{flag} {source}: transformers has no encoder of model_type {family!r}.")
    with reading(source, "It must be the config.json of an encoder."):
        config = CONFIG_MAPPING[family].from_dict(values)
    if family == "electra" and is_labelled(config):
        remedy = "Name the discriminator/ beside it."
        raise ValueError(f"{flag} {source}: the last layer of ELECTRA's detector is the head of detection. {remedy}")
    return config


def has_weights(source: str) -> bool:
    """Whether there are weights beside a configuration: always under a Hub id, never for a file."""
    path = Path(source)
    return not path.is_file() and (
        not path.is_dir() or any(path.glob("*.safetensors")) or any(path.glob("pytorch_model*.bin"))
    )


def fit_vocabulary(config: Any, tokenizer: Any) -> None:
    """Sets the size of the vocabulary and the ids of special tokens, of a configuration for a new network."""
    config.vocab_size = len(tokenizer)
    for name in ("pad", "cls", "sep", "bos", "eos"):
        if name == "pad" or getattr(config, f"{name}_token_id", None) is not None:
            setattr(config, f"{name}_token_id", getattr(tokenizer, f"{name}_token_id"))


def _check_source(model_class: type[PreTrainedModel], source: str | os.PathLike[str], kwargs: dict[str, Any]) -> None:
    directory = Path(source, kwargs.get("subfolder", ""))
    if kwargs.get("config") is None:
        expected = model_class.config_class.model_type  # type: ignore[union-attr]
        found = read_config(source, **kwargs).get("model_type", expected)
        if found != expected:
            hints = {found: " Name one of its towers.", expected: " Name the run or the saved pair."}
            hint = hints.get(ElectraRTDConfig.model_type, "")
            raise ValueError(f"{source} is a model of type {found!r}, not {expected!r}.{hint}")
    if directory.is_dir() and kwargs.get("state_dict") is None and not list(directory.glob("*.safetensors*")):
        remedy = "A pickle, which could run any code, is not read: convert it (save_pretrained of transformers)."
        raise ValueError(f"{directory} holds no weights: it has no model.safetensors. {remedy}")
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


def hash_weights(model: Any) -> str:
    """SHA-256 of the names and numbers of a model's tensors; of a graph, that of its file."""
    if (of_graph := getattr(model, "sha256", None)) is not None:
        return str(of_graph)
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def save_towers(towers: dict[str, PreTrainedModel], directory: str | os.PathLike[str], tokenizer: Any = None) -> None:
    """Writes each tower as a native checkpoint into `directory/<name>`, with the tokenizer as it reads it."""
    for name, tower in towers.items():
        path = Path(directory) / name
        tower.save_pretrained(path)
        if tokenizer is not None:
            own = copy.deepcopy(tokenizer)
            fit_tokenizer(own, tower.config)
            save_tokenizer(own, path)
