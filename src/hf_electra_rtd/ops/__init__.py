"""Pure tensor functions: no Hugging Face import, no state, randomness comes in as an argument.

Shape suffixes: B rows, L tokens a row, K masked slots a row, M = any leading shape, V tokens of the vocabulary.
"""

from hf_electra_rtd.ops.attention import attention_with_dropout
from hf_electra_rtd.ops.dropout import draw_dropout_bits, dropout
from hf_electra_rtd.ops.losses import LossSum, replaced_token_loss, sum_over_real
from hf_electra_rtd.ops.masking import (
    IGNORED,
    MaskedSlots,
    choose_masked_positions,
    masked_slots,
    num_masked,
    original_ids,
    replace_at,
    slots_from_labels,
)
from hf_electra_rtd.ops.prediction import MaskedPrediction, Sampling, predict_masked, predict_masked_from_logits
from hf_electra_rtd.ops.randomness import counter_bits, counter_uniforms, permutation
from hf_electra_rtd.ops.sampling import sample_tokens


__all__ = [
    "IGNORED",
    "LossSum",
    "MaskedPrediction",
    "MaskedSlots",
    "Sampling",
    "attention_with_dropout",
    "choose_masked_positions",
    "counter_bits",
    "counter_uniforms",
    "draw_dropout_bits",
    "dropout",
    "masked_slots",
    "num_masked",
    "original_ids",
    "permutation",
    "predict_masked",
    "predict_masked_from_logits",
    "replace_at",
    "replaced_token_loss",
    "sample_tokens",
    "slots_from_labels",
    "sum_over_real",
]
