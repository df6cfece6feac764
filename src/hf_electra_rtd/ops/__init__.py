# ruff: noqa: F401
"""Pure tensor functions: they import nothing from Hugging Face, keep no state (but for the switch in `devices`), and
take random numbers as arguments.

Shape suffixes: B sequences, L tokens per sequence, K masked slots per sequence, M any leading shape, V tokens of the
vocabulary.
"""

from hf_electra_rtd.ops.masking import (
    IGNORED,
    MaskedSlots,
    choose_masked_positions,
    choose_masked_words,
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
