import math

import pytest
import torch
from torch.nn import functional as F  # noqa: N812
from transformers import ElectraConfig

from hf_electra_rtd.finetuning.answer_head import ElectraForJointQuestionAnswering


LENGTH = 9
IDS = torch.tensor([[2, 7, 3, 8, 9, 10, 11, 12, 3], [2, 7, 9, 3, 10, 8, 3, 0, 0]])
TYPES = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1, 1, 1, 1]])
MASK = IDS.ne(0).long()
BATCH = {"input_ids": IDS, "token_type_ids": TYPES, "attention_mask": MASK}


def make_model(**options):
    config = ElectraConfig(
        vocab_size=20,
        hidden_size=16,
        embedding_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        initializer_range=0.5,
        **{"joint_answerability": True, **options},
    )
    return ElectraForJointQuestionAnswering(config)


def reference(model, row, start):
    """Log-probabilities of starts and of ends given a start, and the answerable logit, in float64 and without padding,
    token by token."""
    real = int(MASK[row].sum())
    inputs = {name: tensor[row : row + 1, :real] for name, tensor in BATCH.items()}
    hidden = model.electra(**inputs).last_hidden_state[0].double()
    head = {name: tensor.double() for name, tensor in model.answer_head.state_dict().items()}
    allowed = [0] + [token for token in range(real) if TYPES[row, token]]
    start_logits = {token: hidden[token] @ head["start.weight"][0] + head["start.bias"][0] for token in allowed}
    dense = torch.cat([head["end_from_start.weight"], head["end_from_token.weight"]], dim=1)
    end_logits = {
        token: F.gelu(dense @ torch.cat([hidden[start], hidden[token]]) + head["end_from_start.bias"])
        @ head["end.weight"][0]
        + head["end.bias"][0]
        for token in allowed
    }
    starts, ends = (
        dict(zip(allowed, torch.stack([logits[token] for token in allowed]).log_softmax(0), strict=True))
        for logits in (start_logits, end_logits)
    )
    mean = sum(starts[token].exp() * hidden[token] for token in allowed)
    inner = head["answerable_hidden.weight"] @ torch.cat([hidden[0], mean]) + head["answerable_hidden.bias"]
    answerable = F.gelu(inner) @ head["answerable.weight"][0] + head["answerable.bias"][0]
    return starts, ends, answerable


def assert_log_probs(logits, expected):
    log_probs = logits.double().log_softmax(-1)
    for token in range(LENGTH):
        if token in expected:
            assert log_probs[token].item() == pytest.approx(expected[token].item(), abs=1e-5)
        else:
            assert log_probs[token].item() < -900


@torch.no_grad()
def test_the_head_is_the_originals_formula():
    model = make_model().eval()
    starts = torch.tensor([4, 5])
    output = model(**BATCH, start_positions=starts)
    for row in range(2):
        expected_starts, expected_ends, answerable = reference(model, row, int(starts[row]))
        assert_log_probs(output.start_logits[row], expected_starts)
        assert_log_probs(output.end_logits[row], expected_ends)
        assert output.answerable_logits[row].item() == pytest.approx(answerable.item(), abs=1e-5)


@torch.no_grad()
def test_a_beam_that_covers_all_starts_is_an_exhaustive_search():
    model = make_model(joint_beam_size=LENGTH).eval()
    output = model(**BATCH)
    for row in range(2):
        found = {}
        for i in range(LENGTH):
            start = int(output.start_indices[row, i])
            for j in range(LENGTH):
                score = float(output.start_log_probs[row, i] + output.end_log_probs[row, i, j])
                if score > -900:
                    found[start, int(output.end_indices[row, i, j])] = score
        expected = {}
        for start in [0, *(token for token in range(LENGTH) if TYPES[row, token] and MASK[row, token])]:
            starts, ends, _ = reference(model, row, start)
            expected |= {(start, end): float(starts[start] + ends[end]) for end in ends}
        assert found == pytest.approx(expected, abs=1e-5)
        assert math.fsum(map(math.exp, found.values())) == pytest.approx(1, abs=1e-5)


@torch.no_grad()
def test_a_beam_is_as_wide_for_short_rows_and_its_best_come_first():
    output = make_model(joint_beam_size=12).eval()(**BATCH)
    assert output.start_indices.shape == (2, 12)
    assert output.end_log_probs.shape == output.end_indices.shape == (2, 12, 12)
    assert (output.start_log_probs[:, :9].diff() <= 0).all()
    assert (output.end_log_probs[:, :9, :9].diff() <= 0).all()
    assert (output.start_log_probs[:, 9:] == -1000).all()
    assert (output.end_log_probs[:, 9:] == -1000).all()
    narrow = make_model(joint_beam_size=2).eval()(**BATCH)
    assert narrow.end_indices.shape == (2, 2, 2)


@torch.no_grad()
def test_what_decoding_needs_stands_first_whether_or_not_the_answer_is_known():
    model = make_model().eval()
    known, unknown = model(**BATCH, start_positions=torch.tensor([3, -100])), model(**BATCH)
    names = ["start_log_probs", "end_log_probs", "start_indices", "end_indices", "answerable_logits", "start_logits"]
    assert list(unknown) == names
    assert list(known) == [*names, "end_logits"]
    assert all(torch.equal(known[name], unknown[name]) for name in names)


def test_training_searches_no_beam_and_its_gradient_reaches_every_part():
    model = make_model().train()
    output = model(**BATCH, start_positions=torch.tensor([4, 5]))
    assert list(output) == ["answerable_logits", "start_logits", "end_logits"]
    loss = F.cross_entropy(output.start_logits, torch.tensor([4, 5]))
    loss = loss + F.cross_entropy(output.end_logits, torch.tensor([6, 5])) + output.answerable_logits.sum()
    loss.backward()
    for name, parameter in model.named_parameters():
        if name not in ("answer_head.start.bias", "answer_head.end.bias") and "key.bias" not in name:
            # Softmax does not see what all its logits have in common.
            assert parameter.grad.abs().max() > 1e-7, name


@pytest.mark.parametrize("answerability", [False, True])
def test_a_saved_model_is_the_same_when_loaded(tmp_path, answerability):
    model = make_model(joint_answerability=answerability, joint_beam_size=4).eval()
    model.save_pretrained(tmp_path)
    loaded, report = ElectraForJointQuestionAnswering.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert loaded.config.joint_beam_size == 4
    with torch.no_grad():
        expected, output = model(**BATCH), loaded.eval()(**BATCH)
    assert ("answerable_logits" in output) == answerability
    for name in expected:
        torch.testing.assert_close(output[name], expected[name])


def test_new_layers_are_drawn_as_the_originals():
    head = make_model().answer_head
    for layer, inputs, outputs in (
        (head.end_from_start, 32, 512),
        (head.end_from_token, 32, 512),
        (head.end, 512, 1),
        (head.answerable_hidden, 32, 512),
        (head.answerable, 512, 1),
    ):
        bound = math.sqrt(6 / (inputs + outputs))
        assert 0.95 * bound < layer.weight.abs().max() <= bound
        assert layer.bias is None or not layer.bias.any()
