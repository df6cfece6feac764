"""What a model and a run cost: parameters, and floating-point operations in two conventions.

`model_flops`: matrix products only, embeddings are look-ups, a backward pass costs two forward passes; divided by time
and the peak of the device, it gives the share of the hardware that was used (PaLM, arXiv 2204.02311, appendix B). For
families with BERT's layers by formulas, for others counted in a forward pass of the stock model without data.

`paper_flops`: google-research/electra flops_computation.py, for comparison with the paper's Table 1: a backward pass
costs one forward pass, embedding look-ups count as dense products, and dropout, LayerNorm, softmax and activations
count too. Only for families with BERT's layers.

The two must not be mixed. Both count what is computed: towers that share tensors run one after the other all the
same, a frozen generator has no backward pass, and one that samples without dropout runs forward once more.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple


# Families of encoders with layers as BERT has them: what the formulas here hold for.
COUNTED = ("bert", "camembert", "distilbert", "electra", "roberta", "xlm-roberta")


def format_duration(seconds: float) -> str:
    """A time in units that people read: `42 s`, `5 min 19 s`, `3 h 12 min`, `2.5 days`, `6.8 years`."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if minutes else f"{rest} s"
    days = seconds / 86400
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{days:.1f} days" if days < 365 else f"{days / 365.25:,.1f} years"


def count_parameters(model: Any) -> dict[str, int]:
    """Parameters of a joint model's `generator` (0 without one), `discriminator` and `head` (what either learns with
    and is not exported), and the `total`, with shared ones counted once."""
    heads = (model.main_head, model.generator_head)
    parts = {"generator": (model.generator,), "discriminator": (model.discriminator,), "head": heads}
    return {
        name: sum(parameter.numel() for part in several if part is not None for parameter in part.parameters())
        for name, several in {**parts, "total": (model,)}.items()
    }


def model_flops(config: Any, num_sequences: int, max_seq_length: int, num_masked: int) -> int:
    """FLOPs of training a joint model's `config` on `num_sequences` sequences, over all steps, of `max_seq_length`
    tokens, `num_masked` of them masked. The vocabulary projection runs only on tokens that a tower predicts."""
    return num_sequences * int(_of_sequence(config, max_seq_length, num_masked, _PRODUCTS))


def paper_flops(config: Any, num_sequences: int, max_seq_length: int, masked_share: float = 0.15625) -> float | None:
    """The same as the paper counts; None where a tower's layers are not BERT's. `masked_share`: of the tokens; the
    paper's script takes 20 of 128."""
    if any(tower.model_type not in COUNTED for tower in config.towers.values()):
        return None
    return num_sequences * _of_sequence(config, max_seq_length, masked_share * max_seq_length, _PAPER)


class _Convention(NamedTuple):
    """Operations of the parts of a tower for one token, from its configuration."""

    encoder: Callable[[Any, int], Any]  # in a sequence of that length
    masked_lm_head: Callable[[Any, int], Any]  # from states of that width
    binary_head: Callable[[Any, bool], Any]  # ELECTRA's, or a stock one with two labels
    backward: int  # what a backward pass costs, in forward passes


def _of_sequence(config: Any, length: int, num_masked: float, convention: _Convention) -> Any:
    """Operations of training on one sequence."""
    main, generator = config.discriminator_config, config.generator_config
    predicting = {"masked": num_masked, "all": length, "replaced": 0}[config.traits.predicts]
    judging = 0 if config.traits.predicts == "masked" else length
    forward = length * convention.encoder(main, length)
    if predicting:  # else its family may have no such head
        forward += predicting * convention.masked_lm_head(main, main.hidden_size)
    is_stock = config.traits.predicts == "replaced" and main.model_type != "electra"
    total = (1 + convention.backward) * (forward + judging * convention.binary_head(main, is_stock))
    if config.has_generator_network:
        passes = (1 if config.freeze_generator else 1 + convention.backward) + config.samples_in_second_pass
        encoders, head = config.num_generator_encoders, convention.masked_lm_head
        predicted = num_masked if encoders == 1 else length
        of_encoders = encoders * length * convention.encoder(generator, length)
        total += passes * (of_encoders + predicted * head(generator, encoders * generator.hidden_size))
        if encoders > 1:  # those learn at every token, and the masked ones are drawn from their states
            total += num_masked * head(generator, 0)
    return total


def _widths(config: Any) -> tuple[int, int, int]:
    """Of the layers, inside their feed-forward networks, and of the embeddings."""
    hidden = config.hidden_size
    inner = config.hidden_dim if config.model_type == "distilbert" else config.intermediate_size
    return hidden, inner, getattr(config, "embedding_size", hidden)


# ---- Matrix products only ----


def _encoder_products(config: Any, length: int) -> Fraction:
    if config.model_type not in COUNTED:
        return Fraction(_count(config, "MaskedLM", length)[0], length)
    hidden, inner, embedding = _widths(config)
    layer = 8 * hidden**2 + 4 * hidden * inner + 4 * length * hidden
    projection = 2 * embedding * hidden if embedding != hidden else 0
    return Fraction(config.num_hidden_layers * layer + projection)


def _masked_lm_products(config: Any, width: int) -> Fraction:
    if config.model_type not in COUNTED:
        return Fraction(_count(config, "MaskedLM", _HEAD_LENGTH)[1], _HEAD_LENGTH)
    return Fraction(2 * _widths(config)[2] * (width + config.vocab_size))


def _binary_products(config: Any, is_stock: bool) -> Fraction:
    if is_stock:
        return Fraction(_count(config, "TokenClassification", _HEAD_LENGTH)[1], _HEAD_LENGTH)
    return Fraction(2 * config.hidden_size**2 + 2 * config.hidden_size)


_PRODUCTS = _Convention(_encoder_products, _masked_lm_products, _binary_products, backward=2)
_HEAD_LENGTH = 8  # of sequences in which heads, that see each token alone, are counted


_COUNTS: dict[tuple[str, int, type[Any], str], tuple[int, int]] = {}


def _count(config: Any, task: str, length: int) -> tuple[int, int]:
    """Matrix products for one sequence of that length: of the encoder of the stock model `AutoModelFor...` with that
    configuration, attention between all places included, and of its head with two labels."""
    key = (task, length, type(config), repr(vars(config)))
    if key not in _COUNTS:
        _COUNTS[key] = _count_anew(copy.deepcopy(config), task, length)
    return _COUNTS[key]


def _count_anew(config: Any, task: str, length: int) -> tuple[int, int]:
    import torch
    import transformers
    from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode
    from transformers.initialization import no_init_weights

    def products(module: Any, num_sequences: int) -> int:
        ids = torch.zeros(num_sequences, length, dtype=torch.long)
        with FlopCounterMode(display=False) as counter:
            module(input_ids=ids, attention_mask=torch.ones_like(ids))
        return int(counter.get_total_flops())

    def count() -> tuple[int, int]:
        kind = getattr(transformers, f"AutoModelFor{task}")
        model = kind.from_config(config, attn_implementation="eager").eval().requires_grad_(False)
        # What one sequence more costs: DeBERTa projects its relative positions once for a whole batch.
        whole, encoder = (products(module, 2) - products(module, 1) for module in (model, model.base_model))
        return encoder, whole - encoder

    config.num_labels = 2
    with torch.no_grad(), no_init_weights():
        try:
            with FakeTensorMode():  # shapes without numbers: no memory, no time
                return count()
        except DataDependentOutputException:  # Longformer and XLM look at numbers
            return count()


# ---- The paper's convention ----

# Operations an element (flops_computation.py, top of file).
_DROPOUT, _LAYER_NORM, _ACTIVATION, _SOFTMAX = 4, 5, 8, 5


def _paper_encoder(config: Any, length: int) -> float:
    hidden, inner, embedding = _widths(config)
    heads = config.num_attention_heads
    attention = (
        3 * (2 * hidden * hidden + hidden)  # queries, keys, values and their biases
        + 2 * (2 * hidden * length)  # scores, and the average of the values
        + (_SOFTMAX + _DROPOUT + 1) * length * heads  # with the division by sqrt(d)
        + 2 * hidden * hidden
        + hidden  # output and its bias
    )
    feed_forward = 4 * hidden * inner + (_ACTIVATION + 1) * inner + hidden
    after_each = (_DROPOUT + 1 + _LAYER_NORM) * hidden  # dropout, residual, LayerNorm
    look_up = 2 * embedding * (config.vocab_size + length + getattr(config, "type_vocab_size", 0) + 1)
    look_up += (_LAYER_NORM + _DROPOUT) * embedding
    if embedding != hidden:
        look_up += 2 * hidden * embedding + hidden
    return float(config.num_hidden_layers * (attention + feed_forward + 2 * after_each) + look_up)


def _paper_masked_lm_head(config: Any, width: int) -> float:
    embedding, vocabulary = _widths(config)[2], config.vocab_size
    dense = 2 * width * embedding + (1 + _ACTIVATION + _LAYER_NORM) * embedding
    return dense + 2 * embedding * vocabulary + (_SOFTMAX + 2) * vocabulary


def _paper_binary_head(config: Any, is_stock: bool) -> float:
    if is_stock:
        return 2 * 2 * config.hidden_size
    return 2 * config.hidden_size**2 + (1 + _ACTIVATION + 2) * config.hidden_size


_PAPER = _Convention(_paper_encoder, _paper_masked_lm_head, _paper_binary_head, backward=1)
