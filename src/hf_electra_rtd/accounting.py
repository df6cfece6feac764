"""What a model and a run cost: parameters, and floating-point operations in two conventions.

`model_flops`: matrix products only, embeddings are look-ups, a backward pass costs two forward passes; divided by time
and the peak of the device, it gives the share of the hardware that was used (PaLM, arXiv 2204.02311, appendix B).

`paper_flops`: google-research/electra flops_computation.py, for comparison with the paper's Table 1: a backward pass
costs one forward pass, embedding look-ups count as dense products, and dropout, LayerNorm, softmax and activations
count too.

The two must not be mixed. Configurations are `transformers.ElectraConfig`s of the towers.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class ParameterCount:
    """Numbers of parameters; `total` counts what the towers share once."""

    generator: int
    discriminator: int
    total: int

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


def count_parameters(model: Any) -> ParameterCount:
    """Parameters of the towers of a pair and of both together (`parameters()` yields a tied tensor once)."""
    return ParameterCount(
        generator=sum(parameter.numel() for parameter in model.generator.parameters()),
        discriminator=sum(parameter.numel() for parameter in model.discriminator.parameters()),
        total=sum(parameter.numel() for parameter in model.parameters()),
    )


# ---- Matrix products only ----


def model_flops(generator: Any, discriminator: Any, rows: int, row_length: int, num_masked: int) -> int:
    """FLOPs of training on `rows` rows: three times the forward pass's matrix products.

    Args:
        generator: configuration; its vocabulary projection runs on the masked tokens alone.
        discriminator: configuration.
        rows: rows seen in training.
        row_length: L, tokens a row.
        num_masked: K, masked tokens a row.
    """
    head = 2 * generator.hidden_size * generator.embedding_size + 2 * generator.embedding_size * generator.vocab_size
    binary_head = 2 * discriminator.hidden_size**2 + 2 * discriminator.hidden_size
    forward = (
        row_length
        * (_encoder_products(generator, row_length) + _encoder_products(discriminator, row_length) + binary_head)
        + num_masked * head
    )
    return 3 * rows * forward


def _encoder_products(config: Any, row_length: int) -> int:
    """Matrix products of an encoder for one token of a row."""
    hidden = config.hidden_size
    layer = 8 * hidden**2 + 4 * hidden * config.intermediate_size + 4 * row_length * hidden
    projection = 2 * config.embedding_size * hidden if config.embedding_size != hidden else 0
    return config.num_hidden_layers * layer + projection


# ---- The paper's convention ----

# Operations an element (flops_computation.py, top of file).
_DROPOUT, _LAYER_NORM, _ACTIVATION, _SOFTMAX = 4, 5, 8, 5


def paper_flops(
    generator: Any, discriminator: Any, rows: int, row_length: int, output_share: float = 0.15625
) -> float:
    """FLOPs of training on `rows` rows as the paper counts them.

    Args:
        generator, discriminator: configurations.
        rows: rows seen in training.
        row_length: L, tokens a row.
        output_share: of the tokens that reach the generator's softmax; the paper's script takes 20 of 128.
    """
    generator_row = (
        _paper_encoder(generator, row_length) + output_share * _paper_masked_lm_head(generator) * row_length
    )
    discriminator_row = _paper_encoder(discriminator, row_length) + _paper_binary_head(discriminator) * row_length
    return 2.0 * rows * (generator_row + discriminator_row)


def _paper_encoder(config: Any, row_length: int) -> float:
    hidden, inner, embedding = config.hidden_size, config.intermediate_size, config.embedding_size
    heads = config.num_attention_heads
    attention = (
        3 * (2 * hidden * hidden + hidden)  # queries, keys, values and their biases
        + 2 * (2 * hidden * row_length)  # scores, and the average of the values
        + (_SOFTMAX + _DROPOUT + 1) * row_length * heads  # with the division by sqrt(d)
        + 2 * hidden * hidden
        + hidden  # output and its bias
    )
    feed_forward = 4 * hidden * inner + (_ACTIVATION + 1) * inner + hidden
    after_each = (_DROPOUT + 1 + _LAYER_NORM) * hidden  # dropout, residual, LayerNorm
    look_up = 2 * embedding * config.vocab_size + 2 * embedding * (row_length + config.type_vocab_size) + 2 * embedding
    look_up += (_LAYER_NORM + _DROPOUT) * embedding
    if embedding != hidden:
        look_up += 2 * hidden * embedding + hidden
    return row_length * (config.num_hidden_layers * (attention + feed_forward + 2 * after_each) + look_up)


def _paper_masked_lm_head(config: Any) -> float:
    embedding, vocabulary = config.embedding_size, config.vocab_size
    dense = 2 * config.hidden_size * embedding + (1 + _ACTIVATION + _LAYER_NORM) * embedding
    return dense + 2 * embedding * vocabulary + (_SOFTMAX + 2) * vocabulary


def _paper_binary_head(config: Any) -> float:
    return 2 * config.hidden_size**2 + (1 + _ACTIVATION + 2) * config.hidden_size
