"""From flags to the pair of networks that a run trains."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from hf_electra_rtd.base.cli import Rule, check_arguments, flag
from hf_electra_rtd.base.recipes import closest_size, continued_recipe, get_size, of_length
from hf_electra_rtd.data.tokenization import has_tokenizer
from hf_electra_rtd.encoders.detectors import is_labelled
from hf_electra_rtd.encoders.families import max_length
from hf_electra_rtd.ops.sampling import TEMPERATURES
from hf_electra_rtd.pair.configuration_electra_rtd import (
    GENERATOR_NAMES,
    OBJECTIVE_TRAITS,
    SHARED_SIZES,
    ElectraRTDConfig,
    derive_generator_config,
    exports_generator,
    needs_generator_network,
)
from hf_electra_rtd.pair.initialization import INITIALIZATIONS
from hf_electra_rtd.pair.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.pair.objectives import OBJECTIVES
from hf_electra_rtd.pair.places import CONFIGURATION, DETECTOR, Place, identify
from hf_electra_rtd.training.plan import ENCODER, FIRST_LAYERS, NEW, PAIR, WHOLE, PairPlan, Weights, make_pair


logger = logging.getLogger(__name__)

# Width and depth of a new generator, as fractions of the discriminator's.
FRACTIONS = ("generator_hidden_size", "generator_layers")
ARCHITECTURE = ("dropout", "initializer_range")  # of a named size, what flags may change
_OPTIONS = (
    "objective",
    "sharing",
    "generator_type",
    "generator_weight",
    "discriminator_weight",
    "temperature",
    "temperature_schedule",
    "temperature_start",
    "temperature_decay",
    "disallow_correct",
    "sampling_dropout",
    "freeze_generator",
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
)


@dataclass
class ModelArguments:
    """The networks and how they work together."""

    size: str = flag("tiny", "Architecture and recipe: tiny, small, small++, base or large.")
    model_config: str | None = flag(None, "An architecture of your own: a config.json of a pair, or its directory.")
    generator: str | None = flag(None, "Directory or Hub id of a trained generator; frozen, it may be any masked LM.")
    discriminator: str | None = flag(None, "Directory or Hub id of a trained discriminator.")
    backbone: str | None = flag(None, "Encoder of any family: a config.json, or a directory or Hub id with weights.")
    generator_backbone: str | None = flag(
        None, "With --backbone: the encoder of the generator. Default: a smaller one."
    )
    from_scratch: bool = flag(False, "With --backbone: use only the configuration, and initialize new networks.")
    two_stage_from: str | None = flag(
        None, "Run with --objective mlm that becomes the frozen generator of a second stage."
    )
    continue_from: str | None = flag(
        None, "Continue training from this run, saved pair, or discriminator (its generator must be next to it)."
    )
    new_generator: bool | None = flag(None, "With --continue_from: start with a new, smaller generator.")
    extend_vocabulary: int | None = flag(
        None, "With --continue_from: add this many words of the training text to the vocabulary.", "[1, inf)"
    )
    # Options of `ElectraRTDConfig`. None: its default, or the value in --model_config or --continue_from.
    objective: str | None = flag(
        None, f"What the discriminator learns: {', '.join(OBJECTIVE_TRAITS)}. Default: rtd.", choices=OBJECTIVE_TRAITS
    )
    sharing: str | None = flag(
        None, f"What the networks share: {', '.join(SHARED_SIZES)}. Default: embeddings.", choices=SHARED_SIZES
    )
    generator_type: str | None = flag(
        None, f"Fills masked tokens: {', '.join(GENERATOR_NAMES)} (masked_lm).", choices=GENERATOR_NAMES
    )
    generator_weight: float | None = flag(None, "Weight of the generator's loss. Default: 1.", "[0, inf)")
    discriminator_weight: float | None = flag(
        None, "Weight of the discriminator's loss. Default: 50, or 1 if it predicts tokens.", "[0, inf)"
    )
    temperature: float | None = flag(
        None, "Temperature of sampling from the generator. Default: 1; 0 is greedy.", "[0, inf)"
    )
    temperature_schedule: str | None = flag(
        None, f"How the temperature falls: {', '.join(TEMPERATURES)}. Default: constant.", choices=TEMPERATURES
    )
    temperature_start: float | None = flag(None, "Temperature at the start of a schedule. Default: 2.", "(0, inf)")
    temperature_decay: float | None = flag(
        None, "Share of the run in which the exponential schedule falls to 1/e. Default: 0.1.", "(0, inf)"
    )
    disallow_correct: bool | None = flag(None, "Never sample the original token. Default: false.")
    sampling_dropout: bool | None = flag(None, "Sample from the generator with dropout, as it trains. Default: true.")
    freeze_generator: bool | None = flag(None, "Train only the discriminator. Default: only with --two_stage_from.")
    # Of new networks of a named size.
    dropout: float | None = flag(None, "Dropout in hidden layers and attention. Default: 0.1; 0 for tiny.", "[0, 1)")
    initializer_range: float | None = flag(
        None, "Standard deviation of new weights. Default: 0.02; 0.06 for tiny.", "(0, inf)"
    )
    # Sizes of a new generator.
    generator_hidden_size: float | None = flag(
        None, "Generator width as a fraction of the discriminator's.", "(0, inf)"
    )
    generator_layers: float | None = flag(
        None,
        "Generator depth as a fraction of the discriminator's. Default: 1; 0.5 for other families than ELECTRA.",
        "[0, inf)",
    )
    initialization: str | None = flag(
        None, "Weights of new networks: stock or neighbours (default for tiny).", choices=INITIALIZATIONS
    )
    attn_implementation: str | None = flag(None, "Attention implementation, as in transformers. Default: sdpa.")

    def __post_init__(self) -> None:
        check_arguments(self, rules=RULES)
        if self.continue_from is not None and not self.new_generator:
            for name in self.given(FRACTIONS):
                raise ValueError(f"--{name} is for new networks. Leave it out, or add --new_generator.")
        # Options that contradict each other are refused here where no file has to be read for it, and else in `plan`.
        sources = self.given((*SOURCES, "backbone"))
        if not sources:
            _ = self.plan
        elif self.given(("two_stage_from", "generator", "discriminator")):
            ElectraRTDConfig(**self.options)
        if self.initialization is None and not sources:
            self.initialization = get_size(self.size).initialization

    def given(self, names: Iterable[str]) -> dict[str, Any]:
        """Those of the flags that were given."""
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    @property
    def options(self) -> dict[str, Any]:
        """The given options of `ElectraRTDConfig`, by its names."""
        options: dict[str, Any] = {"sharing": "none"} if self.freeze_generator else {}
        if self.two_stage_from is not None:
            options = {"sharing": "none", "freeze_generator": True}
        given = self.given(_OPTIONS)
        return options | {"generator" if name == "generator_type" else name: value for name, value in given.items()}

    @property
    def architecture(self) -> dict[str, Any]:
        """The given fields of `ElectraConfig`, by its names."""
        architecture = self.given(("initializer_range",))
        if self.dropout is not None:
            architecture |= {"hidden_dropout_prob": self.dropout, "attention_probs_dropout_prob": self.dropout}
        return architecture

    @cached_property
    def plan(self) -> PairPlan:
        """How the pair is made, from the configurations of what the flags name. Raises ValueError for what is not
        there, or does not fit the options."""
        for name, plan in _STARTS.items():
            if getattr(self, name) is not None:
                return plan(self)
        config = ElectraRTDConfig.from_size(self.size, **self.given(FRACTIONS), **self.architecture, **self.options)
        return PairPlan(config, fits=True, grows=True)

    @property
    def tokenizer_source(self) -> str | None:
        """The place whose tokenizer is used where no other is named."""
        source = next(filter(has_tokenizer, self.plan.tokenizers), None)
        if source is None and self.plan.is_trained:
            raise ValueError(
                f"There are weights without a tokenizer ({', '.join(self.plan.tokenizers)}). Name the one that they "
                "were trained with (--tokenizer)."
            )
        return source

    def generator_config(self, main: Any, options: Mapping[str, Any]) -> dict[str, Any]:
        """The field of `ElectraRTDConfig` for a new generator beside a discriminator; empty where its default does."""
        if not self.given(FRACTIONS) and (not needs_generator_network(**options) or options.get("sharing") == "all"):
            return {}
        config = derive_generator_config(main, self.generator_hidden_size, self.generator_layers)
        return {"generator_config": config}


def recipe_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults that follow from the flags that are given (`cli.given_flags`): the recipe of their length; with
    `--continue_from` and `--backbone`, whose configurations are read for it, of the size that the pair will have or be
    closest to. Raises ValueError for an unknown size, and networks that are not there."""
    return of_length(_recipe(given), given["max_steps"], given["num_train_epochs"])


def _recipe(given: Mapping[str, Any]) -> dict[str, Any]:
    if given["continue_from"] is None and given["backbone"] is None:
        return dict(get_size(given["size"] or ModelArguments.size).pretraining)
    if given["continue_from"] is not None and given["size"] is not None:
        raise ValueError("--continue_from decides which networks there are. Leave --size out.")
    names = (field.name for field in fields(ModelArguments))
    plan = ModelArguments(**{name: given[name] for name in names if given[name] is not None}).plan
    if given["continue_from"] is not None:
        return {"size": plan.size, **continued_recipe(plan.size)}
    main = plan.config.discriminator_config
    size = given["size"] or closest_size(main.hidden_size, main.num_hidden_layers)
    if "backbone" in plan.backbones:
        return {"size": size, **continued_recipe(size)}
    return {"size": size, **get_size(size).pretraining}


def build_model(
    arguments: ModelArguments, tokenizer: PreTrainedTokenizerBase, max_seq_length: int
) -> ElectraForRTDPretraining:
    """The pair that the flags describe. Raises ValueError for networks that do not fit the tokenizer, the sequence
    length or each other, and for an attention that is unknown or not installed."""
    plan = arguments.plan
    if plan.config.freeze_generator and not plan.has_trained_generator:
        raise ValueError("--freeze_generator would freeze an untrained generator. Name a trained one (--generator).")
    if not plan.is_trained:
        arguments.initialization = arguments.initialization or "stock"
    elif arguments.initialization not in (None, "stock"):
        raise ValueError("--initialization is for new networks. Leave it out where trained ones are named.")
    if arguments.continue_from is not None:
        _describe(arguments.continue_from, plan)
    model = make_pair(plan, tokenizer, max_seq_length)
    for name, config in model.config.towers.items():
        if config.vocab_size != len(tokenizer):
            raise ValueError(
                f"The {name} has {config.vocab_size} tokens, the tokenizer {len(tokenizer)}. Name the tokenizer that "
                "belongs to it (--tokenizer), or set vocab_size in the configuration."
            )
        positions = max_length(config)
        if positions < max_seq_length:
            more = "" if plan.is_trained else ", or raise max_position_embeddings in the config.json of the networks"
            raise ValueError(
                f"The {name} has {positions} positions, fewer than --max_seq_length {max_seq_length}. "
                f"Take at most {positions}{more}."
            )
    attention = arguments.attn_implementation
    if attention is not None:
        known = getattr(model.generator, "attentions", (attention,))
        if attention not in known:
            raise ValueError(
                f"--attn_implementation {attention} does not go with --generator_type {model.config.generator}: "
                f"take {' or '.join(known)}."
            )
        try:
            model.set_attn_implementation(attention)
        except ImportError as error:
            raise ValueError(f"--attn_implementation {attention}: {error}") from error
    return model


def _describe(name: str, plan: PairPlan) -> None:
    """Logs both networks that go on, and warns of a generator that is too strong."""
    config = plan.config
    shapes = (f"{tower}: {own.num_hidden_layers} layers of {own.hidden_size}" for tower, own in config.towers.items())
    logger.info(f"Going on from {name}. {', '.join(shapes)}; sharing: {config.sharing}; recipe of {plan.size}.")
    generator = config.generator_config
    width = config.discriminator_config.hidden_size
    is_electra = config.discriminator_config.model_type == "electra"  # others share embeddings of one width
    if is_electra and generator is not None and generator.hidden_size >= width and config.sharing != "all":
        logger.warning(
            f"The generator is as wide as the discriminator ({width}). So is that of the released small pair, and "
            "its card warns of pre-training with it. --new_generator makes one of a quarter of the width."
        )


# ---- The plan of each start ----

_CONTINUED = (
    "a finished run, a checkpoint, a saved pair, a directory with generator/ and discriminator/, or a discriminator"
)


def _plan_continued(arguments: ModelArguments) -> PairPlan:
    """A pair goes on, as the options change it, or its discriminator with a new generator."""
    place = identify(str(arguments.continue_from))
    options = arguments.options
    if place.pair is not None:
        return _plan_saved_pair(arguments, place)
    if place.kind == CONFIGURATION or (place.detector is None and place.model is None):
        raise ValueError(f"--continue_from {place.error(_CONTINUED)}")
    main = identify(place.detector or str(place.model))
    if main.architecture is not None:
        _check_objective(place.name, main.family, main.architecture, options.get("objective"))
    if not exports_generator(**options) or arguments.new_generator:
        generator = None
    elif place.model is not None:
        generator = _beside(place.name)
    else:
        generator = place.generator
        if generator is None:
            raise ValueError(f"--continue_from {place.name} has no generator. Add --new_generator.")
    return _plan_networks(arguments, main, None if generator is None else identify(generator))


def _plan_saved_pair(arguments: ModelArguments, place: Place) -> PairPlan:
    saved = ElectraRTDConfig.from_dict(dict(place.config))
    config = saved.changed(**arguments.options)
    main = saved.discriminator_config
    trained: Any = OBJECTIVES[saved.objective].tower_class(main.model_type)
    _check_objective(place.name, main.model_type, trained.__name__, config.objective)
    keeps = saved.generator_config is not None and saved.generator == config.generator
    if config.generator_config is not None and not (keeps or arguments.new_generator):
        raise ValueError(f"--continue_from {place.name} has no {config.generator} generator. Add --new_generator.")
    if arguments.new_generator:
        # Its heads are drawn as those of a new pair.
        initializer_range = ElectraRTDConfig.initializer_range
        config = config.changed(**arguments.generator_config(main, vars(config)), initializer_range=initializer_range)
    has_old = config.generator_config is not None and not arguments.new_generator
    return PairPlan(
        config,
        generator=Weights(PAIR if has_old else NEW),
        discriminator=Weights(PAIR),
        pair=place.pair,
        tokenizers=(place.tokenizer,),
    )


def _beside(name: str) -> str:
    """The generator that belongs to a discriminator, by its name."""
    place, slash, last = name.rstrip("/").rpartition("/")
    generator = place + slash + last.replace("discriminator", "generator").replace("detector", "generator")
    if generator == name.rstrip("/") or (Path(name).is_dir() and not Path(generator).is_dir()):
        raise ValueError(
            f"--continue_from {name} is one network, and there is no generator beside it. Name {_CONTINUED} with one; "
            "or add --new_generator."
        )
    return generator


def _check_objective(name: str, family: str, architecture: str, objective: str | None) -> None:
    """Raises ValueError for a discriminator of another class than an objective trains."""
    objective = objective or ElectraRTDConfig.objective
    needed: Any = OBJECTIVES[objective].tower_class(family)
    if needed is not None and architecture != needed.__name__:
        raise ValueError(
            f"--continue_from {name}: the discriminator is {architecture}, but the objective {objective!r} "
            f"continues {needed.__name__}. Name the run, or the directory of such a network."
        )


def _plan_named(arguments: ModelArguments) -> PairPlan:
    places = {name: identify(place) for name, place in arguments.given(("discriminator", "generator")).items()}
    return _plan_networks(arguments, places.get("discriminator"), places.get("generator"))


def _plan_networks(arguments: ModelArguments, discriminator: Place | None, generator: Place | None) -> PairPlan:
    """A pair of two networks, or of one and another that is made to fit."""
    options = arguments.options
    sharing = options.get("sharing", ElectraRTDConfig.sharing)
    if generator is not None:
        options["generator_config"] = generator.load_config()
    if discriminator is not None:
        main = discriminator.load_config()
        detects = OBJECTIVE_TRAITS[options.get("objective", ElectraRTDConfig.objective)].predicts == "replaced"
        if detects and main.model_type != "electra" and discriminator.kind != DETECTOR:
            raise discriminator.error("a run's detector/, or with --backbone the encoder")
        if generator is None:
            options |= arguments.generator_config(main, options)
    else:
        fills = options["generator_config"]
        if fills.model_type != "electra" and sharing != "none":
            raise ValueError(
                f"sharing={sharing!r} of a generator of the family {fills.model_type!r} needs a discriminator of its "
                "family: name one (--backbone), or --sharing none."
            )
        main = ElectraRTDConfig.from_size(arguments.size, **arguments.architecture).discriminator_config
        for size in SHARED_SIZES[sharing]:
            setattr(main, size, getattr(fills, size))
    return PairPlan(
        ElectraRTDConfig(discriminator_config=main, **options),
        generator=Weights() if generator is None else Weights(WHOLE, generator.model),
        discriminator=Weights() if discriminator is None else Weights(WHOLE, discriminator.model),
        first="discriminator" if generator is None else "generator",
        fits=discriminator is None,
        grows=discriminator is None,
        tokenizers=tuple(place.name for place in (discriminator or generator,) if place is not None),
    )


def _plan_second_stage(arguments: ModelArguments) -> PairPlan:
    """Of two-stage training (paper, section 3.2): the generator of the first stage, frozen, and a discriminator whose
    encoder starts as the generator's."""
    run = identify(str(arguments.two_stage_from))
    if run.objective != "mlm" or run.discriminator is None:
        raise ValueError(f"--two_stage_from needs a finished run of --objective mlm, and {run.name} is none.")
    config = identify(run.discriminator).load_config()
    return PairPlan(
        ElectraRTDConfig(generator_config=config, discriminator_config=config, **arguments.options),
        generator=Weights(WHOLE, run.discriminator),
        taken="all",
        first="generator",
        tokenizers=(run.discriminator,),
    )


def _plan_backbone(arguments: ModelArguments) -> PairPlan:
    """A pair of any family. Weights are those of the encoder and, for a generator, of its head, where there is one. A
    generator that is only named by its depth begins with the first layers of the backbone."""
    options = arguments.options
    flags = arguments.given(("backbone", "generator_backbone", "generator"))
    places = {name: identify(place) for name, place in flags.items()}
    configs = {name: _encoder_config(place, name) for name, place in places.items()}
    backbones = tuple(name for name in BACKBONES if name in places and places[name].has_weights)
    if arguments.from_scratch:
        backbones = ()
    main = configs.pop("backbone")
    beside = next(iter(configs.values()), None)
    discriminator = generator = Weights()
    if "backbone" in backbones:
        discriminator = Weights(ENCODER, places["backbone"].model)
    if "generator" in places:
        generator = Weights(WHOLE, places["generator"].model)
    elif "generator_backbone" in backbones:
        generator = Weights(ENCODER, places["generator_backbone"].model)
    # A new network gets the vocabulary of a trained one.
    if beside is None:
        options |= arguments.generator_config(main, options)
    elif generator.kind != NEW and discriminator.kind == NEW:
        main.vocab_size = beside.vocab_size
    elif generator.kind == NEW:
        beside.vocab_size = main.vocab_size
    if beside is not None:
        options["generator_config"] = beside
    config = ElectraRTDConfig(discriminator_config=main, **options)
    if config.exports_generator and beside is None and config.generator_config.hidden_size == main.hidden_size:
        generator = Weights(NEW if discriminator.kind == NEW else FIRST_LAYERS, discriminator.place)
    return PairPlan(
        config,
        generator=generator,
        discriminator=discriminator,
        fits=True,
        tokenizers=tuple(flags.values()),
        backbones=backbones,
    )


def _encoder_config(place: Place, name: str) -> Any:
    """The configuration of an encoder that a flag names. Raises ValueError for another place."""
    if place.model is None:
        raise ValueError(f"--{name} {place.error('an encoder, or its config.json')}")
    config = place.load_config()
    if config.model_type == "electra" and is_labelled(config):
        raise ValueError(
            f"--{name} {place.name}: the last layer of ELECTRA's detector is the head of detection. Name the "
            "discriminator/ beside it."
        )
    return config


def _plan_configuration(arguments: ModelArguments) -> PairPlan:
    """New networks of a configuration of the pair."""
    name = str(arguments.model_config)
    values = dict(identify(name).config)
    if values.get("model_type", ElectraRTDConfig.model_type) != ElectraRTDConfig.model_type:
        raise ValueError(f"--model_config {name} is the configuration of one network. Name that of a pair.")
    config = ElectraRTDConfig.from_dict(values)
    options = arguments.options
    if arguments.given(FRACTIONS):
        options |= arguments.generator_config(config.discriminator_config, options)
    return PairPlan(config.changed(**options))


# The first of these flags that is given decides how the pair is made.
_STARTS: dict[str, Callable[[ModelArguments], PairPlan]] = {
    "two_stage_from": _plan_second_stage,
    "continue_from": _plan_continued,
    "backbone": _plan_backbone,
    "discriminator": _plan_named,
    "generator": _plan_named,
    "model_config": _plan_configuration,
}
