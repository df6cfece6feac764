"""From flags to the pair of networks that a run trains."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from hf_electra_rtd.cli import check_ranges, flag
from hf_electra_rtd.configuration_electra_rtd import (
    GENERATOR_NAMES,
    GENERATOR_OBJECTIVES,
    OBJECTIVE_TRAITS,
    SHARED_SIZES,
    ElectraRTDConfig,
    derive_generator_config,
    exports_generator,
    needs_generator_network,
    refuse_unknown_names,
)
from hf_electra_rtd.data.prepare import TOKENIZER_DIRECTORY
from hf_electra_rtd.data.tokenization import MAX_LENGTH, refuse_other_tokens
from hf_electra_rtd.families import FAMILIES, family_of, max_length
from hf_electra_rtd.files import known_names
from hf_electra_rtd.initialization import INITIALIZATIONS
from hf_electra_rtd.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.objectives import OBJECTIVES
from hf_electra_rtd.ops.sampling import TEMPERATURES
from hf_electra_rtd.recipes import continued_recipe, get_size
from hf_electra_rtd.sharing import SHARING
from hf_electra_rtd.towers import load_masked_lm, load_tower, read_config
from hf_electra_rtd.training.continuation import SavedPair, find_pair


# Width and depth of a new generator for a given discriminator.
DEFAULT_FRACTIONS = {"generator_hidden_size": 0.25, "generator_layers": 1.0}
_OPTIONS = (
    *("objective", "sharing", "generator_type", "generator_weight", "discriminator_weight", "temperature"),
    "generator_objective",
    *("temperature_schedule", "temperature_start", "temperature_decay"),
    *("disallow_correct", "sampling_dropout", "freeze_generator"),
)
SOURCES = ("two_stage_from", "continue_from", "model_config", "generator", "discriminator")  # that name what is there
# A flag that decides what others would decide.
_EXCLUDED = {
    "continue_from": ("two_stage_from", "model_config", "generator", "discriminator"),
    "two_stage_from": ("model_config", "generator", "discriminator", "generator_type", *DEFAULT_FRACTIONS),
    "model_config": ("generator", "discriminator"),
    "generator": tuple(DEFAULT_FRACTIONS),
    "corrupted": ("two_stage_from", "continue_from", "generator", "generator_type", "generator_weight"),
}


@dataclass
class ModelArguments:
    """The networks and how they work together."""

    size: str = flag("tiny", "Architecture and recipe: tiny, small, small++, base or large.")
    model_config: str | None = flag(None, "A config.json of the pair, or its directory: an architecture of your own.")
    generator: str | None = flag(
        None, "Directory or Hub id of a pre-trained generator to start from; a frozen one may be any masked LM."
    )
    corrupted: str | None = flag(
        None, "Directory that `hf-electra-rtd corrupt` wrote: samples of a frozen generator, which need no network."
    )
    discriminator: str | None = flag(None, "Directory or Hub id of a pre-trained discriminator to start from.")
    two_stage_from: str | None = flag(
        None, "output_dir of a first stage (--objective mlm): the frozen generator, and the discriminator's start."
    )
    continue_from: str | None = flag(
        None,
        "A finished run or a saved pair, or a discriminator beside its generator (directory or Hub id): goes on with "
        "both on other text, with a recipe for it.",
    )
    new_generator: bool | None = flag(None, "With --continue_from: a new generator, of a quarter of the width.")
    extend_vocabulary: int | None = flag(None, "With --continue_from: so many new words of the training text.")
    # Options of `ElectraRTDConfig`. None: its default, or the value in --model_config or --continue_from.
    objective: str | None = flag(None, f"What the discriminator learns: {', '.join(OBJECTIVE_TRAITS)}. Default: rtd.")
    sharing: str | None = flag(None, f"What the networks share: {', '.join(SHARED_SIZES)}. Default: embeddings.")
    generator_type: str | None = flag(None, f"Fills masked tokens: {', '.join(GENERATOR_NAMES)}. Default: masked_lm.")
    generator_objective: str | None = flag(
        None, f"What the generator learns: {', '.join(GENERATOR_OBJECTIVES)}. Default: mle."
    )
    generator_weight: float | None = flag(None, "Weight of the generator's loss. Default: 1.")
    discriminator_weight: float | None = flag(
        None, "Weight of the discriminator's loss. Default: 50 for replaced-token detection, 1 for predicting tokens."
    )
    temperature: float | None = flag(None, "Temperature of sampling from the generator. Default: 1; 0 is greedy.")
    temperature_schedule: str | None = flag(
        None, f"How the temperature falls to --temperature in the run: {', '.join(TEMPERATURES)}. Default: constant."
    )
    temperature_start: float | None = flag(None, "Temperature where a schedule begins. Default: 2.")
    temperature_decay: float | None = flag(
        None, "Share of the run in which an exponential schedule falls to 1/e of the way. Default: 0.1."
    )
    disallow_correct: bool | None = flag(None, "Never sample the original token. Default: false.")
    sampling_dropout: bool | None = flag(None, "Sample from the generator with dropout, as it trains. Default: true.")
    freeze_generator: bool | None = flag(None, "Train only the discriminator. Default: only with --two_stage_from.")
    # Sizes of a new generator.
    generator_hidden_size: float | None = flag(None, "Generator's width as a fraction of the discriminator's.")
    generator_layers: float | None = flag(None, "Generator's depth as a fraction of the discriminator's. Default: 1.")
    initialization: str | None = flag(
        None,
        "How new networks begin: stock or neighbours (docs/training.md). Default: neighbours for tiny.",
    )
    attn_implementation: str | None = flag(
        None, "Attention of both networks, as in transformers. Default: sdpa, and our own on a CPU with dropout."
    )

    def __post_init__(self) -> None:
        check_ranges(self)
        refuse_unknown_names(self.options)
        for name in self.given(_EXCLUDED):
            for other in self.given(_EXCLUDED[name]):
                raise ValueError(f"--{name} decides which networks there are. Leave --{other} out.")
        if self.generator_type == "offline" and self.corrupted is None:
            raise ValueError("--generator_type offline needs samples. Name their directory (--corrupted).")
        for name in self.given(("new_generator", "extend_vocabulary")) if self.continue_from is None else ():
            raise ValueError(f"--{name} is for --continue_from, which is not given.")
        if self.continue_from is not None and not self.new_generator:
            for name in self.given(DEFAULT_FRACTIONS):
                raise ValueError(f"--{name} is for new networks. Leave it out, or add --new_generator.")
        # Refuses options that contradict each other before any work is lost.
        if self.two_stage_from is not None:
            ElectraRTDConfig(**self.options)
        elif self.continue_from is not None:
            _ = self.continued
        elif self.given(("generator", "discriminator")):
            ElectraRTDConfig(**self.options)
        elif self.model_config is None:
            ElectraRTDConfig.from_size(self.size, **self.given(DEFAULT_FRACTIONS), **self.options)
        if self.freeze_generator:
            self.refuse_untrained()
        self._settle_initialization()

    def refuse_untrained(self) -> None:
        """Raises ValueError where a generator would be frozen that is new."""
        if self.new_generator or not self.given(("two_stage_from", "generator", "continue_from")):
            remedy = "Name a trained one (--generator)."
            raise ValueError(f"--freeze_generator would freeze an untrained generator. {remedy}")

    def _settle_initialization(self) -> None:
        loaded = list(self.given(("two_stage_from", "continue_from", "corrupted", "generator", "discriminator")))
        if self.initialization is None:
            detects = OBJECTIVE_TRAITS[self.objective or ElectraRTDConfig.objective].predicts == "replaced"
            is_named = detects and self.model_config is None
            start = get_size(self.size).initialization if is_named else "stock"
            self.initialization = None if loaded else start
        elif self.initialization not in INITIALIZATIONS:
            remedy = known_names(self.initialization, INITIALIZATIONS, "ones")
            raise ValueError(f"--initialization: there is no {self.initialization!r}. {remedy}")
        elif loaded and self.initialization != "stock":
            raise ValueError(f"--initialization is for new networks. Leave it or --{loaded[0]} out.")

    def given(self, names: Iterable[str]) -> dict[str, Any]:
        """Those of the flags that were given."""
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    @property
    def options(self) -> dict[str, Any]:
        """The given options of `ElectraRTDConfig`, by its names."""
        given = self.given(_OPTIONS).items()
        options: dict[str, Any] = {"sharing": "none"} if self.freeze_generator else {}
        if self.two_stage_from is not None:
            options = {"sharing": "none", "freeze_generator": True}
        elif self.corrupted is not None:
            options = {"generator": "offline"}
        return options | {"generator" if name == "generator_type" else name: value for name, value in given}

    @cached_property
    def continued(self) -> SavedPair | None:
        """The pair of `--continue_from`."""
        if self.continue_from is None:
            return None
        pair = find_pair(self.continue_from, self.options, bool(self.new_generator))
        if self.new_generator and pair.config.has_generator_network and pair.config.sharing != "all":
            pair.config.generator_config = _smaller(pair.config.discriminator_config, self)
        return pair

    @property
    def tokenizer_source(self) -> str | None:
        """The pre-trained network whose tokenizer is used where no other is named."""
        if self.continued is not None:
            return self.continued.tokenizer
        if self.two_stage_from is not None:
            return str(Path(self.two_stage_from) / "discriminator")
        if self.corrupted is not None:
            return str(Path(self.corrupted) / TOKENIZER_DIRECTORY)
        return self.discriminator or self.generator


def continued_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults that `--continue_from` brings, from the values of all flags (None: not given), for
    `cli.parse_arguments`: the size that the pair will have, and its recipe."""
    if given["continue_from"] is None:
        return {}
    if given["size"] is not None:
        raise ValueError("--continue_from decides which networks there are. Leave --size out.")
    names = (field.name for field in fields(ModelArguments))
    pair = ModelArguments(**{name: given[name] for name in names if given[name] is not None}).continued
    assert pair is not None
    return {"size": pair.size, **continued_recipe(pair.size)}


def build_model(
    arguments: ModelArguments, tokenizer: PreTrainedTokenizerBase, max_seq_length: int
) -> ElectraForRTDPretraining:
    """The pair: new from a size or a configuration, from one or two pre-trained networks, or from a first stage.
    Raises ValueError for networks that do not fit the tokenizer, the sequence length or each other, and for an
    attention that is unknown or not installed."""
    if arguments.two_stage_from is not None:
        model = _second_stage(Path(arguments.two_stage_from), arguments.options)
    elif arguments.continued is not None:
        model = _continued(arguments, arguments.continued, tokenizer, max_seq_length)
    elif arguments.generator is None and arguments.discriminator is None:
        model = ElectraForRTDPretraining(_new_config(arguments, tokenizer, max_seq_length))
    else:
        model = _from_pretrained(arguments, tokenizer, max_seq_length)
    if model.config.freeze_generator:
        arguments.refuse_untrained()
    if model.proposals.needs_samples and arguments.corrupted is None:
        remedy = "Name their directory (--corrupted), or --generator_type masked_lm (to go on, with --new_generator)"
        raise ValueError(f"The pair was trained on samples from files, and has no generator. {remedy}.")
    for name, config in model.config.towers.items():
        if (tokens := config.vocab_size) != len(tokenizer):
            remedy = "Name the tokenizer that belongs to it (--tokenizer), or set vocab_size in the configuration."
            raise ValueError(f"The {name} has {tokens} tokens, the tokenizer {len(tokenizer)}. {remedy}")
        if (positions := max_length(config)) < max_seq_length:
            raise ValueError(f"The {name} has {positions} positions, fewer than --max_seq_length {max_seq_length}.")
    for name, source in arguments.given(("generator", "discriminator")).items():
        refuse_other_tokens(source, tokenizer, f"The {name} {source}")
    if arguments.attn_implementation is not None:
        known = getattr(model.generator, "attentions", (arguments.attn_implementation,))
        if arguments.attn_implementation not in known:
            what = f"does not go with --generator_type {model.config.generator}: take {' or '.join(known)}"
            raise ValueError(f"--attn_implementation {arguments.attn_implementation} {what}.")
        try:
            model.set_attn_implementation(arguments.attn_implementation)
        except ImportError as error:
            raise ValueError(f"--attn_implementation {arguments.attn_implementation}: {error}") from error
    return model


def _new_config(
    arguments: ModelArguments, tokenizer: PreTrainedTokenizerBase, max_seq_length: int
) -> ElectraRTDConfig:
    options = arguments.options
    if arguments.model_config is not None:
        config = ElectraRTDConfig.from_pretrained(arguments.model_config)
        if arguments.given(DEFAULT_FRACTIONS):
            options["generator_config"] = _smaller(config.discriminator_config, arguments)
        return config.changed(**options)
    return ElectraRTDConfig.from_size(
        arguments.size,
        vocab_size=len(tokenizer),
        max_position_embeddings=max(MAX_LENGTH, max_seq_length),
        pad_token_id=tokenizer.pad_token_id,
        **arguments.given(DEFAULT_FRACTIONS),
        **options,
    )


def _second_stage(run: Path, options: dict[str, Any]) -> ElectraForRTDPretraining:
    """Of two-stage training (paper, section 3.2): the generator of the first stage, frozen, and a discriminator whose
    encoder starts as the generator's."""
    if read_config(run).get("objective") != "mlm" or not (run / "discriminator").is_dir():
        raise ValueError(f"--two_stage_from needs a finished run of --objective mlm, and {run} is none.")
    generator = load_tower(FAMILIES["electra"].masked_lm, run / "discriminator")
    both = {"generator_config": generator.config, "discriminator_config": generator.config}
    model = ElectraForRTDPretraining(ElectraRTDConfig(**both, **options), generator=generator)
    model.discriminator.base_model.load_state_dict(generator.base_model.state_dict())
    return model


def _continued(
    arguments: ModelArguments, saved: SavedPair, tokenizer: PreTrainedTokenizerBase, max_seq_length: int
) -> ElectraForRTDPretraining:
    """The pair that was saved, with its options where no flag has others, and a new generator if it is asked for."""
    saved.describe()
    refuse_other_tokens(saved.tokenizer, tokenizer, f"The pair {saved.name}")
    if not saved.towers and not arguments.new_generator:
        return saved.load()
    given = copy.copy(arguments)
    for name in _OPTIONS:
        setattr(given, name, getattr(saved.config, "generator" if name == "generator_type" else name))
    given.generator, given.discriminator = saved.towers.get("generator"), saved.discriminator()
    return _from_pretrained(given, tokenizer, max_seq_length)


def _from_pretrained(
    arguments: ModelArguments, tokenizer: PreTrainedTokenizerBase, max_seq_length: int
) -> ElectraForRTDPretraining:
    """A pair from two networks, or from one and another that is made to fit."""
    generator: Any = arguments.generator
    discriminator: Any = arguments.discriminator
    options = arguments.options
    sharing = options.get("sharing", ElectraRTDConfig.sharing)
    main_class: Any = OBJECTIVES[arguments.objective or ElectraRTDConfig.objective].main_tower_class
    trained: Any = None
    if discriminator is None:
        trained = generator = load_masked_lm(generator)
        config = _new_config(arguments, tokenizer, max_seq_length).discriminator_config
        for size in SHARED_SIZES[sharing]:
            setattr(config, size, getattr(generator.config, size))
        new = discriminator = main_class(config)
    elif generator is None and exports_generator(**options):
        trained = discriminator = load_tower(main_class, discriminator)
        is_same = sharing == "all" and not arguments.given(DEFAULT_FRACTIONS)
        config = trained.config if is_same else _smaller(trained.config, arguments)
        new = generator = family_of(trained).masked_lm(config)
    if trained is not None:
        with torch.no_grad():
            for name in SHARING[sharing]().starting_parameters(new.base_model):
                new.base_model.get_parameter(name).copy_(trained.base_model.get_parameter(name))
    elif generator is None and needs_generator_network(**options):  # of two encoders, which is always new
        discriminator = load_tower(main_class, discriminator)
        options["generator_config"] = _smaller(discriminator.config, arguments)
    join = ElectraForRTDPretraining.from_generator_discriminator_pretrained
    kind = {"generator_type": options.pop("generator")} if "generator" in options else {}
    return join(generator, discriminator, **kind, **options)


def _smaller(config: Any, arguments: ModelArguments) -> Any:
    """A generator's configuration for a discriminator's."""
    return derive_generator_config(config, *(DEFAULT_FRACTIONS | arguments.given(DEFAULT_FRACTIONS)).values())
