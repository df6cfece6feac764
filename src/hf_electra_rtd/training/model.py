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

from hf_electra_rtd.cli import Rule, check_arguments, flag
from hf_electra_rtd.configuration_electra_rtd import (
    GENERATOR_NAMES,
    GENERATOR_OBJECTIVES,
    OBJECTIVE_TRAITS,
    SHARED_SIZES,
    ElectraRTDConfig,
    derive_generator_config,
    exports_generator,
    needs_generator_network,
)
from hf_electra_rtd.data.prepare import TOKENIZER_DIRECTORY
from hf_electra_rtd.data.tokenization import MAX_LENGTH, has_tokenizer, refuse_other_tokens
from hf_electra_rtd.families import masked_lm_class, max_length, resize_vocabulary
from hf_electra_rtd.initialization import INITIALIZATIONS
from hf_electra_rtd.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.objectives import OBJECTIVES
from hf_electra_rtd.ops.sampling import TEMPERATURES
from hf_electra_rtd.recipes import closest_size, continued_recipe, get_size
from hf_electra_rtd.sharing import SHARING
from hf_electra_rtd.towers import (
    fit_vocabulary,
    has_weights,
    load_config,
    load_encoder,
    load_main_tower,
    load_masked_lm,
    read_config,
)
from hf_electra_rtd.training.continuation import SavedPair, find_pair


# Width and depth of a new generator, as fractions of the discriminator's.
FRACTIONS = ("generator_hidden_size", "generator_layers")
ARCHITECTURE = ("dropout", "initializer_range")  # of a named size, what flags may change
_OPTIONS = (
    *("objective", "sharing", "generator_type", "generator_weight", "discriminator_weight", "temperature"),
    "generator_objective",
    *("temperature_schedule", "temperature_start", "temperature_decay"),
    *("disallow_correct", "sampling_dropout", "freeze_generator"),
)
# Flags that name what is there.
SOURCES = ("two_stage_from", "continue_from", "model_config", "generator", "discriminator")
BACKBONES = ("backbone", "generator_backbone")
_DECIDES = "It decides which networks there are."
_NEW = "It is for new networks."
_LOADED = ("two_stage_from", "continue_from", "generator", "discriminator")
RULES = (
    Rule(
        "backbone",
        _DECIDES,
        excludes=("continue_from", "two_stage_from", "model_config", "discriminator", *ARCHITECTURE),
    ),
    Rule(
        "continue_from",
        _DECIDES,
        excludes=("two_stage_from", "model_config", "generator", "discriminator", *ARCHITECTURE),
    ),
    Rule(
        "two_stage_from",
        _DECIDES,
        excludes=("model_config", "generator", "discriminator", "generator_type", *FRACTIONS, *ARCHITECTURE),
    ),
    Rule("model_config", _DECIDES, excludes=("generator", "discriminator", *ARCHITECTURE)),
    Rule("discriminator", _DECIDES, excludes=ARCHITECTURE),
    Rule("generator", _DECIDES, excludes=FRACTIONS),
    Rule("generator_backbone", _DECIDES, needs=("backbone",), excludes=("generator", *FRACTIONS)),
    Rule("from_scratch", "", needs=("backbone",)),
    Rule("new_generator", "", needs=("continue_from",)),
    Rule("extend_vocabulary", "", needs=("continue_from",)),
    Rule("initialization=neighbours", _NEW, excludes=_LOADED),
    Rule("initialization=neighbours_in_both", _NEW, excludes=_LOADED),
)


@dataclass
class ModelArguments:
    """The networks and how they work together."""

    size: str = flag("tiny", "Architecture and recipe: tiny, small, small++, base or large.")
    model_config: str | None = flag(None, "A config.json of the pair, or its directory: an architecture of your own.")
    generator: str | None = flag(None, "Directory or Hub id of a trained generator; frozen, it may be any masked LM.")
    corrupted: str | None = flag(None, "Output of `hf-electra-rtd corrupt`: samples in place of a frozen generator.")
    discriminator: str | None = flag(None, "Directory or Hub id of a trained discriminator.")
    backbone: str | None = flag(None, "Encoder of any family: a config.json, or weights (docs/backbones.md).")
    generator_backbone: str | None = flag(None, "With --backbone: the generator's. Default: a smaller one.")
    from_scratch: bool = flag(False, "With --backbone: take configurations alone, and make new networks.")
    two_stage_from: str | None = flag(None, "Run of --objective mlm: the frozen generator of a second stage.")
    continue_from: str | None = flag(None, "Run, pair, or discriminator beside its generator to go on with.")
    new_generator: bool | None = flag(None, "With --continue_from: a new, smaller generator.")
    extend_vocabulary: int | None = flag(
        None, "With --continue_from: so many new words of the training text.", "[1, inf)"
    )
    # Options of `ElectraRTDConfig`. None: its default, or the value in --model_config or --continue_from.
    objective: str | None = flag(
        None, f"What the discriminator learns: {', '.join(OBJECTIVE_TRAITS)}. Default: rtd.", choices=OBJECTIVE_TRAITS
    )
    sharing: str | None = flag(
        None, f"What the networks share: {', '.join(SHARED_SIZES)}. Default: embeddings.", choices=SHARED_SIZES
    )
    generator_type: str | None = flag(
        None, f"Fills masked tokens: {', '.join(GENERATOR_NAMES[:-1])} (masked_lm).", choices=GENERATOR_NAMES
    )
    generator_objective: str | None = flag(
        None, f"What it learns: {', '.join(GENERATOR_OBJECTIVES)}. Default: mle.", choices=GENERATOR_OBJECTIVES
    )
    generator_weight: float | None = flag(None, "Weight of the generator's loss. Default: 1.", "[0, inf)")
    discriminator_weight: float | None = flag(
        None, "The discriminator's. Default: 50, or 1 for predicting tokens.", "[0, inf)"
    )
    temperature: float | None = flag(
        None, "Temperature of sampling from the generator. Default: 1; 0 is greedy.", "[0, inf)"
    )
    temperature_schedule: str | None = flag(
        None, f"How it falls: {', '.join(TEMPERATURES)}. Default: constant.", choices=TEMPERATURES
    )
    temperature_start: float | None = flag(None, "Temperature where a schedule begins. Default: 2.", "(0, inf)")
    temperature_decay: float | None = flag(
        None, "Share of the run in which exponential falls to 1/e. Default: 0.1.", "(0, inf)"
    )
    disallow_correct: bool | None = flag(None, "Never sample the original token. Default: false.")
    sampling_dropout: bool | None = flag(None, "Sample from the generator with dropout, as it trains. Default: true.")
    freeze_generator: bool | None = flag(None, "Train only the discriminator. Default: only with --two_stage_from.")
    # Of new networks of a named size.
    dropout: float | None = flag(None, "In hidden layers and attention. Default: 0.1, of tiny 0.", "[0, 1)")
    initializer_range: float | None = flag(
        None, "Standard deviation of new weights. Default: 0.02, of tiny 0.06.", "(0, inf)"
    )
    # Sizes of a new generator.
    generator_hidden_size: float | None = flag(
        None, "Generator's width as a fraction of the discriminator's.", "(0, inf)"
    )
    generator_layers: float | None = flag(None, "Its depth likewise. Default: 1, of other families 0.5.", "[0, inf)")
    initialization: str | None = flag(
        None, "How new ones begin: stock, neighbours (default for tiny), neighbours_in_both.", choices=INITIALIZATIONS
    )
    attn_implementation: str | None = flag(None, "Attention of both, as in transformers. Default: sdpa.")

    def __post_init__(self) -> None:
        check_arguments(self, rules=RULES)
        if self.continue_from is not None and not self.new_generator:
            for name in self.given(FRACTIONS):
                raise ValueError(f"--{name} is for new networks. Leave it out, or add --new_generator.")
        # Refuses options that contradict each other before any work is lost.
        if self.continue_from is not None:
            _ = self.continued
        elif self.backbone is not None:
            _ = self.backbone_pair
        elif self.given(("two_stage_from", "generator", "discriminator")):
            ElectraRTDConfig(**self.options)
        elif self.model_config is None:
            ElectraRTDConfig.from_size(self.size, **self.given(FRACTIONS), **self.architecture, **self.options)
        loaded = list(self.given(("two_stage_from", "continue_from", "corrupted", "generator", "discriminator")))
        loaded += self.loaded_backbones
        if self.initialization is None:
            detects = OBJECTIVE_TRAITS[self.objective or ElectraRTDConfig.objective].predicts == "replaced"
            is_named = detects and self.model_config is None and self.backbone is None
            start = get_size(self.size).initialization if is_named else "stock"
            self.initialization = None if loaded else start
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

    @property
    def architecture(self) -> dict[str, Any]:
        """The given fields of `ElectraConfig`, by its names."""
        dropout = {f"{place}_dropout_prob": self.dropout for place in ("hidden", "attention_probs")}
        return (dropout if self.dropout is not None else {}) | self.given(("initializer_range",))

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
    def loaded_backbones(self) -> list[str]:
        """Those of the backbones whose weights are loaded: `backbone`, `generator_backbone`."""
        given = {} if self.from_scratch else self.given(BACKBONES)
        return [name for name, place in given.items() if has_weights(place)]

    @property
    def trained_towers(self) -> set[str]:
        """Those of the towers of `--backbone` whose weights are loaded: `generator`, `discriminator`."""
        trained = {"discriminator"} if "backbone" in self.loaded_backbones else set()
        if self.generator is not None or "generator_backbone" in self.loaded_backbones:
            trained.add("generator")
        return trained

    @cached_property
    def backbone_pair(self) -> ElectraRTDConfig:
        """The configuration of the pair of `--backbone`. A new tower gets the vocabulary of a trained one."""
        assert self.backbone is not None
        options, main, trained = self.options, load_config(self.backbone, "--backbone"), self.trained_towers
        if self.generator is not None:
            options["generator_config"] = load_config(self.generator, "--generator")
        elif self.generator_backbone is not None:
            options["generator_config"] = load_config(self.generator_backbone, "--generator_backbone")
        elif self.given(FRACTIONS) or (needs_generator_network(**options) and options.get("sharing") != "all"):
            options["generator_config"] = _smaller(main, self)
        if (fills := options.get("generator_config")) is not None and len(trained) < 2:
            new, old = (main, fills) if "generator" in trained else (fills, main)
            new.vocab_size = old.vocab_size
        return ElectraRTDConfig(discriminator_config=main, **options)

    @property
    def tokenizer_source(self) -> str | None:
        """The pre-trained network whose tokenizer is used where no other is named."""
        if self.backbone is not None:
            places = [place for place in (self.backbone, self.generator_backbone, self.generator) if place is not None]
            found = next(filter(has_tokenizer, places), None)
            if found is None and self.trained_towers:
                remedy = "Name the one that they were trained with (--tokenizer)."
                raise ValueError(f"There are weights without a tokenizer ({', '.join(places)}). {remedy}")
            return found
        if self.continued is not None:
            return self.continued.tokenizer
        if self.two_stage_from is not None:
            return str(Path(self.two_stage_from) / "discriminator")
        if self.corrupted is not None:
            return str(Path(self.corrupted) / TOKENIZER_DIRECTORY)
        return self.discriminator or self.generator


def recipe_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults that `--continue_from` and `--backbone` bring, from the values of all flags (None: not given), for
    `cli.parse_arguments`: the size that the pair will have or be closest to, and its recipe."""
    if given["continue_from"] is None and given["backbone"] is None:
        return {}
    if given["continue_from"] is not None and given["size"] is not None:
        raise ValueError("--continue_from decides which networks there are. Leave --size out.")
    names = (field.name for field in fields(ModelArguments))
    arguments = ModelArguments(**{name: given[name] for name in names if given[name] is not None})
    if (pair := arguments.continued) is not None:
        return {"size": pair.size, **continued_recipe(pair.size)}
    config = arguments.backbone_pair.discriminator_config
    size = given["size"] or closest_size(config.hidden_size, config.num_hidden_layers)
    if "backbone" in arguments.loaded_backbones:
        return {"size": size, **continued_recipe(size)}
    return {"size": size, "bias_correction": False, **get_size(size).pretraining}


def build_model(
    arguments: ModelArguments, tokenizer: PreTrainedTokenizerBase, max_seq_length: int
) -> ElectraForRTDPretraining:
    """The pair that the flags describe. Raises ValueError for networks that do not fit the tokenizer, the sequence
    length or each other, and for an attention that is unknown or not installed."""
    if arguments.two_stage_from is not None:
        model = _second_stage(Path(arguments.two_stage_from), arguments.options)
    elif arguments.continued is not None:
        model = _continued(arguments, arguments.continued, tokenizer, max_seq_length)
    elif arguments.backbone is not None:
        model = _from_backbone(arguments, arguments.backbone, tokenizer)
    elif arguments.generator is None and arguments.discriminator is None:
        model = ElectraForRTDPretraining(_new_config(arguments, tokenizer, max_seq_length))
    else:
        model = _from_pretrained(arguments, tokenizer, max_seq_length)
    is_trained = "generator" in arguments.trained_towers or arguments.given(("two_stage_from", "continue_from"))
    if model.config.freeze_generator and (arguments.new_generator or not is_trained):
        raise ValueError("--freeze_generator would freeze an untrained generator. Name a trained one (--generator).")
    if model.proposals.needs_samples and arguments.corrupted is None:
        remedy = "Name their directory (--corrupted), or --generator_type masked_lm (to go on, with --new_generator)"
        raise ValueError(f"The pair was trained on samples from files, and has no generator. {remedy}.")
    for name, config in model.config.towers.items():
        if (tokens := config.vocab_size) != len(tokenizer):
            remedy = "Name the tokenizer that belongs to it (--tokenizer), or set vocab_size in the configuration."
            raise ValueError(f"The {name} has {tokens} tokens, the tokenizer {len(tokenizer)}. {remedy}")
        if (positions := max_length(config)) < max_seq_length:
            what = f"The {name} has {positions} positions, fewer than --max_seq_length {max_seq_length}"
            raise ValueError(f"{what}. Take at most {positions}.")
    for name, source in arguments.given(("generator", "discriminator", *arguments.loaded_backbones)).items():
        refuse_other_tokens(source, tokenizer, f"The {name} {source}")
    if (attention := arguments.attn_implementation) is not None:
        known = getattr(model.generator, "attentions", (attention,))
        if attention not in known:
            what = f"does not go with --generator_type {model.config.generator}: take {' or '.join(known)}"
            raise ValueError(f"--attn_implementation {attention} {what}.")
        try:
            model.set_attn_implementation(attention)
        except ImportError as error:
            raise ValueError(f"--attn_implementation {attention}: {error}") from error
    return model


def _new_config(
    arguments: ModelArguments, tokenizer: PreTrainedTokenizerBase, max_seq_length: int
) -> ElectraRTDConfig:
    options = arguments.options
    if arguments.model_config is not None:
        try:
            config = ElectraRTDConfig.from_pretrained(arguments.model_config)
        except OSError as error:
            raise ValueError(f"--model_config {arguments.model_config} cannot be read: {error}") from None
        if arguments.given(FRACTIONS):
            options["generator_config"] = _smaller(config.discriminator_config, arguments)
        return config.changed(**options)
    return ElectraRTDConfig.from_size(
        arguments.size,
        vocab_size=len(tokenizer),
        max_position_embeddings=max(MAX_LENGTH, max_seq_length),
        pad_token_id=tokenizer.pad_token_id,
        **arguments.given(FRACTIONS),
        **arguments.architecture,
        **options,
    )


def _from_backbone(
    arguments: ModelArguments, backbone: str, tokenizer: PreTrainedTokenizerBase
) -> ElectraForRTDPretraining:
    """A pair of any family. Weights are those of the encoder and, for a generator, of its head, where there is one. A
    generator that is only named by its depth begins with the first layers of the backbone."""
    config, trained, sharing = arguments.backbone_pair, arguments.trained_towers, arguments.backbone_pair.sharing
    fills, main = config.generator_config, config.discriminator_config
    if not trained:
        for tower in config.towers.values():
            fit_vocabulary(tower, tokenizer)
        return ElectraForRTDPretraining(config)
    main_class: Any = OBJECTIVES[config.objective].tower_class(main.model_type)
    if "discriminator" in trained:
        encoder = _without_empty_rows(load_encoder(backbone, main), backbone, tokenizer)
        discriminator = encoder if isinstance(encoder, main_class) else main_class(encoder.config)
        discriminator.base_model.load_state_dict(encoder.base_model.state_dict())
    else:
        fit_vocabulary(main, tokenizer)
        discriminator = main_class(main)
    generator: Any = None
    if arguments.generator is not None:
        generator = _without_empty_rows(load_masked_lm(arguments.generator), arguments.generator, tokenizer)
    elif config.exports_generator:
        place, is_as_wide = arguments.generator_backbone or backbone, fills.hidden_size == main.hidden_size
        if "generator" in trained or (arguments.generator_backbone is None and is_as_wide):
            generator = _without_empty_rows(load_encoder(place, fills), place, tokenizer)
        else:
            fit_vocabulary(fills, tokenizer)
            generator = _new_generator(fills, discriminator, sharing)
    if generator is not None and trained == {"generator"}:
        _start_from(discriminator, generator, sharing)
    return _join(generator, discriminator, arguments.options | ({} if generator else {"generator_config": fills}))


def _join(generator: Any, discriminator: Any, options: dict[str, Any]) -> ElectraForRTDPretraining:
    named = {"generator_type" if name == "generator" else name: value for name, value in options.items()}
    return ElectraForRTDPretraining.from_generator_discriminator_pretrained(generator, discriminator, **named)


def _new_generator(config: Any, discriminator: Any, sharing: str) -> Any:
    generator_class: Any = masked_lm_class(config.model_type)
    generator = generator_class(config)
    _start_from(generator, discriminator, sharing)
    return generator


@torch.no_grad()
def _start_from(new: Any, trained: Any, sharing: str) -> None:
    """Gives a new tower what it will share with a trained one."""
    for mine, other in SHARING[sharing]().starting_pairs(new.base_model, trained.base_model):
        new.base_model.get_parameter(mine).copy_(trained.base_model.get_parameter(other))


def _without_empty_rows(tower: Any, source: str, tokenizer: PreTrainedTokenizerBase) -> Any:
    """A loaded tower without the rows of its vocabulary that stand for no token: released models have such, to round
    their number up, and a generator could sample them. Only where a tokenizer tells that they are none."""
    if tower.config.vocab_size > len(tokenizer) and has_tokenizer(source):
        refuse_other_tokens(source, tokenizer, f"The encoder {source}")
        resize_vocabulary(tower, len(tokenizer))
    return tower


def _second_stage(run: Path, options: dict[str, Any]) -> ElectraForRTDPretraining:
    """Of two-stage training (paper, section 3.2): the generator of the first stage, frozen, and a discriminator whose
    encoder starts as the generator's."""
    if read_config(run).get("objective") != "mlm" or not (run / "discriminator").is_dir():
        raise ValueError(f"--two_stage_from needs a finished run of --objective mlm, and {run} is none.")
    generator = load_masked_lm(run / "discriminator")
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
    pair = _from_pretrained(given, tokenizer, max_seq_length)
    saved.keep_head(pair)
    return pair


def _from_pretrained(
    arguments: ModelArguments, tokenizer: PreTrainedTokenizerBase, max_seq_length: int
) -> ElectraForRTDPretraining:
    """A pair from two networks, or from one and another that is made to fit."""
    generator: Any = arguments.generator
    discriminator: Any = arguments.discriminator
    options = arguments.options
    sharing = options.get("sharing", ElectraRTDConfig.sharing)
    objective = arguments.objective or ElectraRTDConfig.objective
    if discriminator is None:
        generator = _without_empty_rows(load_masked_lm(generator), str(arguments.generator), tokenizer)
        if generator.config.model_type != "electra" and sharing != "none":
            what = f"sharing={sharing!r} of a generator of the family {generator.config.model_type!r}"
            raise ValueError(f"{what} needs a discriminator of its family: name one (--backbone), or --sharing none.")
        main_class: Any = OBJECTIVES[objective].tower_class("electra")
        config = _new_config(arguments, tokenizer, max_seq_length).discriminator_config
        for size in SHARED_SIZES[sharing]:
            setattr(config, size, getattr(generator.config, size))
        discriminator = main_class(config)
        _start_from(discriminator, generator, sharing)
    elif generator is None and exports_generator(**options):
        discriminator = load_main_tower(objective, discriminator)
        is_same = sharing == "all" and not arguments.given(FRACTIONS)
        config = discriminator.config if is_same else _smaller(discriminator.config, arguments)
        generator = _new_generator(config, discriminator, sharing)
    elif generator is None and needs_generator_network(**options):  # of two encoders, which is always new
        discriminator = load_main_tower(objective, discriminator)
        options["generator_config"] = _smaller(discriminator.config, arguments)
    return _join(generator, discriminator, options)


def _smaller(config: Any, arguments: ModelArguments) -> Any:
    """A generator's configuration for a discriminator's."""
    return derive_generator_config(config, arguments.generator_hidden_size, arguments.generator_layers)
