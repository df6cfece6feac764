"""Which pair a run trains: the flags, and the model that they ask for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import ElectraForMaskedLM, PreTrainedTokenizerBase

from hf_electra_rtd.configuration_electra_rtd import (
    GENERATOR_NAMES,
    OBJECTIVE_TRAITS,
    SHARED_SIZES,
    ElectraRTDConfig,
    derive_generator_config,
    needs_generator_network,
    refuse_unknown_names,
)
from hf_electra_rtd.data.tokenization import MAX_LENGTH
from hf_electra_rtd.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.objectives import get_objective
from hf_electra_rtd.sharing import get_sharing
from hf_electra_rtd.towers import load_tower, read_config


# Options of the pair's configuration that are flags too.
_PAIR_OPTIONS = (
    "objective",
    "sharing",
    "generator_weight",
    "discriminator_weight",
    "temperature",
    "disallow_correct",
    "sampling_dropout",
    "freeze_generator",
)
# Width and depth of a generator that is made for a discriminator, as fractions of it.
DEFAULT_FRACTIONS = {"generator_hidden_size": 0.25, "generator_layers": 1.0}
# What the second stage of two-stage training is, in options of the pair's configuration.
SECOND_STAGE = {"sharing": "none", "freeze_generator": True}


def _choices(known: Iterable[str], field_name: str) -> str:
    """The names for a flag's help; the default is said."""
    default = getattr(ElectraRTDConfig, field_name)
    return ", ".join(f"{name} (default)" if name == default else name for name in known)


@dataclass
class ModelArguments:
    """Which towers, and how they play together."""

    size: str = field(
        default="tiny", metadata={"help": "Architecture and recipe: tiny, small, small++, base or large."}
    )
    model_config: str | None = field(
        default=None,
        metadata={"help": "A config.json (or its directory) of the pair, instead of the size's architecture."},
    )
    generator: str | None = field(
        default=None, metadata={"help": "Directory or Hub id of a pre-trained generator to start from."}
    )
    discriminator: str | None = field(
        default=None, metadata={"help": "Directory or Hub id of a pre-trained discriminator to start from."}
    )
    two_stage_from: str | None = field(
        default=None,
        metadata={
            "help": "The run of a first stage (--objective mlm): its main tower becomes the generator, frozen, and "
            "what the discriminator's encoder starts from."
        },
    )
    # None: as the configuration has it (its defaults are the paper's). What is given here wins over a file.
    objective: str | None = field(
        default=None, metadata={"help": f"What the main tower learns: {_choices(OBJECTIVE_TRAITS, 'objective')}."}
    )
    sharing: str | None = field(
        default=None, metadata={"help": f"What the towers share: {_choices(SHARED_SIZES, 'sharing')}."}
    )
    generator_type: str | None = field(
        default=None, metadata={"help": f"What fills masked tokens: {_choices(GENERATOR_NAMES, 'generator')}."}
    )
    generator_hidden_size: float | None = field(
        default=None,
        metadata={"help": "Generator's width as a fraction of the discriminator's; by default the size's."},
    )
    generator_layers: float | None = field(
        default=None, metadata={"help": "Generator's depth as a fraction of the discriminator's (1)."}
    )
    generator_weight: float | None = field(default=None, metadata={"help": "Weight of the generator's loss (1)."})
    discriminator_weight: float | None = field(
        default=None,
        metadata={"help": "Weight of the main tower's loss (50 for discriminators, 1 where it predicts tokens)."},
    )
    temperature: float | None = field(
        default=None, metadata={"help": "Of the generator when sampling (1); 0 is greedy."}
    )
    disallow_correct: bool | None = field(default=None, metadata={"help": "Never sample the original token."})
    sampling_dropout: bool | None = field(
        default=None, metadata={"help": "Sample from the generator with its dropout, as it trains (true)."}
    )
    freeze_generator: bool | None = field(
        default=None, metadata={"help": "Train the main tower alone (false; true with --two_stage_from)."}
    )
    attn_implementation: str | None = field(
        default=None,
        metadata={
            "help": "Attention of both towers, by its name in `transformers`: sdpa, eager, flash_attention_2, "
            "flex_attention ... By default torch's sdpa, and on a CPU with dropout our own."
        },
    )

    def __post_init__(self) -> None:
        refuse_unknown_names(self.options)
        towers = [name for name in ("generator", "discriminator") if getattr(self, name) is not None]
        if self.model_config is not None and towers:
            raise ValueError(f"--model_config describes new towers: it cannot be joined with --{towers[0]}.")
        if self.generator is not None and self.fractions:
            raise ValueError(
                f"--{next(iter(self.fractions))} is for a generator made anew, but --generator names one."
            )
        if self.two_stage_from is not None:
            self._check_second_stage()
        elif self.model_config is None and not towers:
            ElectraRTDConfig.from_size(self.size, **self.fractions, **self.options)  # refuses before any work is lost

    def _check_second_stage(self) -> None:
        """A second stage leaves little to choose."""
        taken = {"model_config", "generator", "discriminator", "generator_type", *self.fractions}
        for name in sorted(taken):
            if getattr(self, name) is not None:
                raise ValueError(f"--two_stage_from says which towers there are: leave --{name} out.")
        if self.objective is not None and not OBJECTIVE_TRAITS[self.objective].has_generator:
            raise ValueError(
                f"--two_stage_from is for a generator's use, but objective={self.objective!r} has no generator."
            )
        for name, value in SECOND_STAGE.items():
            if getattr(self, name) not in (None, value):
                raise ValueError(f"--two_stage_from means {name}={value!r}, not {getattr(self, name)!r}.")

    @property
    def fractions(self) -> dict[str, float]:
        """What was asked for, of a generator's size."""
        given = {name: getattr(self, name) for name in ("generator_hidden_size", "generator_layers")}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def tokenizer_source(self) -> str | None:
        """The tower whose tokenizer is taken where none is named."""
        if self.two_stage_from is not None:
            return str(Path(self.two_stage_from) / "discriminator")
        return self.discriminator or self.generator

    @property
    def options(self) -> dict[str, Any]:
        """What was asked for, of the pair's configuration."""
        given = {name: getattr(self, name) for name in _PAIR_OPTIONS} | {"generator": self.generator_type}
        return {name: value for name, value in given.items() if value is not None}


def build_model(
    model: ModelArguments, tokenizer: PreTrainedTokenizerBase, row_length: int
) -> ElectraForRTDPretraining:
    """The pair: new from a size or a configuration, from pre-trained towers, one or both, or from a first stage.

    Raises:
        ValueError: for towers that do not fit the tokenizer, the rows or each other, or an attention that is not known
            or not installed.
    """
    if model.two_stage_from is not None:
        pair = _second_stage(model)
    elif model.generator is None and model.discriminator is None:
        pair = ElectraForRTDPretraining(_new_config(model, tokenizer, row_length))
    else:
        pair = _from_towers(model, tokenizer, row_length)
    if pair.config.freeze_generator and model.two_stage_from is None and model.generator is None:
        raise ValueError("--freeze_generator would freeze a generator that never learnt: name one (--generator).")
    for name, config in pair.config.towers.items():
        if config.vocab_size != len(tokenizer):
            raise ValueError(
                f"The {name} has {config.vocab_size} tokens, the tokenizer {len(tokenizer)}: they do not belong "
                "together. Name the tokenizer of the towers (--tokenizer), or set vocab_size in the configuration."
            )
        if config.max_position_embeddings < row_length:
            raise ValueError(
                f"The {name} has {config.max_position_embeddings} positions, too few for rows of {row_length} tokens "
                "(--row_length)."
            )
    if model.attn_implementation is not None:
        try:
            pair.set_attn_implementation(model.attn_implementation)
        except ImportError as error:
            raise ValueError(f"--attn_implementation {model.attn_implementation}: {error}") from error
    return pair


def _new_config(model: ModelArguments, tokenizer: PreTrainedTokenizerBase, row_length: int) -> ElectraRTDConfig:
    if model.model_config is not None:
        described = ElectraRTDConfig.from_pretrained(model.model_config)
        options = dict(model.options)
        if model.fractions:
            options["generator_config"] = derive_generator_config(
                described.discriminator_config, *(DEFAULT_FRACTIONS | model.fractions).values()
            )
        return described.changed(**options)
    return ElectraRTDConfig.from_size(
        model.size,
        vocab_size=len(tokenizer),
        max_position_embeddings=max(MAX_LENGTH, row_length),
        pad_token_id=tokenizer.pad_token_id,
        **model.fractions,
        **model.options,
    )


def _second_stage(model: ModelArguments) -> ElectraForRTDPretraining:
    """The second stage of two-stage training (paper, section 3.2): the generator as the first stage left it, frozen,
    and a main tower whose encoder begins as the generator's."""
    run = Path(str(model.two_stage_from))
    tower = run / "discriminator"
    ended = (run / "config.json").is_file() and tower.is_dir()
    objective = read_config(run).get("objective") if ended else None
    if objective != "mlm":
        found = f"was made with objective={objective!r}" if ended else "has not ended"
        raise ValueError(
            f"--two_stage_from needs the run of a first stage (--objective mlm), at its end: {run} {found}."
        )
    generator = load_tower(ElectraForMaskedLM, tower)
    options = {**SECOND_STAGE, **model.options}
    config = ElectraRTDConfig(generator_config=generator.config, discriminator_config=generator.config, **options)
    pair = ElectraForRTDPretraining(config, generator=generator)
    pair.discriminator.electra.load_state_dict(generator.electra.state_dict())
    return pair


def _from_towers(
    model: ModelArguments, tokenizer: PreTrainedTokenizerBase, row_length: int
) -> ElectraForRTDPretraining:
    generator: Any = model.generator
    discriminator: Any = model.discriminator
    main_tower_class: Any = get_objective(model.objective or ElectraRTDConfig.objective).main_tower_class
    if discriminator is None:
        generator = load_tower(ElectraForMaskedLM, generator)
        config = _new_config(model, tokenizer, row_length).discriminator_config
        for size in SHARED_SIZES[model.sharing or ElectraRTDConfig.sharing]:
            setattr(config, size, getattr(generator.config, size))
        discriminator = main_tower_class(config)
        _start_from(generator, discriminator, model.sharing)
    elif generator is None and needs_generator_network(**model.options):
        discriminator = load_tower(main_tower_class, discriminator)
        fractions = DEFAULT_FRACTIONS | model.fractions
        if model.sharing == "all" and not model.fractions:
            generator = ElectraForMaskedLM(discriminator.config)
        else:
            generator = ElectraForMaskedLM(derive_generator_config(discriminator.config, *fractions.values()))
        _start_from(discriminator, generator, model.sharing)
    options = {{"generator": "generator_type"}.get(name, name): value for name, value in model.options.items()}
    return ElectraForRTDPretraining.from_generator_discriminator_pretrained(generator, discriminator, **options)


@torch.no_grad()
def _start_from(trained: Any, new: Any, sharing: str | None) -> None:
    """Lets what is shared begin with what the trained tower has learnt, whichever tower it is."""
    mode = get_sharing(sharing or ElectraRTDConfig.sharing)
    for name in mode.starting_parameters(new.electra):
        new.electra.get_parameter(name).copy_(trained.electra.get_parameter(name))
