"""The command, as a user sees it."""

import re

import pytest

from hf_electra_rtd.detection.detect import main


SENTENCE = "The old mills were not the great rivers ."


@pytest.fixture
def directory(model, tokenizer, tmp_path):
    model.save_towers(tmp_path, tokenizer)
    return str(tmp_path)


def lines(text, label):
    return [line.split()[1:] for line in text.splitlines() if line.startswith(label)]


def test_proposals_and_scores_are_printed_and_readable_without_color(directory, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    main(["--model", directory, SENTENCE, "--mask", "mills", "--top_k", "2"])
    text = capsys.readouterr().out
    assert "\x1b[" not in text
    proposal = r" +\S+ \d+\.\d%"
    assert len(re.findall(rf"^(?:mill|##s) +\d+\.\d% \(no\. \d+\){proposal * 3}", text, re.MULTILINE)) == 2
    (original,), (corrupted,), (scores,) = (lines(text, label) for label in ("original", "corrupted", "replaced?"))
    assert original == ["the", "old", "mill", "##s", "were", "not", "the", "great", "river", "##s", "."]
    for before, after, score in zip(original, corrupted, scores, strict=True):
        assert re.fullmatch(r"\d+%[!?]" if before != after.removesuffix("*") else r"\d+%x?", score)


def test_several_sentences_are_scored_by_the_discriminator_alone(directory, capsys):
    main(["--discriminator", f"{directory}/discriminator", "--as_is", SENTENCE, "was it"])
    text = capsys.readouterr().out
    assert lines(text, "sentence")[1] == ["was", "it"]
    assert all(re.fullmatch(r"\d+%!?", score) for score in lines(text, "replaced?")[1])
    assert "original" not in text


def test_the_same_seed_prints_the_same(directory, capsys):
    printed = []
    for seed in ("1", "1", "2"):
        main(["--model", directory, SENTENCE, SENTENCE, "--seed", seed, "--mask_probability", "0.5"])
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] != printed[2]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--mask", "old", SENTENCE], "there is no sentence"),
        ([SENTENCE, "--as_is", "--mask", "old"], "cannot be combined"),
        ([SENTENCE, "--mask_probability", "1"], "must be between 0 and 1"),
        ([SENTENCE, "--temperature", "-1"], "at least 0"),
        ([SENTENCE, "--top_k", "0"], "at least 1"),
    ],
)
def test_flags_that_make_no_sense_are_refused(directory, capsys, flags, message):
    with pytest.raises(SystemExit):
        main(["--model", directory, *flags])
    assert message in capsys.readouterr().err
