"""What a model and a run cost: parameters, and floating-point operations in two conventions.

`model_flops`: matrix products only, embeddings are look-ups, a backward pass costs two forward passes; divided by time
and the peak of the device, it gives the share of the hardware that was used (PaLM, arXiv 2204.02311, appendix B).

`paper_flops`: google-research/electra flops_computation.py, for comparison with the paper's Table 1: a backward pass
costs one forward pass, embedding look-ups count as dense products, and dropout, LayerNorm, softmax and activations
count too.

The two must not be mixed. Both count what is computed: towers that share tensors run one after the other all the
same, a frozen generator has no backward pass, and one that samples without dropout runs forward once more.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class ParameterCount:
    """Numbers of parameters."""

    generator: int  # 0 without a network
    discriminator: int
    head: int  # of the objective, not exported
    total: int  # shared ones counted once

    @property
    def shared(self) -> int:
        """What both towers have in common."""
        return self.generator + self.discriminator + self.head - self.total

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


def count_parameters(model: Any) -> ParameterCount:
    """Parameters of a joint model (`parameters()` yields a tied tensor once)."""
    parts = (model.generator, model.discriminator, model.main_head, model)
    return ParameterCount(
        *(0 if part is None else sum(parameter.numel() for parameter in part.parameters()) for part in parts)
    )


# ---- Matrix products only ----


def model_flops(config: Any, num_sequences: int, max_seq_length: int, num_masked: int) -> int:
    """FLOPs of training on `num_sequences` sequences, in matrix products.

    Args:
        config: of the joint model. The vocabulary projection runs only on tokens that a tower predicts.
        num_sequences: over all steps.
        max_seq_length: L.
        num_masked: K, masked tokens a sequence.
    """
    main = config.discriminator_config
    predicting = {"masked": num_masked, "all": max_seq_length, "replaced": 0}[config.traits.predicts]
    judging = {"masked": 0, "all": max_seq_length, "replaced": max_seq_length}[config.traits.predicts]
    forward = max_seq_length * _encoder_products(main, max_seq_length)
    forward += predicting * _masked_lm_products(main) + judging * (2 * main.hidden_size**2 + 2 * main.hidden_size)
    total = 3 * forward
    if config.has_generator_network:
        generator = config.generator_config
        forward = max_seq_length * _encoder_products(generator, max_seq_length) + num_masked * _masked_lm_products(
            generator
        )
        total += _generator_passes(config, backward=2) * forward
    return num_sequences * total


def _generator_passes(config: Any, backward: int) -> int:
    """Forward passes of the generator in a step, its backward pass counted as `backward` of them."""
    return (1 if config.freeze_generator else 1 + backward) + int(config.samples_in_second_pass)


def _masked_lm_products(config: Any) -> int:
    """Matrix products of a masked-language-model head for one token."""
    return int(2 * config.hidden_size * config.embedding_size + 2 * config.embedding_size * config.vocab_size)


def _encoder_products(config: Any, max_seq_length: int) -> int:
    """Matrix products of an encoder for one token of a sequence."""
    hidden = config.hidden_size
    layer = 8 * hidden**2 + 4 * hidden * config.intermediate_size + 4 * max_seq_length * hidden
    projection = 2 * config.embedding_size * hidden if config.embedding_size != hidden else 0
    return config.num_hidden_layers * layer + projection


# ---- The paper's convention ----

# Operations an element (flops_computation.py, top of file).
_DROPOUT, _LAYER_NORM, _ACTIVATION, _SOFTMAX = 4, 5, 8, 5


def paper_flops(config: Any, num_sequences: int, max_seq_length: int, masked_share: float = 0.15625) -> float:
    """FLOPs of training on `num_sequences` sequences as the paper counts them.

    Args:
        config: of the joint model.
        num_sequences: over all steps.
        max_seq_length: L.
        masked_share: of the tokens that reach a masked-language-model head; the paper's script takes 20 of 128.
    """
    main = config.discriminator_config
    predicting = {"masked": masked_share, "all": 1.0, "replaced": 0.0}[config.traits.predicts]
    judging = {"masked": 0.0, "all": 1.0, "replaced": 1.0}[config.traits.predicts]
    main_row = _paper_encoder(main, max_seq_length)
    main_row += (predicting * _paper_masked_lm_head(main) + judging * _paper_binary_head(main)) * max_seq_length
    total = 2.0 * main_row
    if config.has_generator_network:
        generator = config.generator_config
        row = (
            _paper_encoder(generator, max_seq_length)
            + masked_share * _paper_masked_lm_head(generator) * max_seq_length
        )
        total += _generator_passes(config, backward=1) * row
    return num_sequences * total


def _paper_encoder(config: Any, max_seq_length: int) -> float:
    hidden, inner, embedding = config.hidden_size, config.intermediate_size, config.embedding_size
    heads = config.num_attention_heads
    attention = (
        3 * (2 * hidden * hidden + hidden)  # queries, keys, values and their biases
        + 2 * (2 * hidden * max_seq_length)  # scores, and the average of the values
        + (_SOFTMAX + _DROPOUT + 1) * max_seq_length * heads  # with the division by sqrt(d)
        + 2 * hidden * hidden
        + hidden  # output and its bias
    )
    feed_forward = 4 * hidden * inner + (_ACTIVATION + 1) * inner + hidden
    after_each = (_DROPOUT + 1 + _LAYER_NORM) * hidden  # dropout, residual, LayerNorm
    look_up = (
        2 * embedding * config.vocab_size + 2 * embedding * (max_seq_length + config.type_vocab_size) + 2 * embedding
    )
    look_up += (_LAYER_NORM + _DROPOUT) * embedding
    if embedding != hidden:
        look_up += 2 * hidden * embedding + hidden
    return max_seq_length * (config.num_hidden_layers * (attention + feed_forward + 2 * after_each) + look_up)


def _paper_masked_lm_head(config: Any) -> float:
    embedding, vocabulary = config.embedding_size, config.vocab_size
    dense = 2 * config.hidden_size * embedding + (1 + _ACTIVATION + _LAYER_NORM) * embedding
    return dense + 2 * embedding * vocabulary + (_SOFTMAX + 2) * vocabulary


def _paper_binary_head(config: Any) -> float:
    return 2 * config.hidden_size**2 + (1 + _ACTIVATION + 2) * config.hidden_size
