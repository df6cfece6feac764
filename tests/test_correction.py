"""Correcting texts: the rules by which words change, and the command."""

# ruff: noqa: RUF001  # punctuation of Chinese

import io
import json
import math

import pytest
import torch
from transformers import BertTokenizer, ElectraConfig

from hf_electra_rtd import Detector, ElectraForRTDPretraining, ElectraRTDConfig
from hf_electra_rtd.data.confusion import Confusions
from hf_electra_rtd.data.tokenization import SPECIAL_TOKENS
from hf_electra_rtd.encoders.outputs import HeadOutput
from hf_electra_rtd.inference import correction, detection
from hf_electra_rtd.inference.correction import Corrector
from tests.conftest import save_corrector
from tests.families_for_tests import make_tokenizer, tiny_family_config


# ---- A model that knows what is wrong ----

CHARACTERS = "今天新心情很好坏我们去看电影店。，！"
WRONG = {"新": 3.0, "店": 2.0, "mill": 2.0}  # logits for "wrong"; all other words have -6
RIGHT = {"心": 3.0, "影": 2.5, "好": 2.0, "horse": 2.0}  # logits as the right word, at every place; others have 0


class Model(torch.nn.Module):
    """A model that suspects the words in `WRONG` and proposes those in `RIGHT`."""

    def __init__(self, vocabulary):
        super().__init__()
        self.config = ElectraConfig(vocab_size=len(vocabulary))
        self.device = torch.device("cpu")
        self.calls = 0
        self.wrong_V, self.right_V = torch.full((len(vocabulary),), -6.0), torch.zeros(len(vocabulary))
        for logits_V, known in ((self.wrong_V, WRONG), (self.right_V, RIGHT)):
            logits_V[[vocabulary[word] for word in known]] = torch.tensor(list(known.values()))

    def forward(self, input_ids, whole, **inputs):
        assert whole
        self.calls += 1
        return HeadOutput(self.right_V.expand(*input_ids.shape, -1), detection_logits=self.wrong_V[input_ids])


@pytest.fixture
def corrector():
    words = [*SPECIAL_TOKENS, *CHARACTERS, "the", "river", "mill", "##s", "horse"]
    chinese = BertTokenizer(vocab={word: index for index, word in enumerate(words)}, do_lower_case=True)

    fixed = {"batch_size": 4, "max_length": 16}

    def make(**options):
        return Corrector(Model(chinese.get_vocab()), chinese, **{"threshold": 0.5, **fixed, **options})

    return make


def test_a_wrong_character_is_replaced_and_right_text_stays(corrector):
    assert corrector()("今天新情很好") == {
        "source": "今天新情很好",
        "target": "今天心情很好",
        "errors": [("新", "心", 2)],
    }
    assert corrector()("今天心情很好")["errors"] == []
    results = corrector()(["去看电店", "今天新情很好。我们去看电店！" * 3, "新 mill"])
    assert results[0]["target"] == "去看电心"
    assert [at for _, _, at in results[1]["errors"]] == [2, 12, 16, 26, 30, 40]
    assert results[2]["target"] == "心 mill"  # as many characters as before


def test_a_word_of_several_tokens_or_none_stays_and_others_become_words_in_their_case(corrector, monkeypatch):
    monkeypatch.setitem(RIGHT, "horse", 4.0)
    monkeypatch.setitem(WRONG, "[UNK]", 4.0)
    result = corrector()("The Mills mill MILL Жan")
    assert result["target"] == "The Mills horse HORSE Жan"
    assert result["errors"] == [("mill", "horse", 10), ("MILL", "HORSE", 15)]


def test_confusions_limit_what_a_word_becomes_and_protect_others(corrector):
    confusions = Confusions({"新": ("好", "坏"), "店": ("影", "店")}, frozenset({"新情"}))
    results = corrector(confusions=confusions)(["去看电店", "新电", "新情"])
    assert [result["target"] for result in results] == ["去看电影", "好电", "新情"]
    nothing = corrector(confusions=Confusions({"新": ("x",)}), margin=-100.0)
    assert nothing("新")["errors"] == []


def test_a_word_in_another_case_is_the_same_word(monkeypatch):
    words = [*SPECIAL_TOKENS, "The", "the", "Their", "There", "there", "mill"]
    cased = BertTokenizer(vocab={word: index for index, word in enumerate(words)}, do_lower_case=False)
    monkeypatch.setattr(f"{__name__}.RIGHT", {"the": 4.0, "There": 1.0})
    monkeypatch.setattr(f"{__name__}.WRONG", {"mill": 0.0})
    judge = Corrector(Model(cased.get_vocab()), cased)
    assert judge("The")["errors"] == []  # the token `the` would be `The` again
    judge.confusions = Confusions({"their": ("there",)})
    assert judge("Their mill")["errors"][0] == ("Their", "There", 0)


def test_changes_need_suspicion_and_a_gain_above_the_margin(corrector):
    share = 1 / (1 + math.exp(-WRONG["新"]))
    for name, value in (("margin", RIGHT["心"]), ("threshold", share)):
        assert corrector(**{name: value + 1e-4})("今天新情很好")["errors"] == []
        assert corrector(**{name: value - 1e-4})("今天新情很好")["errors"] != []


def test_texts_that_cannot_be_judged_are_told_and_the_others_go_on(corrector, model):
    chinese = corrector().tokenizer
    for judge in (corrector(), Detector(model.discriminator, chinese, max_length=16, threshold=1.0)):
        empty, other, huge, fine = judge(["  ", "Привет мир", "今天很好。" * 8_000, "情"])
        assert "empty" in empty["skipped"]
        assert "vocabulary" in other["skipped"]
        assert "skipped" not in huge
        assert huge["errors"] == []
        assert "skipped" not in fine
    cut = corrector()("新 mill" + "s" * 30)
    assert " 16 " in cut["skipped"]
    assert cut["target"].startswith("心 mill")


# ---- The command ----


@pytest.fixture
def pair_directory(model, tokenizer, tmp_path):
    """The networks of a finished run, with random weights."""
    model.save_towers(tmp_path / "pair", tokenizer)
    return str(tmp_path / "pair")


@pytest.fixture
def corrector_directory(pair_directory, tokenizer, tmp_path):
    """A model for correction with random weights."""
    return save_corrector(f"{pair_directory}/generator", tokenizer, tmp_path / "corrector")


@pytest.mark.parametrize("part", ["", "/generator", "/discriminator"])
def test_a_pair_and_its_networks_are_refused_and_the_way_to_a_corrector_is_told(pair_directory, part):
    with pytest.raises(ValueError, match="--task_kind correction"):
        correction.main(["--model", pair_directory + part, "the river"])


def test_files_and_standard_input_give_a_json_line_for_each_line(corrector_directory, tmp_path, capsys, monkeypatch):
    lines = ["The old mill was the river.", "", "Привет", "the mill " * 200]
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n")
    flags = ["--model", corrector_directory, "--threshold", "0", "--margin", "-100"]
    correction.main([*flags, "--file", str(tmp_path / "lines.txt")])
    output = capsys.readouterr()
    correction.main([*flags, *lines, "--output_file", str(tmp_path / "results.jsonl")])
    assert capsys.readouterr() == ("", output.err)
    assert (tmp_path / "results.jsonl").read_text(encoding="utf-8") == output.out
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines) + "\n"))
    correction.main(flags)
    assert capsys.readouterr() == output
    typed = io.StringIO("a\nhe\n")
    typed.isatty = lambda: True
    monkeypatch.setattr("sys.stdin", typed)
    judged = []
    monkeypatch.setattr(correction.Corrector, "judge", lambda _, pieces: judged.append(pieces) or [[] for _ in pieces])
    correction.main(flags)
    assert judged == [["a"], ["he"]]  # each line is answered before the next one is read
    monkeypatch.undo()
    capsys.readouterr()
    results = [json.loads(line) for line in output.out.splitlines()]
    assert [result["source"] for result in results] == lines
    for result in results:
        target = result["source"]
        for wrong, right, at in reversed(result["errors"]):
            assert result["source"][at : at + len(wrong)] == wrong
            target = target[:at] + right + target[at + len(wrong) :]
        assert target == result["target"]
    assert results[0]["errors"]
    assert output.err.count("1 of 4 texts skipped") == 2
    detection.main(["--model", str(tmp_path / "pair"), "--as_is", "--file", str(tmp_path / "lines.txt")])
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [len(result["tokens"]) for result in found] == [7, 0, 0, 400]
    assert all(result["source"][at : at + len(word)] == word for result in found for word, at, _ in result["tokens"])
    correction.main([*flags, "the [river] was"])  # the text is shown with wrong and right words
    out = capsys.readouterr().out
    assert "\x1b[" not in out
    assert out.count("[-") == out.count("{+") > 0


def test_text_that_is_unknown_is_refused_of_files_alone_and_leaves_no_output(
    corrector_directory, pair_directory, tmp_path
):
    text = "Привет мир"
    (tmp_path / "lines.txt").write_text(f"{text}\n", encoding="utf-8")
    output = tmp_path / "results.jsonl"
    for module, more in ((detection, [pair_directory, "--as_is"]), (correction, [corrector_directory])):
        flags = ["--model", *more, "--output_file", str(output)]
        with pytest.raises(ValueError, match=r"lines\.txt"):
            module.main([*flags, "--file", str(tmp_path / "lines.txt")])
        assert not output.exists()
        module.main([*flags, "", text])
        assert len(output.read_text(encoding="utf-8").splitlines()) == 2
        output.unlink()


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        *((correction.CorrectArguments, name) for name in ("file", "model", "confusion_file")),
        *((detection.DetectArguments, name) for name in ("file", "model", "generator")),
    ],
)
def test_what_is_written_replaces_nothing_that_is_read(arguments, name):
    given = {"as_is": True} if arguments is detection.DetectArguments else {}
    with pytest.raises(ValueError, match="replace"):
        arguments(**{"model": "m", **given, name: "a"}, output_file="a")


def test_corrections_of_a_table_are_scored(corrector_directory, tmp_path, capsys, monkeypatch):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("text\tright\nthe old mill .\tthe old river .\na 的 it\ta 的 it\nin it\tin it\n")
    flags = ["--model", corrector_directory, "--score", str(pairs)]
    correction.main([*flags, "--threshold", "1", "--format", "json"])
    scores = json.loads(capsys.readouterr().out)
    assert (scores["sentences"], scores["wrong_sentences"], scores["flagged_sentences"]) == (3, 1, 0)
    corrected = [{"target": text} for text in ("the old river .", "a 地 it", "in it")]
    monkeypatch.setattr(Corrector, "results", lambda self, texts: corrected)
    for more, flagged in ([], 2), (["--sighan13"], 1):
        correction.main([*flags, *more])
        assert f"3 sentences, 1 of them wrong; {flagged} flagged" in capsys.readouterr().out


# ---- Other families ----


@pytest.mark.parametrize("name", ["roberta", "modernbert"])
def test_models_of_other_families_detect_and_correct(name, tmp_path):
    tokenizer = make_tokenizer("byte-level BPE, <s>")
    sizes = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    towers = [tiny_family_config(name, **sizes) for _ in range(2)]
    model = ElectraForRTDPretraining(
        ElectraRTDConfig(generator_config=towers[0], discriminator_config=towers[1], sharing="none")
    ).eval()
    model.save_pretrained(tmp_path / "joint")
    tokenizer.save_pretrained(tmp_path / "joint")
    model.save_towers(tmp_path / "run", tokenizer)
    text = "the river and the mill"
    found = {}
    for source in ("joint", "run"):
        words = Detector.from_pretrained(str(tmp_path / source))(text)["tokens"]
        assert [word for word, _, _ in words] == text.split()
        found[source] = [share for _, _, share in words]
    assert found["joint"] == pytest.approx(found["run"], rel=1e-4)
    path = save_corrector(tmp_path / "run" / "generator", tokenizer, tmp_path / "corrector")
    result = Corrector.from_pretrained(path, threshold=0.0, margin=-100.0)(text)
    assert result["errors"]
    assert all(text[at : at + len(wrong)] == wrong for wrong, _, at in result["errors"])
    assert len(result["target"].split(" ")) == len(text.split(" "))
    assert "Ġ" not in result["target"]
