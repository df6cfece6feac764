# ruff: noqa: F401
"""Pure tensor functions: no Hugging Face import, no state (but for whose ways are taken, see `devices`), randomness
comes in as an argument.

Shape suffixes: B sequences, L tokens a sequence, K masked slots a sequence, M = any leading shape, V tokens of the
vocabulary.
"""

from hf_electra_rtd.ops.masking import (
    IGNORED,
    MORE_UNIFORMS,
    MaskedSlots,
    choose_masked_groups,
    choose_masked_positions,
    masked_slots,
    num_masked,
    original_ids,
    replace_at,
)
from hf_electra_rtd.ops.prediction import (
    LossSum,
    MaskedPrediction,
    Sampling,
    best_and_lead,
    predict_from_logits,
    predict_masked,
)
from hf_electra_rtd.ops.randomness import counter_bits, counter_uniforms, permutation
from hf_electra_rtd.ops.sampling import sample_tokens
