"""Whole steps under `torch.compile`: one graph, compiled once, with the gradients of a step without it."""

import numpy as np
import pytest
import torch

from hf_electra_rtd import DataCollatorForRTD, ElectraForRTDPretraining, ElectraRTDConfig
from hf_electra_rtd.encoders.families import DROPOUTS, FAMILIES
from tests.conftest import VOCABULARY, pad_batch, tiny_config
from tests.families_for_tests import tiny_family_config


pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

ELECTRIC = {"objective": "electric", "generator": "two_tower"}
# Together they cover every objective, generator and kind of sharing, each with another feature of a step. Labels at
# all positions are left out: the number of their slots is read from the device, which breaks the graph.
PAIRS = [
    ({"objective": "rtd"}, "documents"),
    ({"objective": "rtd_masked_only", "sharing": "gdes"}, "bfloat16"),
    ({"objective": "replace_mlm", "sharing": "word"}, "padding"),
    ({"objective": "all_tokens_mlm", "sharing": "none"}, "checkpointing"),
    ({"objective": "mlm"}, None),
    (ELECTRIC, "padding"),
    ({"generator": "uniform"}, None),
    ({"generator": "uniform"}, "documents"),
    ({"sharing": "none", "freeze_generator": True, "disallow_correct": True, "temperature": 0.7}, None),
    ({"sharing": "all"}, None),
]


def ten_batches(blocks, tokenizer, beside):
    collator = DataCollatorForRTD(tokenizer, seed=1, document_attention=beside == "documents")
    found = []
    for start in range(len(blocks[0])):
        rows = blocks[0].read(np.arange(start, start + 4))
        rows.stream_positions = np.arange(start, start + 4)
        batch = collator(rows)
        if ("document_ids" in batch) == (beside == "documents"):  # without mixed documents: another graph
            found.append(pad_batch(batch, 3) if beside == "padding" else batch)
        if len(found) == 10:
            return found
    raise AssertionError("too few sequences")


def check_steps(model, batches, precision=torch.float32):
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)  # a break in the graph raises
    for batch in batches:
        gradients = []
        for forward in (model, compiled):
            model.zero_grad()
            with torch.autocast("cpu", precision, enabled=precision != torch.float32):
                loss = forward(**batch).loss
            loss.backward()
            gradients.append({name: each.grad for name, each in model.named_parameters() if each.grad is not None})
        torch.testing.assert_close(gradients[1], gradients[0])
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize(("options", "beside"), PAIRS)
def test_steps_of_a_pair_are_one_graph(options, beside, blocks, tokenizer):
    sizes = {"num_hidden_layers": 1, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = ElectraForRTDPretraining(tiny_config(**sizes | options)).train()
    if beside == "checkpointing":
        # transformers 5.23 renamed this method; 5.17 has only the old name
        getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    precision = torch.bfloat16 if beside == "bfloat16" else torch.float32
    check_steps(model, ten_batches(blocks, tokenizer, beside), precision)


# CamemBERT and XLM-R have the layers of RoBERTa.
@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"electra", "camembert", "xlm-roberta"}))
def test_steps_of_a_family_are_one_graph(family, blocks, tokenizer):
    configs = [tiny_family_config(family, vocab_size=len(VOCABULARY), num_hidden_layers=1) for _ in range(2)]
    for config in configs:
        for name in DROPOUTS:
            if hasattr(config, name):
                setattr(config, name, 0.0)
    config = ElectraRTDConfig(generator_config=configs[0], discriminator_config=configs[1])
    check_steps(ElectraForRTDPretraining(config).train(), ten_batches(blocks, tokenizer, None))
