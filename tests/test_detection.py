"""One sentence through both networks, and the command as a user sees it."""

import json
import re
import shutil

import pandas as pd
import pytest
import torch
from rich.console import Console

from hf_electra_rtd import Detector, ElectraForRTDPretraining
from hf_electra_rtd.inference.detection import Fill, _print_masked, detect, load_for_detection, main
from hf_electra_rtd.training.console import ScoredToken
from tests.conftest import tiny_config


SENTENCE = "The old mills were not the great rivers ."


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def run(model, tokenizer):
    return lambda sentence=SENTENCE, **options: detect(
        model.generator, model.discriminator, tokenizer, sentence, **{"random": seeded(), **options}
    )


def test_named_words_are_masked_with_all_their_wordpieces_at_every_occurrence(run):
    tokens, fills = run(words=["mills", "THE"])
    assert [(fill.position, fill.original[0]) for fill in fills] == [(1, "the"), (3, "mill"), (4, "##s"), (7, "the")]
    assert [at for at, token in enumerate(tokens) if token.masked] == [1, 3, 4, 7]
    assert [fill.original[0] for fill in run(words=["great rivers"])[1]] == ["great", "river", "##s"]
    assert [fill.position for fill in run("was . it . was", words=["was . it"])[1]] == [1, 2, 3]
    assert len(run("the old [MASK] mill .", words=["[MASK]"])[1]) == 3  # in a sentence, "[MASK]" is plain text


def test_a_part_of_a_word_masks_the_tokens_that_hold_it_unless_it_is_a_word_there(run):
    assert [fill.original[0] for fill in run(words=["mill"])[1]] == ["mill"]
    assert [fill.original[0] for fill in run(words=["iver"])[1]] == ["river"]
    assert [fill.position for fill in run("the mills were a mill .", words=["mill"])[1]] == [6]


def test_proposals_are_the_generators_probabilities_at_the_masked_tokens(run, model, tokenizer):
    ids = torch.tensor([tokenizer(SENTENCE)["input_ids"]])
    expected = model.generator(ids.index_fill(1, torch.tensor([3, 4]), 4)).logits[0].softmax(dim=-1).detach()
    for fill in run(words=["mills"], top_k=3)[1]:
        row = expected[fill.position]
        best = row.topk(3)
        assert [token for token, _ in fill.proposals] == tokenizer.convert_ids_to_tokens(best.indices)
        assert [share for _, share in fill.proposals] == pytest.approx(best.values.tolist(), rel=1e-5)
        original = tokenizer.convert_tokens_to_ids(fill.original[0])
        assert fill.original[1] == pytest.approx(float(row[original]), rel=1e-5)
        assert fill.rank == 1 + row.argsort(descending=True).tolist().index(original)


def test_temperature_0_samples_the_first_proposal_and_a_seed_decides_the_rest(run):
    assert all(fill.sampled == fill.proposals[0] for fill in run(temperature=0.0, mask_probability=0.5)[1])
    assert len({str(run(mask_probability=0.5, random=seeded(seed))) for seed in (0, 0, 1, 2, 3, 4)}) == 5


def test_the_discriminator_scores_the_sentence_with_the_samples_in_place(run, model, tokenizer):
    originals = tokenizer.convert_ids_to_tokens(tokenizer(SENTENCE)["input_ids"])
    tokens, fills = run(mask_probability=0.5)
    sampled = {fill.position: fill.sampled[0] for fill in fills}
    corrupted = [sampled.get(position, token) for position, token in enumerate(originals)]
    assert corrupted != originals
    expected = model.discriminator(torch.tensor([tokenizer.convert_tokens_to_ids(corrupted)])).logits[0].sigmoid()
    for position, token in enumerate(tokens):
        assert token[:3] == (originals[position], corrupted[position], position in sampled)
        assert token.probability == pytest.approx(expected[position].item(), rel=1e-5)


@pytest.mark.parametrize(("probability", "count"), [(0.01, 1), (0.3, 4), (0.99, 11)])
def test_random_masks_fall_on_the_asked_share_and_never_on_cls_or_sep(run, probability, count):
    for seed in range(5):
        tokens, fills = run(mask_probability=probability, random=seeded(seed))
        assert sum(token.masked for token in tokens[1:-1]) == len(fills) == count


@pytest.mark.parametrize(
    ("sentence", "words", "message"),
    [
        *((SENTENCE, ["old", word], f"'{word}'") for word in ("fox", "")),
        ("  \n", None, "token"),
        ("mill " * 63, None, " 65 .* 64 "),
    ],
)
def test_sentences_and_words_that_cannot_be_masked_are_refused(run, sentence, words, message):
    assert len(run("mill " * 62)[0]) == 64
    with pytest.raises(ValueError, match=message):
        run(sentence, words=words)


def test_a_detector_moves_probabilities_to_the_rate_of_errors(model, tokenizer):
    text = "The old mills were great"  # `mills` has two tokens
    logits = model.discriminator(torch.tensor([tokenizer(text)["input_ids"]])).logits[0].double()
    odds = logits.exp() * (0.1 / 0.9) / (0.13 / 0.87)
    shares = (odds / (1 + odds))[1:-1].tolist()
    expected = [*shares[:2], max(shares[2:4]), *shares[4:]]
    threshold = sorted(expected)[2]
    result = Detector(model.discriminator, tokenizer, error_rate=0.1, threshold=threshold * 1.001)(text)
    assert [(word, at) for word, at, _ in result["tokens"]] == [
        ("The", 0), ("old", 4), ("mills", 8), ("were", 14), ("great", 19)
    ]  # fmt: skip
    assert [share for _, _, share in result["tokens"]] == pytest.approx(expected, rel=1e-5)
    assert result["errors"] == [word for word in result["tokens"] if word[2] > threshold * 1.001]
    assert len(result["errors"]) == 2
    for rate in (0, 1):
        with pytest.raises(ValueError, match="error_rate"):
            Detector(model.discriminator, tokenizer, error_rate=rate)


def test_a_judge_switches_dropout_off_while_it_reads_and_takes_texts_alone(model, tokenizer):
    dropout = ElectraForRTDPretraining(tiny_config(hidden_dropout_prob=0.5)).discriminator.train()
    detector = Detector(dropout, tokenizer)
    assert detector("the old mill") == detector("the old mill")
    assert dropout.training
    frame = pd.DataFrame({"text": ["the old mill"]})
    for table in (frame, {"text": ["the old mill"]}, [{"text": "the old mill"}]):
        with pytest.raises(TypeError):
            detector(table)
    assert detector(frame["text"]) == [detector("the old mill")]


# ---- Loading ----


@pytest.fixture
def directory(model, tokenizer, tmp_path):
    """The directory of a finished run with its models."""
    model.save_pretrained(tmp_path / "run")
    tokenizer.save_pretrained(tmp_path / "run")
    model.save_towers(tmp_path / "run", tokenizer)
    return tmp_path / "run"


def test_a_run_a_checkpoint_and_two_towers_load_the_same_models(directory, model, tokenizer, tmp_path):
    shutil.copytree(directory, tmp_path / "checkpoint-5", ignore=shutil.ignore_patterns("generator", "discriminator"))
    parts = {"generator": str(directory / "generator"), "model": str(directory / "discriminator")}
    expected = Detector(model.discriminator, tokenizer)("the old mill")
    for named, as_is in (
        ({"model": str(directory)}, False),
        ({"model": str(tmp_path / "checkpoint-5")}, False),
        (parts, False),
        ({"model": parts["model"]}, True),
        ({"model": str(directory)}, True),
    ):
        generator, discriminator, loaded_tokenizer = load_for_detection(**named, as_is=as_is)
        assert Detector(discriminator, loaded_tokenizer)("the old mill") == expected
        assert not discriminator.training
        assert (generator is None) == as_is
        if generator is not None:
            assert torch.equal(generator.generator_lm_head.bias, model.generator.generator_lm_head.bias)


@pytest.fixture
def broken(directory, tmp_path):
    """A directory with models beside the run that cannot detect."""
    ElectraForRTDPretraining(tiny_config(vocab_size=60)).save_towers(tmp_path / "other")
    ElectraForRTDPretraining(tiny_config(objective="replace_mlm")).save_pretrained(tmp_path / "mlm-joint")
    shutil.copytree(directory, tmp_path / "alone", ignore=shutil.ignore_patterns("generator"))
    shutil.copytree(directory, tmp_path / "words")
    tokens = json.loads((directory / "tokenizer.json").read_text())
    tokens["model"]["vocab"] |= {f"word{index}": 55 + index for index in range(3)}
    (tmp_path / "words" / "discriminator" / "tokenizer.json").write_text(json.dumps(tokens))
    return tmp_path


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"model": "{}/alone"}, "generator"),
        ({"model": "{}/mlm-joint"}, "mlm-joint.*replace_mlm"),
        ({"generator": "{}/other/generator", "model": "{}/run/discriminator"}, "55 and 60"),
        ({"model": "{}/other/discriminator", "as_is": True}, "discriminator"),
        ({"model": "{}/words"}, "58 .* 55"),
        ({"model": "{}/mlm-joint", "runtime": "onnx"}, "onnx"),
    ],
)
def test_models_that_cannot_detect_are_refused(broken, named, message):
    paths = {name: path.format(broken) if isinstance(path, str) else path for name, path in named.items()}
    with pytest.raises(ValueError, match=message):
        load_for_detection(**paths)


# ---- The command ----


def lines(text, label):
    return [line.split()[1:] for line in text.splitlines() if line.startswith(label)]


def test_proposals_and_scores_are_printed_and_readable_without_color(directory, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    main(["--model", str(directory), SENTENCE, "--mask", "mills", "--top_k", "2"])
    text = capsys.readouterr().out
    assert "\x1b[" not in text
    proposal = r" +\S+ \d+\.\d%"
    assert len(re.findall(rf"^(?:mill|##s) +\d+\.\d% \(no\. \d+\){proposal * 3}", text, re.MULTILINE)) == 2
    (original,), (corrupted,), (scores,) = (lines(text, label) for label in ("original", "corrupted", "suspicion"))
    assert original == ["the", "old", "mill", "##s", "were", "not", "the", "great", "river", "##s", "."]
    replaced = sum(before != after.removesuffix("*") for before, after in zip(original, corrupted, strict=True))
    assert f"of {replaced} replaced tokens found" in text
    assert 0 < replaced == len(re.findall("found +|missed", text.partition("suspicion")[2]))
    ratios = [float(ratio) for ratio in scores if ratio != "x"]
    assert sum(ratios) / len(original) == pytest.approx(1, abs=0.05)  # each number is a ratio to the average
    main(["--model", str(directory), "", SENTENCE])
    assert lines(capsys.readouterr().out, "original") == [original]
    main(["--model", f"{directory}/discriminator", "--as_is", SENTENCE, "was it"])
    text = capsys.readouterr().out
    assert lines(text, "sentence")[1] == ["was", "it"]
    assert re.fullmatch(r"x \d+\.\d x \d+\.\d", " ".join(lines(text, "suspicion")[1]))
    assert not re.search("found|missed|alarm", text)  # nobody knows what was replaced


def test_no_proposal_is_cut_in_a_narrow_table_of_wide_letters(tokenizer, capsys):
    words = ["주겠다고", "가져가지", "약속하였다", "나누어", "고맙다고"]
    fill = Fill(1, ("국민에게", 0.003), 55, ("고맙다고", 0.008), [(word, 0.013) for word in words])
    tokens = [ScoredToken(name, name, False, 0.5) for name in ("[CLS]", "국민에게", "[SEP]")]
    for width in range(60, 120):
        _print_masked(tokens, [fill], tokenizer, Console(width=width))
        assert capsys.readouterr().out.count("1.3%") == len(words)


def test_a_command_without_a_text_is_refused():
    with pytest.raises(ValueError, match="TEXT"):
        main(["--model", "a", "--mask", "old", SENTENCE])
