"""The flags that choose the networks of a run, and the checks of the pair that is made from them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from transformers import PreTrainedTokenizerBase

from hf_electra_rtd.base.cli import Rule, check_arguments, flag
from hf_electra_rtd.base.recipes import SIZES, closest_size, continued_recipe, get_size, of_length
from hf_electra_rtd.data.tokenization import has_tokenizer
from hf_electra_rtd.encoders.families import max_length
from hf_electra_rtd.pair.configuration_electra_rtd import (
    GENERATOR_NAMES,
    OBJECTIVE_TRAITS,
    OPTIONS,
    SHARED_SIZES,
)
from hf_electra_rtd.pair.initialization import INITIALIZATIONS
from hf_electra_rtd.pair.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.training.plan import (
    ENCODER,
    FIRST_LAYERS,
    FRACTIONS,
    NEW,
    PairPlan,
    make_pair,
    plan_pair,
)


logger = logging.getLogger(__name__)

# Flags that name an existing model or configuration.
SOURCES = ("continue_from", "model_config", "generator", "discriminator")
BACKBONES = ("backbone", "generator_backbone")
_DECIDES = "It decides which networks there are."
RULES = (
    Rule("backbone", _DECIDES, excludes=("continue_from", "model_config", "discriminator")),
    Rule("continue_from", _DECIDES, excludes=("model_config", "generator", "discriminator")),
    Rule("model_config", _DECIDES, excludes=("generator", "discriminator")),
    Rule("generator", _DECIDES, excludes=FRACTIONS),
    *(
        Rule(
            name,
            "It is for new networks of a named size.",
            excludes=("backbone", "continue_from", "model_config", "discriminator"),
        )
        for name in ("dropout", "initializer_range")
    ),
    Rule("generator_backbone", _DECIDES, needs=("backbone",), excludes=("generator", *FRACTIONS)),
    Rule("from_scratch", "", needs=("backbone",)),
    Rule("new_generator", "", needs=("continue_from",)),
    Rule("extend_vocabulary", "", needs=("continue_from",)),
)
# Added where a continued pair keeps its generator.
KEPT_RULES = (Rule("continue_from", "They are for a new generator: add --new_generator.", excludes=FRACTIONS),)


@dataclass
class ModelArguments:
    """More about the networks.

    The flags that choose the networks and how they work together.
    """

    size: str = flag("tiny", f"Architecture and recipe: {', '.join(SIZES)}.")
    model_config: str | None = flag(None, "An architecture of your own: a config.json of a pair, or its directory.")
    generator: str | None = flag(None, "Directory or Hub id of a trained generator; frozen, it may be any masked LM.")
    discriminator: str | None = flag(None, "Directory or Hub id of a trained discriminator.")
    backbone: str | None = flag(None, "Encoder of any family: a config.json, or a directory or Hub id with weights.")
    generator_backbone: str | None = flag(
        None, "With --backbone: the encoder of the generator. Default: a smaller one."
    )
    from_scratch: bool = flag(False, "With --backbone: use only the configuration, and initialize new networks.")
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
    disallow_correct: bool | None = flag(None, "Never sample the original token. Default: false.")
    freeze_generator: bool | None = flag(None, "Train only the discriminator; nothing is shared.")
    # Only for new networks of a named size.
    dropout: float | None = flag(
        None, "Dropout in hidden layers and attention. Default: 0.1; 0 for tiny and mini.", "[0, 1)"
    )
    initializer_range: float | None = flag(
        None, "Standard deviation of new weights. Default: 0.02; 0.06 for tiny, 0.04 for mini.", "(0, inf)"
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
        None, "Weights of new networks: stock or neighbours (default for tiny and mini).", choices=INITIALIZATIONS
    )
    attn_implementation: str | None = flag(None, "Attention implementation, as in transformers. Default: sdpa.")

    def __post_init__(self) -> None:
        check_arguments(self, rules=RULES if self.new_generator else (*RULES, *KEPT_RULES))
        if self.initialization is None and not self.given((*SOURCES, "backbone")):
            self.initialization = get_size(self.size).initialization

    def given(self, names: Iterable[str]) -> dict[str, Any]:
        """Returns the values of the named flags that were given."""
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    @property
    def options(self) -> dict[str, Any]:
        """The options of `ElectraRTDConfig` that were given, under its names."""
        options: dict[str, Any] = {"sharing": "none"} if self.freeze_generator else {}
        options |= self.given(name for name in OPTIONS if name != "generator")  # this flag names a model
        if self.generator_type is not None:
            options["generator"] = self.generator_type
        return options

    @property
    def architecture(self) -> dict[str, Any]:
        """The fields of `ElectraConfig` that were given, under its names."""
        architecture = self.given(("initializer_range",))
        if self.dropout is not None:
            architecture |= {"hidden_dropout_prob": self.dropout, "attention_probs_dropout_prob": self.dropout}
        return architecture

    # How the pair is made, according to the configurations of the models that the flags name.
    plan = cached_property(plan_pair)

    @property
    def tokenizer_source(self) -> str | None:
        """The directory or Hub id whose tokenizer is used if no flag names another. Raises ValueError for weights
        without a tokenizer."""
        source = next(filter(has_tokenizer, self.plan.tokenizers), None)
        if source is None and self.plan.is_trained:
            raise ValueError(
                f"There are weights without a tokenizer ({', '.join(self.plan.tokenizers)}). Name the one that they "
                "were trained with (--tokenizer)."
            )
        return source


def recipe_defaults(given: Mapping[str, Any]) -> tuple[dict[str, Any], PairPlan | None]:
    """Returns the defaults that follow from the given flags (`cli.given_flags`): a recipe for the length of the run.
    With `--continue_from` or `--backbone`, also returns the plan of the pair, so that it need not be made again; the
    recipe is then that of the size that the pair has or is closest to, or of a `--size` given with `--backbone`.
    Raises ValueError for an unknown size, for `--size` with `--continue_from`, and for networks that do not exist."""
    if given["continue_from"] is not None and given["size"] is not None:
        raise ValueError("--continue_from decides which networks there are. Leave --size out.")
    plan = None
    if given["continue_from"] is not None or given["backbone"] is not None:
        names = (field.name for field in fields(ModelArguments))
        plan = ModelArguments(**{name: given[name] for name in names if given[name] is not None}).plan
    recipe = of_length(_recipe(given, plan), given["max_steps"], given["num_train_epochs"])
    if given["objective"] == "mlm" or given["generator_type"] == "uniform" or given["freeze_generator"]:
        recipe.pop("generator_learning_rate", None)  # no generator learns
    return recipe, plan


def _recipe(given: Mapping[str, Any], plan: PairPlan | None) -> dict[str, Any]:
    if plan is None:
        return dict(get_size(given["size"] or ModelArguments.size).pretraining)
    if given["continue_from"] is not None:
        return {"size": plan.size, **continued_recipe(plan.size)}
    main = plan.config.discriminator_config
    size = given["size"] or closest_size(main.hidden_size, main.num_hidden_layers)
    if plan.discriminator.kind == ENCODER:
        return {"size": size, **continued_recipe(size)}
    return {"size": size, **get_size(size).pretraining}


def build_model(
    arguments: ModelArguments, tokenizer: PreTrainedTokenizerBase, max_seq_length: int
) -> ElectraForRTDPretraining:
    """Makes the pair that the flags describe. Raises ValueError for flags that contradict each other, for networks
    that do not fit the tokenizer, the sequence length or each other, and for an attention implementation that is
    unknown or not installed."""
    plan = arguments.plan
    towers = plan.config.towers
    main = plan.config.discriminator_config
    fills = plan.config.generator_config
    if plan.config.freeze_generator and plan.generator.kind in (NEW, FIRST_LAYERS, ENCODER):
        raise ValueError(
            "--freeze_generator would freeze an untrained generator, or one whose head may be untrained. Name a "
            "trained one (--generator)."
        )
    if not plan.is_trained:
        arguments.initialization = arguments.initialization or "stock"
    elif arguments.initialization not in (None, "stock"):
        raise ValueError("--initialization is for new networks. Leave it out if trained ones are named.")
    if arguments.continue_from is not None:
        shapes = (f"{name}: {own.num_hidden_layers} layers of {own.hidden_size}" for name, own in towers.items())
        logger.info(
            f"Continuing from {arguments.continue_from} (recipe of {plan.size}, sharing: {plan.config.sharing}):"
        )
        logger.info(f"  {', '.join(shapes)}.")
        width = main.hidden_size
        # In other families, networks that share embeddings must be equally wide.
        if main.model_type == "electra" and plan.config.sharing != "all" and fills and fills.hidden_size >= width:
            logger.warning(
                f"The generator is as wide as the discriminator ({width}). So is that of the released small pair, and "
                "its card warns of pre-training with it. --new_generator makes one of a quarter of the width."
            )
    model = make_pair(plan, tokenizer, max_seq_length)
    for name, config in model.config.towers.items():
        if config.vocab_size != len(tokenizer):
            raise ValueError(
                f"The {name} has {config.vocab_size} tokens, the tokenizer {len(tokenizer)}. Name the tokenizer that "
                "belongs to it (--tokenizer)."
            )
        positions = max_length(config)
        if positions < max_seq_length:
            raise ValueError(
                f"The {name} has {positions} positions, fewer than --max_seq_length {max_seq_length}. "
                f"Take at most {positions}."
            )
    if arguments.attn_implementation is not None:
        try:
            model.set_attn_implementation(arguments.attn_implementation)
        except (ImportError, ValueError) as error:
            raise ValueError(f"--attn_implementation {arguments.attn_implementation}: {error}") from error
    return model
