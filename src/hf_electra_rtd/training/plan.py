"""How the pair of a run is planned and made: for each network its configuration, and the source of its weights.

`arguments` are the flags, [`ModelArguments`]. Planning reads only configurations, not weights.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from hf_electra_rtd.base.recipes import closest_size
from hf_electra_rtd.data.tokenization import has_tokenizer, refuse_other_tokens
from hf_electra_rtd.encoders.detectors import is_labelled
from hf_electra_rtd.encoders.families import masked_lm_class, resize_vocabulary
from hf_electra_rtd.pair.configuration_electra_rtd import (
    OBJECTIVE_TRAITS,
    SHARED_SIZES,
    ElectraRTDConfig,
    derive_generator_config,
    exports_generator,
    needs_generator_network,
)
from hf_electra_rtd.pair.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.pair.objectives import OBJECTIVES
from hf_electra_rtd.pair.places import CONFIGURATION, DETECTOR, Place, identify
from hf_electra_rtd.pair.sharing import SHARING
from hf_electra_rtd.pair.towers import fit_vocabulary, load_encoder, load_tower, share


NEW = "new"  # initialized, except for weights that it shares with a trained one
WHOLE = "whole"  # all weights of a place, with the head
ENCODER = "encoder"  # the encoder of a place, with the head of a masked language model if it has one
FIRST_LAYERS = "first layers"  # the same from the other network's place, with as many layers as are configured
PAIR = "pair"  # the weights of this network in a joint model
# Width and depth of a new generator, as fractions of the discriminator's.
FRACTIONS = ("generator_hidden_size", "generator_layers")
_CONTINUED = (
    "a finished run, a checkpoint, a saved pair, a directory with generator/ and discriminator/, or a discriminator"
)


@dataclass(frozen=True)
class Weights:
    """Where the weights of a network come from."""

    kind: str = NEW
    place: str | None = None  # directory or Hub id; None for `NEW`


@dataclass
class PairPlan:
    """How a pair is made."""

    config: ElectraRTDConfig
    generator: Weights = Weights()
    discriminator: Weights = Weights()
    grows: bool = False  # whether new networks get as many positions as the sequences have
    tokenizers: tuple[str, ...] = ()  # places that may hold the tokenizer, best first

    @property
    def is_trained(self) -> bool:
        """Whether any network has weights before the run."""
        return (self.generator.kind, self.discriminator.kind) != (NEW, NEW)

    @property
    def size(self) -> str:
        """The named size that the pair has, or is closest to."""
        main = self.config.discriminator_config
        fills = self.config.generator_config
        share = fills.hidden_size / main.hidden_size if fills else 0.0
        return closest_size(main.hidden_size, main.num_hidden_layers, share)


# ---- Planning ----


def plan_pair(arguments: Any) -> PairPlan:
    """Makes the plan of a pair from the flag that decides which networks there are. Raises ValueError for networks
    that do not exist, or do not fit the options."""
    if arguments.continue_from is not None:
        return _plan_continued(arguments)
    if arguments.backbone is not None:
        return _plan_backbone(arguments)
    named = arguments.given(("discriminator", "generator"))
    if named:
        return _plan_networks(arguments, **{name: identify(place) for name, place in named.items()})
    if arguments.model_config is not None:
        return _plan_configuration(arguments)
    fractions = arguments.given(FRACTIONS)
    config = ElectraRTDConfig.from_size(arguments.size, **fractions, **arguments.architecture, **arguments.options)
    return PairPlan(config, grows=True)


def _plan_continued(arguments: Any) -> PairPlan:
    """Plans a pair that continues, changed by the options, or its discriminator with a new generator."""
    place = identify(arguments.continue_from)
    options = arguments.options
    if place.pair is not None:
        return _plan_saved_pair(arguments, place)
    if place.kind == CONFIGURATION or (place.detector is None and place.model is None):
        raise ValueError(f"--continue_from {place.error(_CONTINUED)}")
    main = identify(place.detector or str(place.model))
    if not exports_generator(**options) or arguments.new_generator:
        return _plan_networks(arguments, main)
    generator = _beside(place.name) if place.model is not None else place.generator
    if generator is None:
        raise ValueError(f"--continue_from {place.name} has no generator. Add --new_generator.")
    return _plan_networks(arguments, main, identify(generator))


def _plan_saved_pair(arguments: Any, place: Place) -> PairPlan:
    saved = ElectraRTDConfig.from_dict(dict(place.config))
    config = saved.changed(**arguments.options)
    main = saved.discriminator_config
    trained, wanted = (OBJECTIVES[each.objective].tower_class(main.model_type) for each in (saved, config))
    if trained is not wanted:
        raise ValueError(
            f"--continue_from {place.name} was trained with the objective {saved.objective!r}, and "
            f"{config.objective!r} needs another kind of discriminator. Leave --objective out."
        )
    is_new = bool(arguments.new_generator)
    if is_new and not config.has_generator_network:
        raise ValueError(
            f"--new_generator: {place.name} trains without a generator network (objective {config.objective}, "
            f"generator_type {config.generator}). Leave it out, or choose another --generator_type."
        )
    if is_new:
        # New heads are initialized as in a new pair.
        initializer_range = ElectraRTDConfig.initializer_range
        new = _new_generator(arguments, main, vars(config))
        config = config.changed(**new, initializer_range=initializer_range)
    elif config.generator_config is None:
        is_new = True  # the saved pair has none
    elif saved.generator_config is None or saved.generator != config.generator:
        raise ValueError(f"--continue_from {place.name} has no {config.generator} generator. Add --new_generator.")
    return PairPlan(
        config,
        generator=Weights() if is_new else Weights(PAIR, place.pair),
        discriminator=Weights(PAIR, place.pair),
        tokenizers=(place.name,),
    )


def _beside(name: str) -> str:
    """Returns the generator that belongs to a discriminator, according to the discriminator's name."""
    place, slash, last = name.rstrip("/").rpartition("/")
    generator = place + slash + last.replace("discriminator", "generator").replace("detector", "generator")
    if generator == name.rstrip("/") or (Path(name).is_dir() and not Path(generator).is_dir()):
        raise ValueError(
            f"--continue_from {name} is one network, and there is no generator beside it. Name {_CONTINUED} with one; "
            "or add --new_generator."
        )
    return generator


def _plan_networks(arguments: Any, discriminator: Place | None = None, generator: Place | None = None) -> PairPlan:
    """Plans a pair of two trained networks, or of one and a new network that fits it."""
    options = arguments.options
    sharing = options.get("sharing", ElectraRTDConfig.sharing)
    if generator is not None:
        options["generator_config"] = generator.load_config()
        if generator.kind == CONFIGURATION:
            raise ValueError(f"--generator {generator.error('a trained masked language model')}")
    if discriminator is not None:
        main = discriminator.load_config()
        detects = OBJECTIVE_TRAITS[options.get("objective", ElectraRTDConfig.objective)].predicts == "replaced"
        if detects and discriminator.kind != DETECTOR:
            raise discriminator.error(
                "a run's discriminator/ (of other families detector/), or with --backbone the encoder"
            )
        if generator is None:
            options |= _new_generator(arguments, main, options)
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
        grows=discriminator is None,
        tokenizers=tuple(place.name for place in (discriminator or generator,) if place is not None),
    )


def _new_generator(arguments: Any, main: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the field of `ElectraRTDConfig` for a new generator next to a discriminator; empty if the field's
    default will do."""
    fractions = arguments.given(FRACTIONS)
    if not fractions and (not needs_generator_network(**options) or options.get("sharing") == "all"):
        return {}
    return {"generator_config": derive_generator_config(main, *(fractions.get(name) for name in FRACTIONS))}


def _plan_backbone(arguments: Any) -> PairPlan:
    """Plans a pair of any family. Trained weights are those of the encoder and, for a generator, of its head if there
    is one. A generator that is derived from a trained backbone, and is as wide, begins with the backbone's first
    layers."""
    options = arguments.options
    main, discriminator = _plan_encoder(arguments, "backbone")
    fills = None
    generator = Weights()
    if arguments.generator is not None:
        fills, generator = _plan_encoder(arguments, "generator")
    elif arguments.generator_backbone is not None:
        fills, generator = _plan_encoder(arguments, "generator_backbone")
    if fills is None:
        options |= _new_generator(arguments, main, options)
    else:
        options["generator_config"] = fills
        # A new network gets the vocabulary of a trained one.
        if generator.kind == NEW:
            fills.vocab_size = main.vocab_size
        elif discriminator.kind == NEW:
            main.vocab_size = fills.vocab_size
    config = ElectraRTDConfig(discriminator_config=main, **options)
    has_derived = config.exports_generator and fills is None
    if has_derived and config.generator_config.hidden_size == main.hidden_size and discriminator.kind == ENCODER:
        generator = Weights(FIRST_LAYERS, discriminator.place)
    named = arguments.given(("backbone", "generator_backbone", "generator"))
    return PairPlan(config, generator, discriminator, tokenizers=tuple(named.values()))


def _plan_encoder(arguments: Any, flag: str) -> tuple[Any, Weights]:
    """Returns the configuration of the network that a flag names, and which of its weights are used. Raises ValueError
    for a place that has no such network."""
    place = identify(getattr(arguments, flag))
    if place.model is None:
        raise ValueError(f"--{flag} {place.error('an encoder, or its config.json')}")
    config = place.load_config()
    if config.model_type == "electra" and is_labelled(config):
        raise ValueError(
            f"--{flag} {place.name}: the last layer of ELECTRA's detector is the head of detection. Name the "
            "discriminator/ beside it."
        )
    if flag == "generator":  # this flag names a trained one
        return config, Weights(WHOLE, place.model)
    if place.has_weights and not arguments.from_scratch:
        return config, Weights(ENCODER, place.model)
    return config, Weights()


def _plan_configuration(arguments: Any) -> PairPlan:
    """Plans new networks from the configuration of a pair."""
    place = identify(arguments.model_config)
    if place.config.get("model_type", ElectraRTDConfig.model_type) != ElectraRTDConfig.model_type:
        raise ValueError(f"--model_config {place.name} is the configuration of one network. Name that of a pair.")
    config = ElectraRTDConfig.from_dict(dict(place.config))
    options = arguments.options
    if arguments.given(FRACTIONS):
        options |= _new_generator(arguments, config.discriminator_config, options)
    return PairPlan(config.changed(**options))


# ---- Making ----


def make_pair(plan: PairPlan, tokenizer: PreTrainedTokenizerBase, max_seq_length: int) -> ElectraForRTDPretraining:
    """Makes the pair of a plan; new networks get the tokenizer's vocabulary. Raises ValueError for weights that cannot
    be loaded completely, were trained with another tokenizer, or do not fit each other."""
    config = plan.config
    for name, network in config.towers.items():
        if getattr(plan, name).kind == NEW:
            fit_vocabulary(network, tokenizer)
            if plan.grows:
                network.max_position_embeddings = max(network.max_position_embeddings, max_seq_length)
    saved: Any = None
    if plan.discriminator.kind == PAIR:
        place = str(plan.discriminator.place)
        refuse_other_tokens(place, tokenizer, f"The pair {place}")
        saved = ElectraForRTDPretraining.from_pretrained(place, dtype=torch.float32)
        if saved.config.discriminator_config.vocab_size > len(tokenizer):  # rows that stand for no token
            saved.resize_token_embeddings(len(tokenizer))
            for network in config.towers.values():
                network.vocab_size = len(tokenizer)
    if not plan.is_trained:
        networks = {}
    elif plan.generator.kind == PAIR and saved.config.sharing == config.sharing:
        networks = saved.towers
    else:
        names = ["discriminator", "generator"] if config.exports_generator else ["discriminator"]
        networks = {name: _make_network(plan, name, tokenizer, saved) for name in names}
        if config.exports_generator:
            config.check()  # the sizes that the networks share may have changed
            _begin_alike(plan, **networks)
            share(config.sharing, **networks)
    pair = ElectraForRTDPretraining(config, **networks)
    if saved is not None and pair.main_head is not None and type(pair.main_head) is type(saved.main_head):
        pair.main_head.load_state_dict(saved.main_head.state_dict())
    return pair


def _make_network(plan: PairPlan, name: str, tokenizer: PreTrainedTokenizerBase, saved: Any) -> Any:
    """Makes the generator or the discriminator of a plan. `saved` is the plan's joint model, or None."""
    weights: Weights = getattr(plan, name)
    config = plan.config.towers[name]
    is_main = name == "discriminator"
    find_class: Any = OBJECTIVES[plan.config.objective].tower_class if is_main else masked_lm_class
    model_class = find_class(config.model_type)
    if weights.kind == NEW:
        return model_class(config)
    if weights.kind == PAIR:
        # Copies, because a tensor that both networks shared may be two tensors now.
        return copy.deepcopy(saved.native_discriminator() if is_main else saved.generator)
    place = str(weights.place)
    if weights.kind in (ENCODER, FIRST_LAYERS):
        network = load_encoder(place, config)
    else:
        network = load_tower(model_class, place, config=config)
    if has_tokenizer(place):
        refuse_other_tokens(place, tokenizer, f"The {name} {place}")
        # Released models round the vocabulary up with rows that stand for no token. A generator could sample them.
        if network.config.vocab_size > len(tokenizer):
            resize_vocabulary(network, len(tokenizer))
            config.vocab_size = len(tokenizer)
    if isinstance(network, model_class):
        return network
    with_head = model_class(network.config)
    with_head.base_model.load_state_dict(network.base_model.state_dict())
    return with_head


@torch.no_grad()
def _begin_alike(plan: PairPlan, generator: Any, discriminator: Any) -> None:
    """Gives a new network the weights that it shares with a trained one."""
    if plan.generator.kind == NEW:
        new = generator.base_model
        trained = discriminator.base_model
    elif plan.discriminator.kind == NEW:
        new = discriminator.base_model
        trained = generator.base_model
    else:
        return
    starting_parameters = SHARING[plan.config.sharing]().starting_parameters
    for mine, other in zip(starting_parameters(new), starting_parameters(trained), strict=True):
        new.get_parameter(mine).copy_(trained.get_parameter(other))
