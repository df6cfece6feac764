"""Minimal pairs: each kind of score compared with the obvious code, and accuracies with those counted by hand."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from hf_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.base.records import EvaluationRecord
from hf_electra_rtd.inference import likelihood
from hf_electra_rtd.inference.minimal_pairs import (
    SentencePair,
    bigram_scorer,
    causal_scorer,
    judge_pairs,
    load_judge,
    masked_scorer,
    pair_scorer,
    read_pairs,
)
from hf_electra_rtd.pair.bigram import CountedBigram
from hf_electra_rtd.pair.modeling_electra_rtd import UnscorableTextError
from hf_electra_rtd.publishing import compare
from tests.conftest import VOCABULARY, tiny_config
from tests.families_for_tests import tiny_family_config


# Words of several pieces, texts of different lengths, and one text twice.
TEXTS = ["the mills were saying no", "she saw a river .", "the knewings came", "she saw a river ."]


def masked_lm(family):
    torch.manual_seed(3)
    network = AutoModelForMaskedLM.from_config(tiny_family_config(family, vocab_size=len(VOCABULARY)))
    return network.double().eval()


def one_by_one(network, tokenizer, text, within_words):
    """The sum of log p of the tokens. Each token takes one pass, in which it is masked and, with `within_words`, also
    the later pieces of its word."""
    encoded = tokenizer(text, return_tensors="pt")
    ids = encoded["input_ids"]
    words = encoded.word_ids()
    total = 0.0
    for place in range(1, ids.shape[1] - 1):
        masked = ids.clone()
        masked[0, place] = tokenizer.mask_token_id
        if within_words:
            for right in range(place + 1, ids.shape[1] - 1):
                if words[right] == words[place]:
                    masked[0, right] = tokenizer.mask_token_id
        with torch.no_grad():
            total += network(masked).logits[0, place].log_softmax(-1)[ids[0, place]].item()
    return total


@pytest.mark.parametrize("within_words", [False, True])
@pytest.mark.parametrize("family", ["electra", "bert", "modernbert", "convbert"])
def test_a_masked_language_model_scores_each_token_with_a_mask_in_its_place(family, within_words, tokenizer):
    network = masked_lm(family)
    expected = [one_by_one(network, tokenizer, text, within_words) for text in TEXTS]
    assert masked_scorer(network, tokenizer, within_words)(TEXTS) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("has_begin", [False, True])
def test_a_causal_language_model_scores_each_token_after_those_before(has_begin, tokenizer, monkeypatch):
    torch.manual_seed(3)
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "initializer_range": 0.3}
    network = GPT2LMHeadModel(GPT2Config(vocab_size=len(VOCABULARY), **sizes)).double().eval()
    if has_begin:
        monkeypatch.setattr(type(tokenizer), "bos_token_id", tokenizer.cls_token_id, raising=False)
    expected = []
    for text in TEXTS:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        if has_begin:
            ids = [tokenizer.cls_token_id, *ids]
        with torch.no_grad():
            log_p = network(torch.tensor([ids])).logits[0].log_softmax(-1)
        expected.append(sum(log_p[place, token].item() for place, token in enumerate(ids[1:])))
    assert causal_scorer(network, tokenizer)(TEXTS) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("objective", ["rtd", "electric", "mlm"])
def test_a_pair_scores_by_its_pseudo_log_likelihood(objective, tokenizer):
    torch.manual_seed(3)
    options = {"generator": "two_tower", "special_token_ids": [2, 3, 4]} if objective == "electric" else {}
    pair = ElectraForRTDPretraining(tiny_config(objective=objective, **options)).double().eval()
    expected = [pair.token_log_likelihoods([text], tokenizer)[0].sum().item() for text in TEXTS]
    assert pair_scorer(pair, tokenizer, batch_size=2)(TEXTS) == pytest.approx(expected, rel=1e-9)


def test_counted_bigrams_score_from_the_first_special_token_to_the_last(blocks, tokenizer):
    counted = CountedBigram(blocks[0], len(VOCABULARY))
    scorer = bigram_scorer(counted, tokenizer)
    (score,) = scorer(["the river"])
    cls, the, river, sep = tokenizer("the river")["input_ids"]
    chances = counted.probabilities(np.array([cls, the, river]), np.array([the, river, sep]))
    assert score == pytest.approx(np.log(chances).sum())
    with pytest.raises(ValueError, match="no token"):
        scorer(["the river", ""])


def test_accuracies_are_means_of_paradigms_and_a_tie_counts_one_half():
    scores = {"a": 1.0, "b": 0.0, "c": 0.0}
    pairs = [
        SentencePair("first", "group", "a", "b"),
        SentencePair("first", "group", "b", "a"),
        SentencePair("first", "group", "a", "b"),
        SentencePair("first", "group", "a", "c"),
        SentencePair("second", "group", "b", "c"),
        SentencePair("third", "other", "a", "b"),
    ]
    result = judge_pairs(pairs, lambda texts: [scores[text] for text in texts])
    assert result.paradigms == {"first": 0.75, "second": 0.5, "third": 1.0}
    assert result.phenomena == {"group": 0.625, "other": 1.0}
    assert result.accuracy == pytest.approx(0.75)
    low, high = result.interval
    assert 0.5 <= low <= result.accuracy <= high <= 1.0


@pytest.mark.parametrize(
    "columns",
    [("UID", "linguistics_term"), ("UID", "phenomenon"), ("paradigm", "phenomenon")],
    ids=["blimp", "zhoblimp", "sling"],
)
def test_pairs_are_read_from_a_directory_of_all_formats_the_first_of_each_paradigm(columns, tmp_path):
    names = dict(zip(columns, ("npi", "licensing"), strict=True))
    rows = [{"sentence_good": f"good {i}", "sentence_bad": f"bad {i}", **names} for i in range(3)]
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    table = 'sentence_good\tsentence_bad\nshe "sees\tshe see"\nhe sees\the see\n'
    (tmp_path / "agreement.tsv").write_text(table, encoding="utf-8")
    (tmp_path / "README.md").write_text("no pairs\n", encoding="utf-8")
    assert len(read_pairs(tmp_path)) == 5
    first = [SentencePair("agreement", "agreement", 'she "sees', 'she see"')]
    first.append(SentencePair("npi", "licensing", "good 0", "bad 0"))
    assert read_pairs(tmp_path, max_pairs=1) == first


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("a.tsv", "good\tbad\nonly one\n", "a.tsv, line 2"),
        ("a.jsonl", '{"sentence_good": "x"}\n', "a.jsonl, line 1"),
        ("a.jsonl", "no json\n", "a.jsonl, line 1"),
        ("a.txt", "text\n", "a.txt"),
        ("a.tsv", "", "a.tsv"),
    ],
)
def test_what_holds_no_pairs_is_refused_by_file_and_line(name, content, named, tmp_path):
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=named):
        read_pairs(tmp_path / name)


@pytest.fixture
def pairs_file(tmp_path):
    path = tmp_path / "agreement.tsv"
    path.write_text("she saw a river\tshe saw the rivers\nhe came .\ta came he\nno\tno\n", encoding="utf-8")
    return path


@pytest.fixture
def saved(tmp_path, tokenizer):
    """A directory with a masked and a causal language model and their tokenizers."""
    masked_lm("electra").float().save_pretrained(tmp_path / "masked")
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2}
    GPT2LMHeadModel(GPT2Config(vocab_size=len(VOCABULARY), **sizes)).save_pretrained(tmp_path / "causal")
    tokenizer.save_pretrained(tmp_path / "masked")
    backend = tokenizer.backend_tokenizer  # a causal model often has no padding, [CLS] or [MASK]
    PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="[SEP]").save_pretrained(tmp_path / "causal")
    return tmp_path


@pytest.mark.parametrize("name", ["masked", "causal"])
def test_language_models_of_other_people_are_judged_by_their_directory(name, saved, pairs_file):
    pairs = read_pairs(pairs_file)
    judge = load_judge(str(saved / name))
    sentences = [pair.good for pair in pairs]
    make = {"masked": masked_scorer, "causal": causal_scorer}[name]
    assert judge.scorer(sentences) == make(judge.network, judge.tokenizer)(sentences)
    assert judge_pairs(pairs, judge.scorer).num_pairs == 3


@pytest.mark.parametrize("flags", [["masked"], ["masked", "--within_words"], ["causal"]], ids=" ".join)
def test_texts_are_scored_by_the_same_models_as_pairs(flags, saved, capsys):
    name, *others = flags
    texts = ["she saw the old mill", "he went"]
    likelihood.main(["--model", str(saved / name), *others, *texts, ""])
    *found, skipped = map(json.loads, capsys.readouterr().out.splitlines())
    assert [line["text"] for line in found] == texts
    expected = load_judge(str(saved / name), within_words=bool(others)).scorer(texts)
    assert [line["pseudo_log_likelihood"] for line in found] == pytest.approx(expected, rel=1e-5)
    assert [line["num_tokens"] for line in found] == [5, 2]
    assert "skipped" in skipped


@pytest.mark.parametrize("name", ["masked", "causal"])
@pytest.mark.parametrize("sentence", ["mill " * 2000, "[MASK] " * 400, "\u00ad"], ids=["long", "masks", "empty"])
def test_a_sentence_that_cannot_be_read_is_refused(sentence, name, saved):
    with pytest.raises(UnscorableTextError):
        load_judge(str(saved / name)).scorer(["she saw", sentence])


def test_a_causal_language_model_fills_no_masks(saved):
    with pytest.raises(ValueError, match="within_words"):
        load_judge(str(saved / "causal"), within_words=True)


def test_the_command_judges_a_run_and_its_bigrams_and_leaves_records_to_compare(
    finished_run, blocks, pairs_file, tmp_path, capsys, monkeypatch
):
    flags = ["--model", str(finished_run), "--pairs", str(pairs_file), "--max_pairs", "2"]
    likelihood.main([*flags, "--output_dir", str(tmp_path / "network")])
    likelihood.main([*flags, "--counted_on", str(blocks[0].path), "--output_dir", str(tmp_path / "bigrams")])
    shown = capsys.readouterr().out
    assert "agreement" in shown
    assert "interval" not in shown  # there is only one paradigm
    records = [EvaluationRecord.load(tmp_path / name) for name in ("network", "bigrams")]
    assert [record.data["test"]["examples"] for record in records] == [2, 2]
    assert records[1].model["architecture"] == "CountedBigram"
    compare.main([str(tmp_path / "network"), str(tmp_path / "bigrams")])
    shown = capsys.readouterr().out
    assert "| agreement |" in shown
    assert "95 % interval over paradigms" in shown
    assert "first 2 pairs" in shown
    monkeypatch.chdir(pairs_file.parent)
    likelihood.main(["--model", str(finished_run), "--pairs", ".", "--output_dir", str(tmp_path / "here")])
    assert EvaluationRecord.load(tmp_path / "here").task == pairs_file.parent.name
    before = (finished_run / "run_record.json").read_bytes()
    with pytest.raises(ValueError, match=finished_run.name):  # refused before the work
        likelihood.main([*flags, "--output_dir", str(finished_run)])
    assert (finished_run / "run_record.json").read_bytes() == before
