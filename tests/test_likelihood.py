"""Pseudo-log-likelihoods, compared token by token with the obvious code, and the command."""

import copy
import io
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hf_electra_rtd import ElectraForRTDPretraining, ElectraRTDConfig
from hf_electra_rtd.inference.likelihood import main
from hf_electra_rtd.pair.objectives import ReplacedTokenDetection, token_log_probability
from tests.conftest import tiny_config
from tests.families_for_tests import tiny_family_config


TEXTS = ["the old mills were not here .", "she saw a river", "a [MASK] and the night"]
TWO = {"generator": "two_tower", "special_token_ids": [2, 3, 4]}
PAIRS = {
    "electric": {"objective": "electric", **TWO},
    "rtd": {"mask_probability": 0.3, "keep_probability": 0.4},
    "rtd, two towers": TWO,
    "rtd, gdes": {"sharing": "gdes"},
    "mlm": {"objective": "mlm"},
}
MASK = 4


def make(name):
    torch.manual_seed(2)
    dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    return ElectraForRTDPretraining(tiny_config(**PAIRS[name], **dropout)).eval().double()


def one_by_one(name, pair, ids):
    """Computes log p of each token of one text except the first and the last."""
    found = []
    for place in range(1, ids.shape[1] - 1):
        token = ids[0, place]
        masked = ids.clone()
        masked[0, place] = MASK
        energy = pair.native_discriminator()(ids).logits[0, place]
        if name == "electric":
            found.append(-energy.item())
            continue
        if name == "mlm":
            logits = energy.new_tensor(pair.discriminator(masked).logits[0, place].tolist())
            found.append(logits.log_softmax(-1)[token].item())
            continue
        two = pair.config.generator == "two_tower"
        logits = pair.generator.cloze_lm_head(pair.generator(ids)) if two else pair.generator(masked).logits
        share = logits[0, place].softmax(-1)[token].item()
        original = 1 - energy.sigmoid().item()
        drawn = pair.config.mask_probability * (1 if two else 1 - pair.config.keep_probability)
        found.append(math.log(original * share / ((1 - drawn) / drawn * (1 - original) + share)))
    return found


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("batch_size", [1, 2, 8])
def test_each_token_has_its_probability_in_its_context_whatever_stands_in_the_batch(name, batch_size, tokenizer):
    pair = make(name)
    pair.train()
    found = pair.token_log_likelihoods(TEXTS, tokenizer, batch_size)
    assert pair.training
    sums = pair.eval().pseudo_log_likelihood(TEXTS, tokenizer, batch_size)
    for text, tokens, total in zip(TEXTS, found, sums, strict=True):
        ids = tokenizer(text, return_tensors="pt", split_special_tokens=True)["input_ids"]
        expected = one_by_one(name, pair, ids)
        assert tokens.tolist() == pytest.approx(expected, rel=1e-9)
        assert total == pytest.approx(sum(expected), rel=1e-9)


@pytest.mark.parametrize("visible", [0.0, 0.15, 0.7])
@pytest.mark.parametrize("is_blind", [True, False])
@pytest.mark.parametrize("mask_probability", [0.15, 0.6])
def test_a_perfect_discriminator_gives_the_probability_of_the_text_back(mask_probability, is_blind, visible):
    """Checks every token of the vocabulary, with p_data and p_G drawn at random. A generator that is not blind gives
    back the masked tokens that stay visible."""
    random = np.random.default_rng(3)
    of_data, of_generator = (torch.from_numpy(random.dirichlet(np.ones(30)))[None] for _ in range(2))
    # A token is the original if it was not masked, or if it was masked and then given back or drawn again.
    given_back = 0.0 if is_blind else mask_probability * visible
    kept = given_back + 1 - mask_probability
    as_it_was = of_data * (kept + (mask_probability - given_back) * of_generator)
    drawn = (mask_probability - given_back) * of_generator * (1 - of_data)
    logits = torch.logit(drawn / (drawn + as_it_was))
    pair = SimpleNamespace(
        generator=None,
        proposals=SimpleNamespace(log_likelihoods=lambda *_: of_generator.log(), is_blind=is_blind),
        discriminate=lambda *_: SimpleNamespace(logits=logits),
    )
    config = tiny_config(mask_probability=mask_probability, keep_probability=visible)
    found = ReplacedTokenDetection(config).log_likelihoods(pair, torch.arange(30)[None], MASK)
    torch.testing.assert_close(found.exp(), of_data)
    far = token_log_probability(torch.tensor([800.0, -800.0]), torch.tensor([-700.0, -700.0]), mask_probability)
    assert far.isfinite().all()


@pytest.mark.parametrize(
    ("options", "texts", "name"),
    [
        ({"generator": "uniform"}, TEXTS, "generator"),
        ({"objective": "replace_mlm"}, TEXTS, "objective"),
        ({"temperature": 0.5}, TEXTS, "temperature"),
        ({"keep_probability": 1.0}, TEXTS, "keep_probability"),
        ({"objective": "mlm"}, "a text", "texts"),
        ({}, ["a the", ""], "''"),
        ({}, ["the " * 63], "65 tokens"),
    ],
)
def test_what_has_no_score_is_refused(options, texts, name, tokenizer):
    pair = ElectraForRTDPretraining(tiny_config(**options)).train()
    with pytest.raises(ValueError, match=name):
        pair.pseudo_log_likelihood(texts, tokenizer)
    assert pair.training


def test_padding_changes_no_score_of_an_encoder_that_reads_it(tokenizer):
    towers = [tiny_family_config("convbert", vocab_size=len(tokenizer)) for _ in range(2)]
    config = ElectraRTDConfig(generator_config=towers[0], discriminator_config=towers[1], sharing="none")
    pair = ElectraForRTDPretraining(config).eval()
    for text, together in zip(TEXTS, pair.token_log_likelihoods(TEXTS, tokenizer), strict=True):
        torch.testing.assert_close(together, pair.token_log_likelihoods([text], tokenizer)[0])


def test_padding_on_the_left_changes_no_score(tokenizer):
    pair = make("electric")
    left = copy.deepcopy(tokenizer)
    left.padding_side = "left"
    assert pair.pseudo_log_likelihood(TEXTS, left) == pytest.approx(pair.pseudo_log_likelihood(TEXTS, tokenizer))


@pytest.mark.parametrize("given", [TEXTS, []], ids=["arguments", "standard input"])
def test_the_command_writes_a_line_for_each_text(given, tokenizer, tmp_path, capsys, caplog, monkeypatch):
    pair = make("electric").float()
    with pytest.raises(ValueError, match="tokenizer"):
        pair.pseudo_log_likelihood(TEXTS)
    pair.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join([TEXTS[0], "", "the " * 63, *TEXTS[1:]])))
    main(["--model", str(tmp_path), "--batch_size", "2", *given])
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    if not given:
        assert "skipped" in found.pop(1)  # the empty line
        assert "63 tokens" in found.pop(1)["skipped"]
    assert [line["text"] for line in found] == TEXTS
    assert [line["num_tokens"] for line in found] == [8, 4, 7]
    expected = pair.pseudo_log_likelihood(TEXTS, tokenizer)
    assert ElectraForRTDPretraining.from_pretrained(tmp_path).pseudo_log_likelihood(TEXTS) == expected
    assert [line["pseudo_log_likelihood"] for line in found] == pytest.approx(expected, rel=1e-5)
    (tmp_path / "pairs.tsv").write_text("河 the\t河 she\n", encoding="utf-8")
    for flags, is_told in (
        (["the river"], False),
        (["the 河"], True),
        (["--pairs", str(tmp_path / "pairs.tsv")], True),
    ):
        caplog.clear()
        main(["--model", str(tmp_path), *flags])
        assert ("unknown" in caplog.text) == is_told


def test_each_typed_line_is_answered_before_the_next_one_is_read(finished_run, capsys, monkeypatch):
    answered = []

    class Typed(io.StringIO):
        def isatty(self):
            return True

        def __next__(self):
            answered.append(len(capsys.readouterr().out.splitlines()))
            return super().__next__()

    monkeypatch.setattr("sys.stdin", Typed("the river\nthe mill\n"))
    main(["--model", str(finished_run / "generator")])
    assert answered == [0, 1, 1]
