"""Attention within documents, in sequences that hold parts of several."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface, masking_utils, modeling_flash_attention_utils
from transformers.integrations.flash_attention import flash_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, flash_attention_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hf_electra_rtd import DataCollatorForRTD, ElectraForRTDPretraining, ElectraRTDConfig, RTDTrainer
from hf_electra_rtd.data.blocks import BlockFile, SequenceBatch, SequenceStream, writing_blocks
from hf_electra_rtd.data.packing import FullPacker, PackingTokens, get_packer
from hf_electra_rtd.encoders import families
from hf_electra_rtd.encoders.families import FAMILIES
from hf_electra_rtd.ops import IGNORED
from hf_electra_rtd.training.arguments import RTDTrainingArguments, settle_masking
from tests.conftest import make_text, tiny_config
from tests.families_for_tests import tiny_family_config
from tests.reference import attention_by_lengths


CLS = 2
SEP = 3
LENGTH = 32
ABLE = [name for name, family in FAMILIES.items() if family.document_attention]


# ---- Where documents begin ----


def pack(lengths, seed=0, line=7):
    """Sequences of `FullPacker` over documents of these lengths; the tokens of document n are all 10 + n."""
    packer = FullPacker(PackingTokens(CLS, SEP, [], []), LENGTH, seed)
    sequences = []
    for number, length in enumerate(lengths):
        lines = np.diff([*range(0, length, line), length])
        ends = np.arange(len(lines)) == len(lines) - 1
        sequences += packer.add_lines(np.full(length, 10 + number), lines, ends)
    return sequences + packer.finish()


@pytest.mark.parametrize("longest", [3, 12, 80])
def test_each_part_of_a_document_begins_where_its_first_token_is(longest):
    lengths = np.random.default_rng(longest).integers(1, longest, 200)
    sequences = pack(lengths)
    assert len(sequences) > 10
    for sequence in sequences:
        begins = np.flatnonzero(sequence.tokens >> 33 & 1).tolist()
        before = None
        expected = []
        for place, token in enumerate(sequence.ids.tolist()):
            if token not in (CLS, SEP):
                if before not in (None, token):
                    expected.append(place)
                before = token
        assert begins == expected
        assert all(sequence.ids[place - 1] == SEP for place in begins)


def test_block_files_and_columns_say_where_documents_begin(tokenizer, tmp_path):
    """The first document begins at [CLS]. A sequence of `--packing original` is one document."""
    text = [line for document in make_text(60, lines=(1, 2)).split("\n\n") for line in document.splitlines()]
    encoded = [np.array(tokenizer(line, add_special_tokens=False)["input_ids"]) for line in text]
    tokens = np.concatenate(encoded)
    lengths = np.array([len(line) for line in encoded])
    counts = {}
    for name in ("full", "original"):
        packer = get_packer(name, tokenizer, LENGTH, 0)
        sequences = packer.add_lines(tokens, lengths, np.ones(len(lengths), dtype=bool)) + packer.finish()
        with writing_blocks(tmp_path / name, LENGTH, len(tokenizer)) as writer:
            writer.write(sequences)
            sources = [{"name": "", "sha256": "", "weight": 1.0}]
            writer.finish(sources=sources, tokenizer_hash="", packing=name, statistics={}, recipe={})
        file = BlockFile(tmp_path / name, verify=True)
        batch = file.read(np.arange(len(file)))
        for row, sequence, item in zip(batch.document_starts, sequences, file, strict=False):
            expected = sequence.tokens >> 33 & 1
            np.testing.assert_array_equal(row[: len(expected)], expected)
            np.testing.assert_array_equal(item["document_starts"], expected)
        assert batch.document_starts[:, 0].all()
        counts[name] = batch.document_starts.sum(axis=1)
    assert counts["full"].max() > 2
    assert counts["original"].max() == 1


# ---- The networks ----


def packed_batch(tokenizer, seed=0):
    """Two sequences. One has three documents, the second of which continues in segment B. The other sequence has two
    documents and padding."""
    random = np.random.default_rng(seed)
    ids = random.integers(10, len(tokenizer), (2, LENGTH))
    ids[:, 0] = CLS
    ids[0, [9, 16, 24, 31]] = SEP
    ids[1, [11, 25]] = SEP
    starts = np.zeros((2, LENGTH), dtype=bool)
    starts[0, [0, 10, 25]] = True
    starts[1, [0, 12]] = True
    return SequenceBatch(ids, np.array([32, 26]), np.array([17, 12]), np.arange(2), document_starts=starts)


def collate(tokenizer, batch, **options):
    options = {"mask_probability": 0.4, "seed": 1, "document_attention": True, **options}
    return DataCollatorForRTD(tokenizer, **options)(batch)


def separate_rows(batch):
    """The documents of a collated batch as padded rows of their own, and for each row (sequence, start, stop): where
    the document was in the batch."""
    rows = {name: [] for name in batch if not name.startswith(("document_", "position_"))}
    pieces = []
    real = batch.get("attention_mask", torch.ones_like(batch["input_ids"])).bool()
    for sequence, documents in enumerate(batch["document_ids"]):
        for document in documents.unique():
            columns = torch.nonzero((documents == document) & real[sequence]).flatten()
            start = columns[0].item()
            stop = columns[-1].item() + 1
            pieces.append((sequence, start, stop))
            for name in ("input_ids", "token_type_ids"):
                row = torch.zeros(LENGTH, dtype=torch.long)
                row[: stop - start] = batch[name][sequence, start:stop]
                rows[name].append(row)
            rows["attention_mask"].append((torch.arange(LENGTH) < stop - start).long())
            positions = batch["masked_positions"][sequence]
            labels = batch["labels"][sequence]
            inside = (positions >= start) & (positions < stop) & (labels != IGNORED)
            rows["masked_positions"].append(torch.where(inside, positions - start, 0))
            rows["labels"].append(torch.where(inside, labels, IGNORED))
            rows["sampling_uniforms"].append(batch["sampling_uniforms"][sequence])
    return {name: torch.stack(each) for name, each in rows.items()}, pieces


def make_pair(family, tokenizer, attention="sdpa", **options):
    torch.manual_seed(0)
    sizes = {"vocab_size": len(tokenizer), **({} if family == "modernbert" else {"pad_token_id": 0})}
    networks = {name: tiny_family_config(family, **sizes) for name in ("generator_config", "discriminator_config")}
    if options.get("objective") == "mlm":
        del networks["generator_config"]
    model = ElectraForRTDPretraining(ElectraRTDConfig(**networks, **options)).double().eval()
    model.set_attn_implementation(attention)
    return model


CASES = [
    *((family, {}) for family in ABLE),
    *((family, {"attention": "eager"}) for family in ("electra", "distilbert")),
    *(("electra", {"sharing": sharing}) for sharing in ("gdes", "none")),
    *(("electra", {"objective": objective}) for objective in ("all_tokens_mlm", "replace_mlm", "mlm")),
]


@pytest.mark.parametrize(("family", "options"), CASES)
def test_documents_in_one_sequence_are_worth_as_much_as_rows_of_their_own(family, options, tokenizer):
    """Compares logits, token losses, total losses and gradients in float64."""
    model = make_pair(family, tokenizer, **options)
    packed = collate(tokenizer, packed_batch(tokenizer))
    assert packed["document_ids"].unique().tolist() == [1, 2, 3]
    rows, pieces = separate_rows(packed)
    asked = {"output_generator_logits": True, "output_logits": True}
    gradients = []
    outputs = []
    for inputs in (packed, rows):
        model.zero_grad()
        output = model(**inputs, **asked)
        output.loss.backward()
        gradients.append({name: each.grad for name, each in model.named_parameters() if each.grad is not None})
        outputs.append(output)
    together, apart = outputs
    mixed = model(**{name: each for name, each in packed.items() if name != "document_ids"}, **asked)
    torch.testing.assert_close(together.loss, apart.loss, atol=1e-10, rtol=1e-10)
    assert not torch.allclose(mixed.loss, apart.loss, atol=1e-6, rtol=1e-6)
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], atol=1e-9, rtol=1e-8)

    of_slots = ["generator_logits", "generator_token_losses", "generator_predictions"]
    of_tokens = ["logits", "corrupted_input_ids", "discriminator_token_losses", "predictions"]
    for row, (sequence, start, stop) in enumerate(pieces):
        slots = rows["labels"][row] != IGNORED
        assert slots.any()
        for name in (*of_slots, *of_tokens):
            if getattr(together, name) is None:
                continue
            mine = getattr(together, name)[sequence]
            other = getattr(apart, name)[row]
            is_of_slots = name in of_slots or len(mine) == len(slots)
            pair = (mine[slots], other[slots]) if is_of_slots else (mine[start:stop], other[: stop - start])
            torch.testing.assert_close(*pair, atol=1e-10, rtol=1e-10, msg=f"{name} of {start}:{stop}")


@pytest.fixture
def flash(monkeypatch):
    """The name of an attention implementation for which transformers calls a flash kernel, and the recorded calls of
    the stub that stands in for this kernel. The other flash kernel, which takes no lengths, is missing."""
    calls = []

    def flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale, causal, window_size=(-1, -1)
    ):
        calls.append((tuple(q.shape), (max_seqlen_q, max_seqlen_k), causal, window_size, cu_seqlens_q, cu_seqlens_k))
        window = None if window_size[0] < 0 else window_size[0]
        return attention_by_lengths(q, k, v, cu_seqlens_q, softmax_scale, window)

    kernels = (None, flash_attn_varlen_func, None, None, None)
    monkeypatch.setattr(modeling_flash_attention_utils, "_lazy_imports", lambda *_, **__: kernels)
    monkeypatch.setattr(modeling_flash_attention_utils, "_loaded_implementation", None)
    AttentionInterface.register("flash_stub", flash_attention_forward)
    AttentionMaskInterface.register("flash_stub", flash_attention_mask)
    yield "flash_stub", calls
    for table in (ALL_ATTENTION_FUNCTIONS, ALL_MASK_ATTENTION_FUNCTIONS):
        table._global_mapping.pop("flash_stub")


@pytest.mark.parametrize("family", ABLE)
def test_flash_attention_reads_lengths_in_place_of_masks(family, tokenizer, flash):
    """Gradients equal those with masks, in float64, also with padding and in sliding windows."""
    name, calls = flash
    batch = collate(tokenizer, packed_batch(tokenizer))
    expected = make_pair(family, tokenizer)
    model = make_pair(family, tokenizer, attention=name)
    for pair in (expected, model):
        pair(**batch).loss.backward()
    for (key, one), other in zip(expected.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, atol=1e-9, rtol=1e-8, msg=key)

    # Two sequences have room for 16 documents. Used are three and two, and one for the padding in the second sequence.
    offsets = torch.tensor([0, 10, 25, 32, 44, 58, *[64] * 11], dtype=torch.int32)
    assert len(calls) == 4
    for shape, longest, causal, _, *lengths in calls:
        assert (shape, longest, causal) == ((2 * LENGTH, 2, 16), (LENGTH, LENGTH), False)
        assert all(torch.equal(each, offsets) and each.dtype == torch.int32 for each in lengths)
    assert (len({window for _, _, _, window, *_ in calls}) == 2) == (family == "modernbert")


def test_room_for_documents_grows_with_them(tokenizer):
    batch = packed_batch(tokenizer)
    assert len(collate(tokenizer, batch)["document_offsets"]) == 17
    batch.document_starts[0, 2::2] = True
    offsets = collate(tokenizer, batch)["document_offsets"]
    assert len(offsets) == 33
    assert offsets[-1] == 2 * LENGTH
    assert (offsets.diff() > 0).sum() == 20  # 17 documents, two documents, and padding


def test_other_documents_do_not_matter_in_training_with_dropout(tokenizer):
    """The attention that replaces torch's on CPUs respects the mask."""
    model = make_pair("electra", tokenizer).train()
    batch = collate(tokenizer, packed_batch(tokenizer))
    first = batch["document_ids"][0] == 1
    other = copy.deepcopy(batch)
    other["input_ids"][0, ~first] = 12
    found = []
    for inputs in (batch, other):
        torch.manual_seed(5)
        names = ("attention_mask", "token_type_ids", "position_ids", "document_ids")
        found.append(model.discriminate(inputs["input_ids"], **{name: inputs[name] for name in names}).logits[0])
    assert torch.equal(found[0][first], found[1][first])
    assert not torch.equal(found[0][~first], found[1][~first])


def test_segments_and_batches_without_the_option_stay_as_they_are(tokenizer):
    batch = packed_batch(tokenizer)
    plain, collated = (collate(tokenizer, batch, document_attention=option) for option in (False, True))
    # Segment B continues the second document. The third one, and the second one of the other sequence, are segment A.
    assert collated["token_type_ids"].nonzero()[:, 1].tolist() == list(range(17, 25))
    assert plain.keys() == collated.keys() - {"document_ids", "document_offsets", "position_ids"}
    assert all(torch.equal(plain[name], collated[name]) for name in plain.keys() - {"token_type_ids"})


def test_a_batch_without_mixed_documents_is_as_without_the_option(tokenizer):
    batch = packed_batch(tokenizer)
    batch.document_starts[:, 1:] = False
    plain, collated = (collate(tokenizer, batch, document_attention=option) for option in (False, True))
    torch.testing.assert_close(collated, plain, rtol=0, atol=0)


def test_plain_features_give_the_batches_of_their_block_file(blocks, tokenizer):
    streams = [SequenceStream(data, 32) for data in (blocks[0], list(blocks[0]))]
    from_file, from_rows = (collate(tokenizer, stream.__getitems__(range(32))) for stream in streams)
    assert "document_ids" in from_file
    torch.testing.assert_close(from_rows, from_file, rtol=0, atol=0)


# ---- Refusals, and masks on a GPU ----


def test_what_cannot_keep_documents_apart_is_refused(tmp_path, tokenizer):
    args = RTDTrainingArguments(str(tmp_path), document_attention=True, use_cpu=True, max_steps=1)
    for family in FAMILIES.keys() - ABLE:
        model = ElectraForRTDPretraining(ElectraRTDConfig(discriminator_config=tiny_family_config(family)))
        with pytest.raises(ValueError, match=family):
            settle_masking(model.config, args)
    double = ElectraForRTDPretraining(tiny_config(objective="electric", generator="two_tower"))
    with pytest.raises(ValueError, match="two_tower"):
        settle_masking(double.config, args, tokenizer)
    model = make_pair("electra", tokenizer, "flex_attention")
    with pytest.raises(ValueError, match="flex_attention"):
        settle_masking(model.config, args, tokenizer)
    with pytest.raises(ValueError, match="data_collator"):
        RTDTrainer(double, args, None, None, tokenizer, DataCollatorForRTD(tokenizer))
    with pytest.raises(ValueError, match="documents begin"):
        collate(tokenizer, replace(packed_batch(tokenizer), document_starts=None))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", ABLE)
def test_padding_is_masked_on_a_gpu_as_by_the_stock_encoder(family, attention):
    config = tiny_family_config(family)
    config._attn_implementation = attention
    real = torch.ones(2, 16, dtype=torch.int64)
    real[1, 9:] = 0
    stock = {"config": config, "inputs_embeds": torch.zeros(2, 16, 4), "attention_mask": real}
    expected = {"full_attention": masking_utils.create_bidirectional_mask(**stock)}
    made = families._pair_masks(config, None, real)
    if isinstance(made, dict):
        expected["sliding_attention"] = masking_utils.create_bidirectional_sliding_window_mask(**stock)
    else:
        made = {"full_attention": made}
    assert made.keys() == expected.keys()
    assert all(torch.equal(made[kind], expected[kind]) for kind in made)
