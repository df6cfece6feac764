"""What a model and a run cost: parameters, and floating-point operations in two conventions, not to be mixed.

`model_flops`: matrix products only; embeddings are look-ups, and a backward pass costs two forward passes. Divided by
time and the peak of the device, they give the share of the hardware that was used (PaLM, arXiv 2204.02311, appendix
B). For families with BERT's layers they come from formulas, for others from a forward pass of the stock model without
data.

`paper_flops`: google-research/electra flops_computation.py, to compare with the paper's Table 1. A backward pass costs
one forward pass, look-ups are dense products, and dropout, LayerNorm, softmax and activations count, too.

What is computed counts: towers that share tensors run one after the other all the same, a frozen generator has no
backward pass, and one that samples without dropout runs forward once more.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple


# Families of encoders with layers as BERT has them: what the formulas here hold for.
COUNTED = ("bert", "camembert", "distilbert", "electra", "roberta", "xlm-roberta")
_HEAD_LENGTH = 8  # of sequences in which heads, that see each token alone, are counted
_COUNTS: dict[tuple[str, int, type[Any], str], tuple[int, int]] = {}


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
    """Parameters of a joint model's `generator` (0 without one), `discriminator` and `head` (what it learns with and
    is not exported), and the `total`, with shared ones counted once."""
    parts = {
        "generator": model.generator,
        "discriminator": model.discriminator,
        "head": model.main_head,
        "total": model,
    }
    return {
        name: 0 if part is None else sum(parameter.numel() for parameter in part.parameters())
        for name, part in parts.items()
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
    return num_sequences * float(_of_sequence(config, max_seq_length, masked_share * max_seq_length, _PAPER))


class _Convention(NamedTuple):
    """Operations of the parts of a tower, from its configuration."""

    encoder: Callable[[Any, int], Any]  # for a sequence of that length
    masked_lm_head: Callable[[Any, int], Any]  # for a token, from states of that width
    binary_head: Callable[[Any, bool], Any]  # for a token; ELECTRA's, or a stock one with two labels
    backward: int  # what a backward pass costs, in forward passes


def _of_sequence(config: Any, length: int, num_masked: float, convention: _Convention) -> Any:
    main = config.discriminator_config
    generator = config.generator_config
    head = convention.masked_lm_head
    predicts = config.traits.predicts
    forward = convention.encoder(main, length)
    if predicts != "replaced":  # else its family may have no such head
        forward += (num_masked if predicts == "masked" else length) * head(main, main.hidden_size)
    if predicts != "masked":  # of "all" tokens the copy mechanism, which is as ELECTRA's head
        forward += length * convention.binary_head(main, predicts == "replaced" and main.model_type != "electra")
    total = (1 + convention.backward) * forward
    if config.has_generator_network:
        passes = 1 if config.freeze_generator else 1 + convention.backward
        encoders = config.num_generator_encoders
        predicted = num_masked if encoders == 1 else length
        encoding = encoders * convention.encoder(generator, length)
        total += passes * (encoding + predicted * head(generator, encoders * generator.hidden_size))
        if encoders > 1:  # those learn at every token, and the masked ones are drawn from their states
            total += num_masked * head(generator, 0)
    return total


def _widths(config: Any) -> tuple[int, int, int]:
    """Of the layers, inside their feed-forward networks, and of the embeddings."""
    inner = config.hidden_dim if config.model_type == "distilbert" else config.intermediate_size
    return config.hidden_size, inner, getattr(config, "embedding_size", config.hidden_size)


def _encoder(config: Any, length: int) -> int:
    if config.model_type not in COUNTED:
        return _count(config, "MaskedLM", length)[0]
    hidden, inner, embedding = _widths(config)
    layer = 8 * hidden**2 + 4 * hidden * inner + 4 * length * hidden
    projection = 2 * embedding * hidden if embedding != hidden else 0
    return int(length * (config.num_hidden_layers * layer + projection))


def _masked_lm_head(config: Any, width: int) -> int:
    if config.model_type not in COUNTED:
        return _count(config, "MaskedLM", _HEAD_LENGTH)[1] // _HEAD_LENGTH
    return int(2 * _widths(config)[2] * (width + config.vocab_size))


def _binary_head(config: Any, is_stock: bool) -> int:
    if is_stock:
        return _count(config, "TokenClassification", _HEAD_LENGTH)[1] // _HEAD_LENGTH
    return int(2 * config.hidden_size * (config.hidden_size + 1))


def _count(config: Any, task: str, length: int) -> tuple[int, int]:
    """Matrix products for one sequence of that length: of the encoder of the stock model `AutoModelFor...` with that
    configuration, attention between all places included, and of its head with two labels."""
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

    key = (task, length, type(config), repr(vars(config)))
    if key in _COUNTS:
        return _COUNTS[key]
    config = copy.deepcopy(config)
    config.num_labels = 2
    with torch.no_grad(), no_init_weights():
        try:
            with FakeTensorMode():  # shapes without numbers: no memory, no time
                _COUNTS[key] = count()
        except DataDependentOutputException:  # Longformer and XLM look at numbers
            _COUNTS[key] = count()
    return _COUNTS[key]


# Operations an element in the paper's convention (flops_computation.py, top of file).
_DROPOUT = 4
_LAYER_NORM = 5
_ACTIVATION = 8
_SOFTMAX = 5


def _paper_encoder(config: Any, length: int) -> int:
    hidden, inner, embedding = _widths(config)
    layer = 8 * hidden**2 + 4 * hidden * inner + 4 * length * hidden  # the products
    layer += 5 * hidden + (_ACTIVATION + 1) * inner  # biases
    layer += (_SOFTMAX + _DROPOUT + 1) * length * config.num_attention_heads  # with the division by sqrt(d)
    layer += 2 * (_DROPOUT + 1 + _LAYER_NORM) * hidden  # with the residual
    look_up = 2 * embedding * (config.vocab_size + length + getattr(config, "type_vocab_size", 0) + 1)
    look_up += (_LAYER_NORM + _DROPOUT) * embedding
    if embedding != hidden:
        look_up += 2 * hidden * embedding + hidden
    return int(length * (config.num_hidden_layers * layer + look_up))


def _paper_masked_lm_head(config: Any, width: int) -> int:
    dense = _widths(config)[2] * (2 * width + 1 + _ACTIVATION + _LAYER_NORM)
    return int(dense + config.vocab_size * (2 * _widths(config)[2] + _SOFTMAX + 2))


def _paper_binary_head(config: Any, is_stock: bool) -> int:
    return int(config.hidden_size * (4 if is_stock else 2 * config.hidden_size + _ACTIVATION + 3))


_PRODUCTS = _Convention(_encoder, _masked_lm_head, _binary_head, backward=2)
_PAPER = _Convention(_paper_encoder, _paper_masked_lm_head, _paper_binary_head, backward=1)
