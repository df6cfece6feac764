"""Configuration of the joint model: two towers and how they work together."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers import CONFIG_MAPPING, AutoConfig, ElectraConfig, PreTrainedConfig

from hf_electra_rtd.base.cli import Rule, check_arguments
from hf_electra_rtd.base.files import check_name, known_names
from hf_electra_rtd.base.recipes import get_size
from hf_electra_rtd.encoders.detectors import label
from hf_electra_rtd.encoders.families import (
    FAMILIES,
    detector_class,
    feed_forward_name,
    refuse_other_networks,
    size_of,
)


@dataclasses.dataclass(frozen=True)
class ObjectiveTraits:
    """Properties of an objective."""

    predicts: str  # what the discriminator predicts: `"replaced"`, `"masked"` or `"all"` tokens
    weight: float  # of the discriminator's loss: λ = 50 for detection (paper, Table 6; Code `disc_weight`), else 1
    has_generator: bool = True  # whether masked tokens are replaced by samples
    # Whether the loss needs the probability of every token under the generator, and the mask probability.
    needs_noise: bool = False


# The names of the objectives, modes of sharing and generators. `ElectraRTDConfig.check` decides which go together.
OBJECTIVE_TRAITS = {
    "rtd": ObjectiveTraits("replaced", 50.0),
    "rtd_masked_only": ObjectiveTraits("replaced", 50.0),
    "replace_mlm": ObjectiveTraits("masked", 1.0),
    "all_tokens_mlm": ObjectiveTraits("all", 1.0),
    "mlm": ObjectiveTraits("masked", 1.0, has_generator=False),
    "electric": ObjectiveTraits("replaced", 50.0, needs_noise=True),
}
# For each mode of sharing, the sizes that must be equal in both towers so that they can share tensors.
_EMBEDDING_SIZES = ("vocab_size", "embedding_size", "max_position_embeddings", "type_vocab_size")
_ENCODER_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act")
SHARED_SIZES: dict[str, tuple[str, ...]] = {
    "none": ("vocab_size",),
    "word": ("vocab_size", "embedding_size"),
    "embeddings": _EMBEDDING_SIZES,
    "all": (*_EMBEDDING_SIZES, *_ENCODER_SIZES),
    "gdes": ("vocab_size", "embedding_size", "max_position_embeddings"),
}
GENERATOR_NAMES = ("masked_lm", "uniform", "two_tower")
# How many encoders each kind of generator has, for kinds with a network. With one encoder, it is a stock model, which
# is exported; with two, it gives the probability of every token without having seen the token.
GENERATOR_ENCODERS = {"masked_lm": 1, "two_tower": 2}

# Options that must keep their defaults where there is no generator network, and where there is no generator.
_OF_NETWORK = ("sharing", "temperature", "freeze_generator")
_OF_GENERATOR = ("generator", "generator_weight", "disallow_correct")
# All options that say how the networks work together. A resumed run has them in common with its checkpoint.
OPTIONS = ("objective", *_OF_NETWORK, *_OF_GENERATOR, "discriminator_weight")
# The options that take names, and the names.
_NAMES: dict[str, Collection[str]] = {
    "objective": OBJECTIVE_TRAITS,
    "sharing": SHARED_SIZES,
    "generator": GENERATOR_NAMES,
}

# Which options do not go together, by the names of fields.
_DETECTING = tuple(f"objective={name}" for name, traits in OBJECTIVE_TRAITS.items() if traits.predicts == "replaced")
# With these options, samples are not drawn from the generator's softmax as it is.
_ALTERS_DRAWS = ("temperature", "disallow_correct")
RULES = (
    Rule(
        "objective=electric",
        "Its loss needs the probability of every token under the generator.",
        needs=("generator=two_tower",),
        excludes=_ALTERS_DRAWS,
    ),
    Rule(
        "generator=two_tower",
        "It shares its embeddings with a discriminator that detects, and learns.",
        needs=_DETECTING,
        excludes=("sharing", "freeze_generator"),
    ),
    Rule("sharing=gdes", "Other objectives predict with the word table, which holds differences.", needs=_DETECTING),
    Rule("freeze_generator", "Otherwise it would freeze a part of the discriminator.", needs=("sharing=none",)),
    Rule("tie_word_embeddings", "False would undo every tie."),
)
NO_NETWORK_RULES = tuple(Rule(name, "There is no generator network.") for name in _OF_NETWORK if name != "sharing")
NO_GENERATOR_RULES = tuple(Rule(name, "There is no generator.") for name in _OF_GENERATOR)
DRAW_RULES = tuple(
    Rule(name, "Probabilities of tokens are those of the generator's softmax.") for name in _ALTERS_DRAWS
)
INTERVALS = {
    "temperature": "[0, inf)",
    "generator_weight": "[0, inf)",
    "discriminator_weight": "[0, inf)",
    "mask_probability": "(0, 1)",
    "keep_probability": "[0, 1]",
}
# The families that an option supports in both towers. Some options need to know where a family keeps its positions, or
# what its output layer reads.
_FAMILIES: dict[tuple[str, str], Iterable[str]] = {
    ("sharing", "gdes"): FAMILIES,
    ("objective", "all_tokens_mlm"): FAMILIES,
    ("generator", "two_tower"): ("electra",),
}

# Fields that would leak the local path of a tower, or the attention chosen on another machine, into the saved
# configuration.
_NOT_COPIED = ("_attn_implementation_internal", "_experts_implementation_internal", "_name_or_path", "model_type")
# Keys that `PreTrainedConfig` accepts or writes besides its declared fields. The Trainer of transformers 5.17 also
# writes the tokenizer's special ids.
_FRAMEWORK_KEYS = (
    *_NOT_COPIED,
    "_commit_hash",
    "attn_implementation",
    "auto_map",
    "bos_token_id",
    "eos_token_id",
    "experts_implementation",
    "name_or_path",
    "num_labels",
    "output_attentions",
    "pad_token_id",
    "torch_dtype",
)


def derive_generator_config(
    discriminator_config: PreTrainedConfig,
    hidden_size_fraction: float | None = None,
    layers_fraction: float | None = None,
) -> Any:
    """Returns the generator's configuration, with width and depth as fractions of the discriminator's.

    For ELECTRA, it is that of google-research/electra run_pretraining.py, `get_generator_config`: the hidden size and
    the number of layers are rounded fractions (by default a quarter, and all), the feed-forward size is 4 times the
    hidden size, and there is one attention head per 64 units. In other families, the feed-forward size and the number
    of heads are the same fraction as the width. These families share embeddings only with a generator of the same
    width, so by default their generator has the full width and half of the layers, as in DeBERTaV3 (arXiv 2111.09543).
    All other fields are copied. Raises ValueError for a family without an encoder for masked tokens, and for sizes
    that cannot be built or are larger than the discriminator's.
    """
    config = discriminator_config
    inner_name = feed_forward_name(config)
    refuse_other_networks(config)
    is_electra = config.model_type == ElectraConfig.model_type
    width = (0.25 if is_electra else 1.0) if hidden_size_fraction is None else hidden_size_fraction
    depth = (1.0 if is_electra else 0.5) if layers_fraction is None else layers_fraction
    hidden_size = round(config.hidden_size * width)
    num_layers = round(config.num_hidden_layers * depth)
    num_heads = max(1, hidden_size // 64)
    inner = 4 * hidden_size
    if not is_electra:
        num_heads = max(1, round(config.num_attention_heads * width))
        inner = round(getattr(config, inner_name) * width)
    if hidden_size < 1 or num_layers < 1 or hidden_size % num_heads or max(width, depth) > 1:
        raise ValueError(
            f"generator_hidden_size={width:g} and generator_layers={depth:g} give {num_layers} layers of "
            f"{hidden_size} with {num_heads} attention heads, which cannot be built, or are larger than the "
            "discriminator: choose other fractions."
        )
    values = _copyable(config)
    sizes = {"hidden_size": hidden_size, "num_hidden_layers": num_layers, "num_attention_heads": num_heads}
    sizes = {config.attribute_map.get(name, name): size for name, size in sizes.items()} | {inner_name: inner}
    for name in ("layer_types", "attention_window"):
        if isinstance(values.get(name), list):
            values[name] = values[name][:num_layers]
    return CONFIG_MAPPING[config.model_type](**{**values, **sizes})


def _native(config: PreTrainedConfig | dict[str, Any] | None) -> PreTrainedConfig:
    """Returns a copy of a tower's configuration, in the class of the family that its `model_type` names; by default
    ELECTRA's."""
    values = config.to_dict() if isinstance(config, PreTrainedConfig) else config or {}
    family = values.get("model_type", ElectraConfig.model_type)
    if family not in CONFIG_MAPPING:
        raise ValueError(f"transformers has no model_type {family!r}.")
    return CONFIG_MAPPING[family](**_copyable(values))


def _copyable(config: PreTrainedConfig | dict[str, Any]) -> dict[str, Any]:
    values = config.to_dict() if isinstance(config, PreTrainedConfig) else config
    return {key: value for key, value in values.items() if key not in _NOT_COPIED}


def refuse_unknown(given: Iterable[str], known: Iterable[str], what: str) -> None:
    """Raises ValueError for an option that `what` does not have."""
    for key in sorted(set(given) - set(known)):
        raise ValueError(f"{what} has no option {key!r}. {known_names(key, known, 'options')}")


def refuse_unknown_names(options: Mapping[str, Any]) -> None:
    """Raises ValueError for an objective, a mode of sharing or a kind of generator that does not exist."""
    for option, known in _NAMES.items():
        if option in options:
            check_name(option, options[option], known)


def needs_generator_network(objective: str = "rtd", generator: str = "masked_lm", **others: Any) -> bool:
    """Whether a configuration with these options has a generator network."""
    return OBJECTIVE_TRAITS[objective].has_generator and generator in GENERATOR_ENCODERS


def exports_generator(objective: str = "rtd", generator: str = "masked_lm", **others: Any) -> bool:
    """Whether the generator network is a stock model, which is saved in a directory of its own. Any other generator
    network is saved only as a part of the joint model."""
    return needs_generator_network(objective, generator) and GENERATOR_ENCODERS[generator] == 1


@strict
class ElectraRTDConfig(PreTrainedConfig):
    """The configuration of [`ElectraForRTDPretraining`]: two native tower configurations, which are copied, and how
    the towers work together. Raises ValueError for options that do not go together."""

    model_type = "electra_rtd"
    sub_configs: ClassVar[dict[str, type]] = {"generator_config": AutoConfig, "discriminator_config": AutoConfig}
    # The `compute_metrics` of a Trainer gets what is left: (logits, replaced_labels, generator_token_losses,
    # discriminator_token_losses). If the discriminator predicts tokens, there are no logits, but `predictions` after
    # the labels. None of these is as large as the vocabulary. A pair without a generator has no generator losses.
    keys_to_ignore_at_inference: ClassVar[list[str]] = [
        "generator_loss",
        "discriminator_loss",
        "generator_predictions",
        "generator_logits",
        "corrupted_input_ids",
    ]

    # Native configurations or dicts; a dict without a `model_type` is ELECTRA's. None stands for a smaller generator
    # of the discriminator's family (`derive_generator_config`), and for an ELECTRA-small discriminator.
    generator_config: Any = None
    discriminator_config: Any = None
    objective: str = "rtd"  # what the discriminator learns, see `hf_electra_rtd.pair.objectives`
    # What the towers share, see `hf_electra_rtd.pair.sharing`. The default is the whole embedding block, as in
    # google-research/electra (model/modeling.py: one scope around look-up, position, type and LayerNorm).
    sharing: str = "embeddings"
    generator: str = "masked_lm"  # what fills masked tokens, see `hf_electra_rtd.pair.generators`
    generator_weight: float | int = 1.0  # of the generator's loss (Code configure_pretraining.py, `gen_weight`)
    # The weight of the discriminator's loss; `__post_init__` replaces None by the objective's.
    discriminator_weight: Any = None
    temperature: float | int = 1.0  # of the generator's softmax when sampling; 0.0 takes the most likely token
    disallow_correct: bool = False  # never sample the original token (Code `disallow_correct`)
    # The generator learns nothing, as in the second stage of two-stage training (paper, section 3.2).
    freeze_generator: bool = False
    # The share of the tokens that is masked. The trainer masks them; `electric` and pseudo-log-likelihoods use the
    # value.
    mask_probability: float = 0.15
    # The share of the masked tokens that stays visible; pseudo-log-likelihoods of `rtd` use it.
    keep_probability: float | int = 0.15
    # The ids of [CLS], [SEP] and [MASK], which a two-tower generator does not learn to predict: by default those of
    # google-research's vocabulary, until a trainer sets those of its tokenizer.
    special_token_ids: Any = (101, 102, 103)
    initializer_range: float = 0.02
    # `transformers` ties tensors only where this field is True; `sharing` says which tensors.
    tie_word_embeddings: bool = True
    use_cache: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        fields = {field.name for field in dataclasses.fields(self)}
        refuse_unknown(kwargs.keys() - _FRAMEWORK_KEYS, fields, type(self).__name__)
        refuse_unknown_names(vars(self))
        self.discriminator_config = _native(self.discriminator_config)
        if not self.has_generator_network:
            if self.generator_config is not None:
                raise ValueError(
                    f"{self._kind} has no generator network: leave generator_config (or generator_hidden_size and "
                    "generator_layers) out."
                )
            self.sharing = "none" if self.sharing == type(self).sharing else self.sharing
        elif self.generator_config is None and self.sharing != "all":
            self.generator_config = derive_generator_config(self.discriminator_config)
        else:
            self.generator_config = _native(self.generator_config or self.discriminator_config)
        if self.traits.predicts == "replaced" and self.discriminator_config.model_type != ElectraConfig.model_type:
            label(self.discriminator_config)
        for tower in self.towers.values():
            if hasattr(tower, "use_cache"):
                tower.use_cache = False  # encoders have no cache, and asking for one breaks the graph
        if self.discriminator_weight is None:
            self.discriminator_weight = self.traits.weight
        self.special_token_ids = list(self.special_token_ids)
        super().__post_init__(**kwargs)
        self.check()

    @property
    def traits(self) -> ObjectiveTraits:
        """The properties of the objective."""
        return OBJECTIVE_TRAITS[self.objective]

    @property
    def has_generator_network(self) -> bool:
        """Whether there is a generator network."""
        return needs_generator_network(self.objective, self.generator)

    def take_special_tokens(self, tokenizer: Any) -> None:
        """Sets `special_token_ids` to those of a tokenizer."""
        self.special_token_ids = [getattr(tokenizer, f"{name}_token_id") for name in ("cls", "sep", "mask")]

    @property
    def num_generator_encoders(self) -> int:
        """How many encoders this kind of generator has; 0 for a kind without a network."""
        return GENERATOR_ENCODERS.get(self.generator, 0)

    @property
    def exports_generator(self) -> bool:
        """Whether the generator network is a stock model, which is saved in a directory of its own. Any other
        generator network is saved only as a part of the joint model."""
        return exports_generator(self.objective, self.generator)

    @property
    def towers(self) -> dict[str, Any]:
        """The configurations of the existing towers, by name."""
        both = {"generator": self.generator_config, "discriminator": self.discriminator_config}
        return {name: config for name, config in both.items() if config is not None}

    def changed(self, **options: Any) -> ElectraRTDConfig:
        """Returns a configuration of the same discriminator with other options. Another objective resets the
        discriminator's weight to its default; adding or removing the generator network resets all options of the
        generator."""
        kept = ["objective", "initializer_range", "mask_probability", "keep_probability", "special_token_ids"]
        if options.get("objective", self.objective) == self.objective:
            kept.append("discriminator_weight")
        names = {name: options.get(name, getattr(self, name)) for name in ("objective", "generator")}
        if needs_generator_network(**names) == self.has_generator_network:
            kept += ["generator_config", *_OF_NETWORK, *_OF_GENERATOR]
        options = {**{name: getattr(self, name) for name in kept}, **options}
        return type(self)(discriminator_config=self.discriminator_config, **options)

    @property
    def _kind(self) -> str:
        """The option that decides whether there is a generator network, as messages show it."""
        return f"generator={self.generator!r}" if self.traits.has_generator else f"objective={self.objective!r}"

    def check(self) -> None:
        """Raises ValueError for options that do not go together. A new model checks its configuration again, since
        fields can be set."""
        refuse_unknown_names(vars(self))
        check_arguments(self, rules=RULES, intervals=INTERVALS, dashes="")
        if not self.has_generator_network:
            check_arguments(self, rules=NO_NETWORK_RULES, dashes="")
            if not self.traits.has_generator:
                check_arguments(self, rules=NO_GENERATOR_RULES, dashes="")
            if self.sharing != "none":
                raise ValueError(f"sharing={self.sharing} needs two networks: {self._kind} has no generator network.")
        self._check_towers()

    def refuse_altered_draws(self) -> None:
        """Raises ValueError for an option with which samples are not drawn from the generator's softmax as it is."""
        check_arguments(self, rules=DRAW_RULES, dashes="")

    def _check_towers(self) -> None:
        """Raises ValueError for towers that do not fit the other options."""
        for name, config in self.towers.items():
            refuse_other_networks(config)
            detects = name == "discriminator" and self.traits.predicts == "replaced"
            if detects and detector_class(config.model_type) is None:
                raise ValueError(
                    f"transformers has no model of the family {config.model_type!r} that classifies tokens. "
                    f"Take {', '.join(FAMILIES)}."
                )
            for (option, value), families in _FAMILIES.items():
                if getattr(self, option) == value and config.model_type not in families:
                    raise ValueError(
                        f"{option}={value!r} is for the families {', '.join(families)}, and the {name} is "
                        f"{config.model_type!r}."
                    )
        if not self.has_generator_network:
            return
        generator = self.generator_config
        discriminator = self.discriminator_config
        if generator.model_type != discriminator.model_type and self.sharing not in ("none", "word"):
            raise ValueError(
                f"sharing={self.sharing!r} needs towers of one family, and these are {generator.model_type} and "
                f"{discriminator.model_type}. Take sharing='word' or 'none'."
            )
        for size in SHARED_SIZES[self.sharing]:
            ours = size_of(generator, size)
            theirs = size_of(discriminator, size)
            if ours != theirs:
                name = size if hasattr(discriminator, size) else "hidden_size"
                raise ValueError(
                    f"sharing={self.sharing!r} needs the same {name} in both towers, but the generator has {ours} and "
                    f"the discriminator {theirs}. Take matching towers"
                    f"{'' if size == 'vocab_size' else ', or sharing=none'}."
                )
        width = discriminator.hidden_size
        if generator.hidden_size > width and not self.freeze_generator:
            raise ValueError(
                f"The generator has a hidden_size of {generator.hidden_size}: one that learns may be as wide as the "
                f"discriminator. Take at most {width}, or freeze it (freeze_generator=True, sharing='none')."
            )

    @classmethod
    def from_size(cls, size: str, **overrides: Any) -> ElectraRTDConfig:
        """Returns the configuration of a named size (`hf_electra_rtd.base.recipes`).

        `overrides` may be fields of this class; fields of `ElectraConfig`, which are applied to the discriminator
        before the generator is derived from it; and `generator_hidden_size` and `generator_layers`, the generator's
        width and depth as fractions of the discriminator's (with the names and meaning of google-research/electra).
        """
        named = get_size(size)
        own = {f.name for f in dataclasses.fields(cls)} - {"generator_config", "discriminator_config"}
        tower = {f.name for f in dataclasses.fields(ElectraConfig)} - own | {"initializer_range"}
        fractions = {"generator_hidden_size": named.generator_hidden_size, "generator_layers": 1.0}
        refuse_unknown(overrides, own | tower | fractions.keys(), f"from_size({size!r})")
        refuse_unknown_names(overrides)
        values = {**named.architecture, **fractions, **overrides}
        discriminator = ElectraConfig(**{key: value for key, value in values.items() if key in tower})
        # One transformer (`sharing="all"`), or no generator network, needs no fractions; those that are given must be
        # valid.
        generator = None
        needed = needs_generator_network(**values) and values.get("sharing") != "all"
        if needed or fractions.keys() & overrides.keys():
            generator = derive_generator_config(discriminator, *(values[name] for name in fractions))
        options = {key: value for key, value in values.items() if key in own}
        return cls(generator_config=generator, discriminator_config=discriminator, **options)

    def get_text_config(self, *args: Any, **kwargs: Any) -> PreTrainedConfig:
        """Returns the discriminator's configuration, in which `transformers` looks for the vocabulary size."""
        return self.discriminator_config
