"""Finds out what the name of a model stands for: a run, a saved pair, its networks, a network, or a fine-tuned model.

Every command asks [`identify`], so that all of them accept the same kinds of names. Only configurations are read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig

from hf_electra_rtd.base.files import load_pretrained, read_json, reading
from hf_electra_rtd.data.tokenization import TOKENIZER_FILES
from hf_electra_rtd.encoders.detectors import is_labelled
from hf_electra_rtd.pair.configuration_electra_rtd import OBJECTIVE_TRAITS, ElectraRTDConfig


CONFIG_FILE = "config.json"
ADAPTER_CONFIG = "adapter_config.json"
WEIGHTS = (
    "model.safetensors",
    "adapter_model.safetensors",
)
# The files that a directory of a network may hold.
NETWORK_FILES = (CONFIG_FILE, "generation_config.json", ADAPTER_CONFIG, *TOKENIZER_FILES, *WEIGHTS)
# For each name of `--runtime`, the file of the graph in an export. Files are named as by transformers.js.
GRAPHS = {"onnx": "onnx/model.onnx", "onnx-int8": "onnx/model_quantized.onnx"}
# The files that sentence-transformers writes beside these.
EMBEDDING_FILES = (
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
    "1_Pooling",
)
FINE_TUNED_FOR = "fine_tuned_for"  # the field of a configuration in which `finetune` keeps what `predict` needs

# The kinds of places, and how messages call them.
RUN = "run"
PAIR = "pair"
NETWORKS = "networks"
GENERATOR = "generator"
DETECTOR = "detector"
ENCODER = "encoder"
FINE_TUNED = "fine_tuned"
CONFIGURATION = "configuration"
_CALLED = {
    RUN: "a pre-training run",
    PAIR: "a pair of networks in one",
    NETWORKS: "a directory of networks",
    GENERATOR: "a masked language model",
    DETECTOR: "a network that tells replaced tokens",
    ENCODER: "a network that neither predicts nor judges tokens",
    FINE_TUNED: "a fine-tuned model",
    CONFIGURATION: "a configuration without weights",
}
_HUB_OPTIONS = (
    "cache_dir",
    "force_download",
    "local_files_only",
    "proxies",
    "revision",
    "subfolder",
    "token",
)


@dataclass(frozen=True)
class Place:
    """What a name stands for. Its networks are directories or Hub ids, None where there is no such network."""

    name: str  # as it was given
    kind: str
    config: Mapping[str, Any]  # its `config.json`; for networks side by side, that of `detector`
    pair: str | None = None  # both networks as one model
    generator: str | None = None
    discriminator: str | None = None  # as fine-tuning takes it: without its head in other families than ELECTRA
    detector: str | None = None  # the discriminator with its head (which predicts tokens with some objectives)
    model: str | None = None  # a single network, or a fine-tuned model

    @property
    def tokenizer(self) -> str:
        """The directory or Hub id of its tokenizer."""
        return self.pair or self.detector or self.generator or self.model or self.name

    @property
    def encoder(self) -> str:
        """What fine-tuning starts from: the discriminator or, where a pair has no directory for each network, the
        pair."""
        return self.discriminator or self.pair or self.model or self.name

    @property
    def family(self) -> str:
        """The `model_type` of its network, or of the pair."""
        return str(self.config.get("model_type", "electra"))

    @property
    def architecture(self) -> str | None:
        """The class that the network was saved as; None where it is not known."""
        return next(iter(self.config.get("architectures") or ()), None)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of a fine-tuned model in the order of its outputs."""
        names: Any = PreTrainedConfig.from_dict(dict(self.config)).id2label
        return tuple(str(names[index]) for index in sorted(names))

    @property
    def fine_tuned_for(self) -> Mapping[str, Any] | None:
        """What `finetune` recorded about the task of its model."""
        return self.config.get(FINE_TUNED_FOR)

    @property
    def task(self) -> str | None:
        """The kind of task of a fine-tuned model."""
        return None if self.fine_tuned_for is None else str(self.fine_tuned_for["task"]["kind"])

    @property
    def adapter_base(self) -> str | None:
        """The model that its adapters belong to; None without adapters."""
        path = Path(self.model or self.name, ADAPTER_CONFIG)
        return read_json(path)["base_model_name_or_path"] if path.is_file() else None

    @property
    def has_weights(self) -> bool:
        """Whether there are weights beside the configuration; always True for a Hub id, and False for a file."""
        path = Path(self.model or self.name)
        if not path.is_dir():
            return self.kind != CONFIGURATION
        return any(path.glob("*.safetensors")) or any(path.glob("pytorch_model*.bin"))

    @property
    def objective(self) -> str | None:
        """The objective that the discriminator was trained with, according to the pair or, for a single network, to
        the pair in whose directory it lies. None where it is not known."""
        if self.pair is not None:
            return str(self.config.get("objective", ElectraRTDConfig.objective))
        network = self.model or self.detector
        if network is None:
            return None
        parent = Path(network).parent
        is_fraction = parent.parent.name == "fractions"  # of a run: `fractions/50/discriminator`
        for directory in (parent, parent.parent.parent) if is_fraction else (parent,):
            if (directory / CONFIG_FILE).is_file():
                config = read_json(directory / CONFIG_FILE)
                if config.get("model_type") == ElectraRTDConfig.model_type:
                    return str(config.get("objective", ElectraRTDConfig.objective))
        return None

    def refuse_energies(self) -> None:
        """Raises ValueError for a discriminator whose outputs are energies, and not logits of being replaced."""
        traits = OBJECTIVE_TRAITS.get(self.objective or ElectraRTDConfig.objective)
        if traits is not None and traits.needs_noise:
            raise ValueError(
                f"{self.name} was trained with objective={self.objective!r}: its discriminator gives energies, not "
                "probabilities of being replaced. Use `hf-electra-rtd score` with its run."
            )

    def error(self, wanted: str) -> ValueError:
        """Returns the error to raise where something else is `wanted`."""
        saved_as = f", saved as {self.architecture}" if self.model is not None and self.architecture else ""
        return ValueError(f"{self.name} is {_CALLED[self.kind]}{saved_as}. Name {wanted}.")

    def load_config(self) -> Any:
        """Loads the configuration of a network of any family. Raises ValueError for a family that transformers does
        not know, and for anything but a single network."""
        if self.model is None or self.family == ElectraRTDConfig.model_type:
            raise self.error("one of its networks")
        if self.family not in CONFIG_MAPPING:
            raise ValueError(f"{self.name}: transformers has no encoder of model_type {self.family!r}.")
        with reading(self.name, "It must be the config.json of an encoder."):
            return CONFIG_MAPPING[self.family].from_dict(dict(self.config))


def identify(name: str | os.PathLike[str], **hub: Any) -> Place:
    """Identifies a directory, a Hub id or a configuration file. `hub` says where it lies on the Hub, as in
    `from_pretrained`. Raises ValueError if there is nothing, or it cannot be read or reached."""
    name = os.fspath(name)
    directory = Path(name)
    if directory.is_file():
        return Place(name, CONFIGURATION, read_json(directory), model=name)
    there = {tower: str(directory / tower) for tower in (GENERATOR, "discriminator", DETECTOR)}
    there = {tower: place for tower, place in there.items() if Path(place, CONFIG_FILE).is_file()}
    if directory.is_dir() and not Path(directory, hub.get("subfolder", ""), CONFIG_FILE).is_file():
        return _networks(name, there) if there else _fine_tuned_run(name)
    config = read_config(name, **hub)
    if config.get("model_type") != ElectraRTDConfig.model_type:
        return _network(name, name, config)
    if not there:
        return Place(name, PAIR, config, pair=name)
    return replace(_networks(name, there), kind=RUN, config=config, pair=name)


def _networks(name: str, there: Mapping[str, str]) -> Place:
    """Returns the place of networks side by side. The discriminator's head lies with it or, in other families than
    ELECTRA, in the directory of the detector."""
    discriminator = there.get("discriminator")
    detector = there.get(DETECTOR)
    if discriminator is not None:
        saved_as = read_config(discriminator).get("architectures") or ()
        if detector is None or "ElectraForPreTraining" in saved_as:
            detector = discriminator
    config = {} if detector is None else read_config(detector)
    return Place(
        name,
        NETWORKS,
        config,
        generator=there.get(GENERATOR),
        discriminator=discriminator,
        detector=detector,
    )


def _fine_tuned_run(name: str) -> Place:
    """Returns the place of the only model of a fine-tuning run. Raises ValueError for none or several."""
    models = sorted(str(path.parent) for path in Path(name).rglob(f"model/{CONFIG_FILE}"))
    if not models:
        raise ValueError(f"{name} holds no model: there is no {CONFIG_FILE}. Name a run, a checkpoint or a network.")
    if len(models) > 1:
        raise ValueError(f"{name} holds the models {', '.join(models)}: name one of them.")
    return _network(name, models[0], read_config(models[0]))


def _network(name: str, model: str, config: Mapping[str, Any]) -> Place:
    """Returns the place of a single network; its kind follows from the class that it was saved as."""
    architecture = next(iter(config.get("architectures") or ()), "")
    is_electra = config.get("model_type", "electra") == "electra"
    if FINE_TUNED_FOR in config:
        return Place(name, FINE_TUNED, config, model=model)
    if architecture.endswith("ForMaskedLM"):
        return Place(name, GENERATOR, config, generator=model, model=model)
    if is_electra and architecture in ("ElectraForPreTraining", ""):
        return Place(name, DETECTOR, config, discriminator=model, detector=model, model=model)
    if is_labelled(PreTrainedConfig.from_dict(dict(config))):
        return Place(name, DETECTOR, config, detector=model, model=model)
    return Place(name, ENCODER, config, model=model)


def read_config(source: str | os.PathLike[str], **hub: Any) -> dict[str, Any]:
    """Reads the `config.json` of a directory or a Hub id. Raises ValueError if there is none, or it cannot be read or
    reached."""
    name = os.fspath(source)
    if Path(name).is_dir():
        directory = Path(name, hub.get("subfolder", ""))
        if not (directory / CONFIG_FILE).is_file():
            raise ValueError(
                f"{directory} holds no model: there is no {CONFIG_FILE}. Name a run, a checkpoint or a network."
            )
        return read_json(directory / CONFIG_FILE)
    # A Hub id is `name` or `owner/name`; everything else can only be meant as a path.
    if name.startswith((".", "~")) or Path(name).is_absolute() or name.count("/") > 1 or name.endswith("/"):
        raise ValueError(f"There is no directory {name}.")
    try:
        options = {key: hub[key] for key in _HUB_OPTIONS if key in hub}
        return dict(PreTrainedConfig.get_config_dict(name, **options)[0])
    except (OSError, ValueError) as error:
        raise ValueError(unreachable(name, error)) from None


def read_stock_config(source: str) -> Any:
    """Reads the configuration of a stock model, with transformers' notes about where it came from."""
    with reading(f"The configuration of {source}"):
        return load_pretrained(AutoConfig, source)


def unreachable(source: Any, error: Exception) -> str:
    """Returns the message for a name from which nothing can be loaded."""
    reason = str(error).strip().partition("\n")[0].rstrip(".")
    return (
        f"{source} cannot be loaded: there is no such directory, and the Hub does not give it as safetensors. Check "
        f"the name, the network (HF_HUB_OFFLINE), and for a private model the login (hf auth login). ({reason}.)"
    )
