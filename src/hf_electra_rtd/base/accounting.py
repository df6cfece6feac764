"""The cost of a model and of a run: parameters, floating-point operations (FLOPs), and readable times.

Only the FLOPs of matrix products count. Embeddings are look-ups and cost none; a backward pass costs two forward
passes. FLOPs divided by the time and by the peak FLOP/s of the device give the share of the hardware that was used
(PaLM, arXiv 2204.02311, appendix B). For families with BERT's layers, formulas give the FLOPs; for other families, a
forward pass of the stock model on tensors without data does.

Every computation counts: towers that share tensors both count, because both run, and a frozen generator has no
backward pass.
"""

from __future__ import annotations

import copy
from typing import Any


# The families with BERT's layers, for which the formulas hold.
_COUNTED = ("bert", "camembert", "distilbert", "electra", "roberta", "xlm-roberta")
_TRAINED = 3  # the cost of a forward and a backward pass, in forward passes
_HEAD_LENGTH = 8  # sequence length for counting heads, whose cost per token does not depend on it
_COUNTS: dict[tuple[str, int, type[Any], str], tuple[int, int]] = {}


def format_duration(seconds: float) -> str:
    """Formats seconds in units that people read: `42 s`, `5 min 19 s`, `3 h 12 min`, `2.5 days`, `6.8 years`."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if minutes else f"{rest} s"
    days = seconds / 86400
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{days:.1f} days" if days < 365 else f"{days / 365.25:,.1f} years"


def count_parameters(model: Any) -> dict[str, int]:
    """Counts the parameters of a joint model: of its `generator` (0 without one), its `discriminator` and its `head`
    (which training needs and exports leave out), and the `total`, in which shared parameters count once."""
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
    """Returns the FLOPs of training a joint model with `config` on `num_sequences` sequences (summed over all steps)
    of `max_seq_length` tokens, of which `num_masked` are masked. The vocabulary projection counts only for tokens that
    a tower predicts."""
    main = config.discriminator_config
    generator = config.generator_config
    predicts = config.traits.predicts
    forward = _encoder(main, max_seq_length)
    if predicts != "replaced":  # a detector's family may have no masked-LM head
        predicted = num_masked if predicts == "masked" else max_seq_length
        forward += predicted * _masked_lm_head(main, main.hidden_size)
    if predicts != "masked":  # for "all", the head of the copy mechanism, which is like ELECTRA's
        is_stock = predicts == "replaced" and main.model_type != "electra"
        forward += max_seq_length * _binary_head(main, is_stock)
    total = _TRAINED * forward
    if config.has_generator_network:
        passes = 1 if config.freeze_generator else _TRAINED
        encoders = config.num_generator_encoders
        predicted = num_masked if encoders == 1 else max_seq_length
        encoding = encoders * _encoder(generator, max_seq_length)
        total += passes * (encoding + predicted * _masked_lm_head(generator, encoders * generator.hidden_size))
        if encoders > 1:  # it predicts every token for its loss, and the masked ones again to sample them
            total += num_masked * _masked_lm_head(generator, 0)
    return num_sequences * total


def _widths(config: Any) -> tuple[int, int, int]:
    """Returns the widths of the layers, inside their feed-forward networks, and of the embeddings."""
    inner = config.hidden_dim if config.model_type == "distilbert" else config.intermediate_size
    return config.hidden_size, inner, getattr(config, "embedding_size", config.hidden_size)


def _encoder(config: Any, length: int) -> int:
    if config.model_type not in _COUNTED:
        return _count(config, "MaskedLM", length)[0]
    hidden, inner, embedding = _widths(config)
    layer = 8 * hidden**2 + 4 * hidden * inner + 4 * length * hidden
    projection = 2 * embedding * hidden if embedding != hidden else 0
    return int(length * (config.num_hidden_layers * layer + projection))


def _masked_lm_head(config: Any, width: int) -> int:
    if config.model_type not in _COUNTED:
        return _count(config, "MaskedLM", _HEAD_LENGTH)[1] // _HEAD_LENGTH
    return int(2 * _widths(config)[2] * (width + config.vocab_size))


def _binary_head(config: Any, is_stock: bool) -> int:
    if is_stock:
        return _count(config, "TokenClassification", _HEAD_LENGTH)[1] // _HEAD_LENGTH
    return int(2 * config.hidden_size * (config.hidden_size + 1))


def _count(config: Any, task: str, length: int) -> tuple[int, int]:
    """Counts the FLOPs of the stock model `AutoModelFor{task}` with this configuration and two labels, for one
    sequence of `length` tokens: those of its encoder, with attention between all positions, and those of its head."""
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
        # The cost of one more sequence, since DeBERTa projects its relative positions once per batch.
        whole, encoder = (products(module, 2) - products(module, 1) for module in (model, model.base_model))
        return encoder, whole - encoder

    key = (task, length, type(config), repr(vars(config)))
    if key in _COUNTS:
        return _COUNTS[key]
    config = copy.deepcopy(config)
    config.num_labels = 2
    with torch.no_grad(), no_init_weights():
        try:
            with FakeTensorMode():  # tensors with shapes but no data: no memory, no time
                _COUNTS[key] = count()
        except DataDependentOutputException:  # Longformer and XLM read values
            _COUNTS[key] = count()
    return _COUNTS[key]
