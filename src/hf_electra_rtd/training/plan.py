"""How the pair of a run is made: of each network, where its weights come from."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from hf_electra_rtd.base.recipes import closest_size
from hf_electra_rtd.data.tokenization import has_tokenizer, refuse_other_tokens
from hf_electra_rtd.encoders.families import masked_lm_class, resize_vocabulary
from hf_electra_rtd.pair.configuration_electra_rtd import ElectraRTDConfig
from hf_electra_rtd.pair.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.pair.objectives import OBJECTIVES
from hf_electra_rtd.pair.sharing import SHARING
from hf_electra_rtd.pair.towers import fit_vocabulary, load_encoder, load_tower, share


NEW = "new"  # but for what it takes from the other network, where that one is trained
WHOLE = "whole"  # of a place, with the head
ENCODER = "encoder"  # of a place, with the head of a masked language model if it has one
FIRST_LAYERS = "first layers"  # likewise, of the other network's place: as many as are configured
PAIR = "pair"  # of the joint model that the plan names


@dataclass(frozen=True)
class Weights:
    """Where the weights of a network come from."""

    kind: str = NEW
    place: str | None = None  # directory or Hub id, but for `NEW` and `PAIR`


@dataclass
class PairPlan:
    """How a pair is made."""

    config: ElectraRTDConfig
    generator: Weights = Weights()
    discriminator: Weights = Weights()
    pair: str | None = None  # directory or Hub id of a joint model
    taken: str | None = None  # the mode of sharing by which a new network begins as the trained one; None: the pair's
    first: str = "discriminator"  # the network that is made first: random numbers are drawn in this order
    fits: bool = False  # whether new networks are made for the tokenizer
    grows: bool = False  # whether they get as many positions as the sequences have
    tokenizers: tuple[str, ...] = ()  # places that may hold the tokenizer, best first
    backbones: tuple[str, ...] = ()  # of the arguments `backbone` and `generator_backbone`, those that have weights

    @property
    def is_trained(self) -> bool:
        """Whether any weights are there before the run."""
        return (self.generator.kind, self.discriminator.kind) != (NEW, NEW)

    @property
    def has_trained_generator(self) -> bool:
        """Whether its generator has learnt to fill masked tokens."""
        return self.generator.kind not in (NEW, FIRST_LAYERS)

    @property
    def size(self) -> str:
        """The named size that the pair is, or is closest to."""
        main = self.config.discriminator_config
        fills = self.config.generator_config
        share = fills.hidden_size / main.hidden_size if fills else 0.0
        return closest_size(main.hidden_size, main.num_hidden_layers, share)


def make_pair(plan: PairPlan, tokenizer: PreTrainedTokenizerBase, max_seq_length: int) -> ElectraForRTDPretraining:
    """Makes the pair of a plan. Raises ValueError for weights that cannot be loaded whole, that were trained with
    another tokenizer, or that do not fit each other."""
    config = plan.config
    for name, network in config.towers.items():
        if getattr(plan, name).kind == NEW and plan.fits:
            fit_vocabulary(network, tokenizer)
            if plan.grows:
                network.max_position_embeddings = max(network.max_position_embeddings, max_seq_length)
    if plan.pair is None and not plan.is_trained:
        return ElectraForRTDPretraining(config)
    saved: Any = None
    if plan.pair is not None:
        refuse_other_tokens(plan.pair, tokenizer, f"The pair {plan.pair}")
        saved = ElectraForRTDPretraining.from_pretrained(plan.pair, dtype=torch.float32)
        if saved.config.sharing == config.sharing and plan.generator.kind == PAIR:
            return _with_head(ElectraForRTDPretraining(config, saved.generator, saved.discriminator), saved)
    names = ["discriminator", "generator"] if config.exports_generator else ["discriminator"]
    networks = {name: _make_network(plan, name, tokenizer, saved) for name in sorted(names, key=plan.first.__ne__)}
    if config.exports_generator:
        _begin_alike(plan, **networks)
        share(config.sharing, **networks)
    pair = ElectraForRTDPretraining(config, **networks)
    return pair if saved is None else _with_head(pair, saved)


def _make_network(plan: PairPlan, name: str, tokenizer: PreTrainedTokenizerBase, saved: Any) -> Any:
    """The generator or the discriminator of a plan; `saved` is its joint model."""
    weights: Weights = getattr(plan, name)
    config = plan.config.towers[name]
    is_main = name == "discriminator"
    find_class: Any = OBJECTIVES[plan.config.objective].tower_class if is_main else masked_lm_class
    model_class = find_class(config.model_type)
    if weights.kind == NEW:
        return model_class(config)
    if weights.kind == PAIR:
        # Copies: what was one tensor in both need not be one any more.
        return copy.deepcopy(saved.native_discriminator() if is_main else saved.generator)
    place = str(weights.place)
    if weights.kind in (ENCODER, FIRST_LAYERS):
        network = load_encoder(place, config)
    else:
        network = load_tower(model_class, place, config=config)
    if has_tokenizer(place):
        refuse_other_tokens(place, tokenizer, f"The {name} {place}")
        # Rows that stand for no token, by which released models round the number up: a generator could sample them.
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
    """Gives a new network what it shares with a trained one."""
    if plan.generator.kind == NEW:
        new = generator.base_model
        trained = discriminator.base_model
    elif plan.discriminator.kind == NEW:
        new = discriminator.base_model
        trained = generator.base_model
    else:
        return
    for mine, other in SHARING[plan.taken or plan.config.sharing]().starting_pairs(new, trained):
        new.get_parameter(mine).copy_(trained.get_parameter(other))


def _with_head(pair: Any, saved: Any) -> Any:
    """The pair with the head that lies beside the networks of a joint model, where both have one of the same kind."""
    if pair.main_head is not None and type(pair.main_head) is type(saved.main_head):
        pair.main_head.load_state_dict(saved.main_head.state_dict())
    return pair
