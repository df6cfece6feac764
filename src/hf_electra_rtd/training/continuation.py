"""What a run goes on from: both towers of a pair that was saved, found by the name of one place."""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hf_electra_rtd.configuration_electra_rtd import ElectraRTDConfig, exports_generator
from hf_electra_rtd.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.objectives import OBJECTIVES
from hf_electra_rtd.recipes import closest_size
from hf_electra_rtd.towers import CONFIG_FILE, read_config, share


logger = logging.getLogger(__name__)

_KINDS = (
    "a finished run, a checkpoint, a saved pair, a directory with generator/ and discriminator/, or a discriminator"
)


@dataclass(frozen=True)
class SavedPair:
    """Where a pair lies."""

    name: str  # as it was given
    config: ElectraRTDConfig  # of the pair that is made of it
    towers: dict[str, str]  # the place of each; none for a joint model, which holds both

    @property
    def tokenizer(self) -> str:
        """The place of its tokenizer."""
        return self.towers.get("discriminator", self.name)

    @property
    def size(self) -> str:
        """The named size that it is, or is closest to."""
        discriminator, generator = self.config.discriminator_config, self.config.generator_config
        share = generator.hidden_size / discriminator.hidden_size if generator else 0.0
        return closest_size(discriminator.hidden_size, discriminator.num_hidden_layers, share)

    def load(self) -> ElectraForRTDPretraining:
        """The joint model, as `config` changes it."""
        saved, config = self._load(), self.config
        generator, discriminator = saved.generator, saved.discriminator
        if saved.config.sharing != config.sharing:  # what was one tensor in both need not be one any more
            generator, discriminator = copy.deepcopy(generator), copy.deepcopy(saved.native_discriminator())
            if config.generator_config is not None:
                share(config.sharing, generator, discriminator)
        if config.generator_config is None:
            generator = None
        pair = ElectraForRTDPretraining(config, generator, discriminator)
        _copy_head(pair.main_head, saved.main_head)
        _copy_head(pair.generator_head, saved.generator_head)
        return pair

    def keep_head(self, pair: ElectraForRTDPretraining) -> None:
        """Gives a pair with a new generator the head that was saved beside the discriminator. Only a joint model has
        one."""
        if not self.towers and pair.main_head is not None:
            _copy_head(pair.main_head, self._load().main_head)

    def discriminator(self) -> Any:
        """The discriminator, to make a new generator for it: a place or a model."""
        return self.towers.get("discriminator") or copy.deepcopy(self._load().native_discriminator())

    def _load(self) -> Any:
        return ElectraForRTDPretraining.from_pretrained(self.name, dtype=torch.float32)

    def describe(self) -> None:
        """Logs both networks, and warns of a generator that is too strong."""
        config = self.config
        towers = config.towers.items()
        shapes = ", ".join(f"{name}: {each.num_hidden_layers} layers of {each.hidden_size}" for name, each in towers)
        logger.info(f"Going on from {self.name}. {shapes}; sharing: {config.sharing}; recipe of {self.size}.")
        generator, width = config.generator_config, config.discriminator_config.hidden_size
        is_electra = config.discriminator_config.model_type == "electra"  # others share embeddings of one width
        if is_electra and generator is not None and generator.hidden_size >= width and config.sharing != "all":
            logger.warning(
                f"The generator is as wide as the discriminator ({width}). So is that of the released small pair, and "
                "its card warns of pre-training with it. --new_generator makes one of a quarter of the width."
            )


def find_pair(name: str, options: dict[str, Any], new_generator: bool) -> SavedPair:
    """The pair that `--continue_from` names, as the options of `ElectraRTDConfig` change it, from configurations
    alone. With `new_generator`, no other is looked for. Raises ValueError for a place without towers, and for towers
    that do not fit each other or the options."""
    directory, wanted = Path(name), exports_generator(**options) and not new_generator
    if directory.is_dir() and not (directory / CONFIG_FILE).is_file():
        towers = {each: str(directory / each) for each in ("generator", "discriminator")[not wanted :]}
        has_detector = (directory / "detector" / CONFIG_FILE).is_file()
        if has_detector and read_config(directory / "detector").get("model_type") != "electra":
            towers["discriminator"] = str(directory / "detector")  # the other is the encoder without its head
        if not (Path(towers["discriminator"]) / CONFIG_FILE).is_file():
            raise ValueError(f"--continue_from {name}: there are no towers. Name {_KINDS}.")
        if wanted and not (Path(towers["generator"]) / CONFIG_FILE).is_file():
            raise ValueError(f"--continue_from {name} has no generator. Add --new_generator.")
    elif (found := read_config(name)).get("model_type") == ElectraRTDConfig.model_type:
        saved = ElectraRTDConfig.from_dict(found)
        config = saved.changed(**options)
        trained: Any = OBJECTIVES[saved.objective].tower_class(saved.discriminator_config.model_type)
        _check_objective(name, saved.discriminator_config.model_type, trained.__name__, config.objective)
        is_there = saved.generator_config is not None and saved.generator == config.generator
        if config.generator_config is not None and not (is_there or new_generator):
            raise ValueError(f"--continue_from {name} has no {config.generator} generator. Add --new_generator.")
        return SavedPair(name, config, {})
    else:
        towers = {"discriminator": name}
    main, objective = read_config(towers["discriminator"]), options.get("objective", ElectraRTDConfig.objective)
    for architecture in main.get("architectures") or ():
        _check_objective(name, main.get("model_type", "electra"), architecture, objective)
    if wanted and "generator" not in towers:
        towers["generator"] = _beside(name)
    configs: dict[str, Any] = {f"{each}_config": read_config(place) for each, place in towers.items()}
    return SavedPair(name, ElectraRTDConfig(**configs, **options), towers)


def _beside(name: str) -> str:
    """The generator that belongs to a discriminator, by its name."""
    place, slash, last = name.rstrip("/").rpartition("/")
    generator = place + slash + last.replace("discriminator", "generator").replace("detector", "generator")
    if generator == name.rstrip("/") or (Path(name).is_dir() and not Path(generator).is_dir()):
        what = f"--continue_from {name} is one network, and there is no generator beside it"
        raise ValueError(f"{what}. Name {_KINDS} with one; or add --new_generator.")
    return generator


def _check_objective(name: str, family: str, architecture: str, objective: str) -> None:
    wanted: Any = OBJECTIVES[objective].tower_class(family)
    if wanted is not None and architecture != (needed := wanted.__name__):
        what = f"in the discriminator's place is {architecture}, and the objective {objective!r} goes on with {needed}"
        raise ValueError(f"--continue_from {name}: {what}. Name the run, or the directory of such a tower.")


def _copy_head(mine: Any, other: Any) -> None:
    if mine is not None and type(mine) is type(other):
        mine.load_state_dict(other.state_dict())
