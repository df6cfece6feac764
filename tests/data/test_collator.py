import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_electra_rtd import DataCollatorForRTD
from hf_electra_rtd.ops import IGNORED, MaskedSlots, num_masked, original_ids


PAD = 0
CLS = 2
SEP = 3
MASK = 4
WORD = 10


def features(lengths, seed=0):
    random = np.random.default_rng(seed)
    sequences = []
    for position, length in enumerate(lengths):
        ids = random.integers(WORD, 40, length)
        ids[0] = CLS
        ids[[length // 2, -1]] = SEP
        types = (np.arange(length) > length // 2).astype(int)
        sequences.append({"input_ids": ids, "token_type_ids": types, "stream_position": position})
    return sequences


def test_masks_of_single_tokens_are_those_of_earlier_versions(tokenizer):
    batch = DataCollatorForRTD(tokenizer, seed=3)(features([12, 34]))
    assert batch["masked_positions"].tolist() == [[2, 3, 0, 0, 0], [7, 10, 13, 22, 31]]
    assert batch["labels"].tolist() == [[25, 18, -100, -100, -100], [38, 30, 35, 10, 13]]


@settings(deadline=None)
@given(
    st.lists(st.integers(3, 60), min_size=1, max_size=6),
    st.floats(0.01, 0.9),
    st.one_of(st.none(), st.integers(0, 2**40)),
)
def test_what_comes_out_is_the_sequence_with_the_right_number_of_masks(tokenizer, lengths, probability, seed):
    sequences = features(lengths)
    batch = DataCollatorForRTD(tokenizer, mask_probability=probability, seed=seed)(sequences)
    width = max(lengths)
    assert batch["labels"].shape == batch["masked_positions"].shape == (len(sequences), num_masked(probability, width))
    slots = MaskedSlots(batch["masked_positions"], batch["labels"])
    restored = original_ids(batch["input_ids"], slots)
    for i, sequence in enumerate(sequences):
        length = len(sequence["input_ids"])
        assert restored[i, :length].tolist() == sequence["input_ids"].tolist()
        assert batch["token_type_ids"][i].tolist() == [*sequence["token_type_ids"], *[0] * (width - length)]
        assert (batch["input_ids"][i, length:] == PAD).all()
        used = batch["labels"][i].ne(IGNORED)
        maskable = int((sequence["input_ids"] >= WORD).sum())
        assert int(used.sum()) == min(num_masked(probability, length), maskable)
        chosen = batch["masked_positions"][i][used].tolist()
        assert len(set(chosen)) == len(chosen)
        assert all(sequence["input_ids"][position] >= WORD for position in chosen)
    if len(set(lengths)) == 1:
        assert "attention_mask" not in batch
    else:
        assert batch["attention_mask"].sum(dim=1).tolist() == lengths
    assert ("sampling_uniforms" in batch) == (seed is not None)


def test_85_percent_are_hidden_and_15_percent_kept(tokenizer):
    collator = DataCollatorForRTD(tokenizer, seed=1)
    batch = collator(features([128] * 400))
    seen = batch["input_ids"].gather(1, batch["masked_positions"])
    hidden = seen.eq(MASK)
    count = hidden.numel()
    assert count == 400 * 19
    assert abs(int(hidden.sum()) - 0.85 * count) < 4 * (0.85 * 0.15 * count) ** 0.5
    assert torch.equal(seen[~hidden], batch["labels"][~hidden])
    for keep, count in ((0.0, 40), (1.0, 0)):
        batch = DataCollatorForRTD(tokenizer, keep_probability=keep, seed=1)(features([64] * 4))
        assert batch["input_ids"].eq(MASK).sum() == count


def test_without_a_seed_masks_come_from_torchs_generator(tokenizer):
    collator = DataCollatorForRTD(tokenizer)
    sequences = features([40] * 3)
    torch.manual_seed(5)
    first = collator(sequences)
    second = collator(sequences)
    torch.manual_seed(5)
    assert torch.equal(collator(sequences)["masked_positions"], first["masked_positions"])
    assert not torch.equal(first["masked_positions"], second["masked_positions"])


def test_sequences_are_padded_to_the_longest_or_a_fixed_length_whatever_a_tokenizer_added(tokenizer):
    encoded = tokenizer(["the river was old .", "the mill"], padding="max_length", max_length=12)
    sequences = [{key: value[i] for key, value in encoded.items()} for i in range(2)]
    batch = DataCollatorForRTD(tokenizer)(sequences)
    assert batch["input_ids"].shape == (2, 7)
    assert batch["attention_mask"].sum(dim=1).tolist() == [7, 4]
    tensors = [{key: torch.tensor(value) for key, value in row.items()} for row in sequences]
    assert DataCollatorForRTD(tokenizer)(tensors)["attention_mask"].sum(dim=1).tolist() == [7, 4]
    batch = DataCollatorForRTD(tokenizer, max_seq_length=50)(features([20, 30]))
    assert batch["input_ids"].shape == (2, 50)
    assert batch["labels"].shape == (2, 8)


@pytest.mark.parametrize(
    ("options", "sequences", "name"),
    [
        ({"mask_probability": 1.0}, [], "mask_probability"),
        ({"masking": "words"}, [], "words"),
        ({"seed": 0}, [{"input_ids": [CLS, WORD, SEP]}], "stream_position"),
        ({"max_seq_length": 10}, features([20]), "max_seq_length"),
        ({}, [{"input_ids": [PAD, CLS, SEP], "attention_mask": [0, 1, 1]}], "left"),
        ({}, [{"input_ids": []}], "no tokens"),
    ],
)
def test_options_and_sequences_that_cannot_be_used_are_refused(tokenizer, options, sequences, name):
    with pytest.raises(ValueError, match=name):
        DataCollatorForRTD(tokenizer, **options)(sequences)
