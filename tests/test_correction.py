"""Judging and correcting texts: places in texts, the rules by which words change, and the commands."""

# ruff: noqa: RUF001  # punctuation of Chinese

import io
import json
import math
import random
from itertools import pairwise

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import Unigram
from tokenizers.pre_tokenizers import Metaspace
from transformers import BertTokenizer, ElectraConfig, PreTrainedTokenizerFast, RobertaTokenizer

from hf_electra_rtd import ElectraForRTDPretraining, ElectraRTDConfig
from hf_electra_rtd.data import confusion
from hf_electra_rtd.data.confusion import Confusions, Misspeller, read_confusions
from hf_electra_rtd.data.tokenization import SPECIAL_TOKENS
from hf_electra_rtd.data.units import Unit, cut_text, find_units
from hf_electra_rtd.inference import correction, detection
from hf_electra_rtd.inference.correction import Change, Corrector, _is_right, _PairRanker
from hf_electra_rtd.inference.detection import Detector
from tests.conftest import tiny_config
from tests.families_for_tests import tiny_family_config


# ---- Places in texts ----

CHARACTERS = "今天新心情很好坏我们去看电影店。，！"


@pytest.fixture(scope="module")
def chinese():
    words = [*SPECIAL_TOKENS, *CHARACTERS, "the", "river", "mill", "##s", "horse"]
    return BertTokenizer(vocab={word: index for index, word in enumerate(words)}, do_lower_case=True)


@pytest.fixture(scope="module")
def byte_level():
    first = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    empty = RobertaTokenizer(vocab={token: index for index, token in enumerate(first)}, merges=[])
    text = ["the river and the mill and the horse", "今天心情很好"] * 20
    return empty.train_new_from_iterator(text, 400, show_progress=False)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The  mills, 今天iPhone好", ["The", "mills", ",", "今", "天", "iPhone", "好"]),
        ("the river 😀 xyz", ["the", "river", "😀", "xyz"]),
        ("the mi\u0301ll\u0301 horse", ["the", "mi\u0301ll\u0301", "horse"]),
    ],
)
@pytest.mark.parametrize("name", ["chinese", "byte_level"])
def test_words_are_pieces_of_the_text_whatever_the_tokens_look_like(name, text, words, request):
    tokenizer = request.getfixturevalue(name)
    encoding = tokenizer([text], split_special_tokens=True).encodings[0]
    units = find_units(text, encoding)
    found = [text[unit.start : unit.stop] for unit in units]
    assert "".join(found) == "".join(text.split())
    if name == "chinese":
        assert found == words
    else:  # Chinese is cut where its tokens are
        assert [word for word in found if word.isascii()] == [word for word in words if word.isascii()]
    assert all(unit.first >= before.last for before, unit in pairwise(units))  # spaces may be tokens
    assert (units[0].first, units[-1].last) == (1, len(encoding) - 1)


def test_pieces_are_the_text_and_end_after_sentences(chinese, byte_level):
    draw = random.Random(0)
    for tokenizer in (chinese, byte_level):
        for length in (0, 1, 30, 200):
            text = "".join(draw.choices(CHARACTERS + "  the", k=length))
            spans = cut_text(text, tokenizer, 12)
            assert "".join(text[start:stop] for start, stop in spans) == text
            if tokenizer is chinese:
                assert max(len(tokenizer(text[start:stop])["input_ids"]) for start, stop in spans) <= 12
    text = "我们去看电影。今天很好，心情很好！我们去看电影"
    assert [text[start:stop] for start, stop in cut_text(text, chinese, 13)] == [
        "我们去看电影。", "今天很好，心情很好！", "我们去看电影",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="max_length"):
        cut_text(text, chinese, 2)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("the river " + "😂" * 20, ["the river", " " + "😂" * 20]),  # longer than a piece, and the last unit
        ("the river" + " " * 40, ["the river"]),
        ("the" + " the" * 10 + " " * 9 + "the the the the", ["the" + " the" * 10, " " * 9 + "the the the", " the"]),
    ],
    ids=["a long last word", "spaces at the end", "spaces before a piece"],
)
def test_tokens_of_spaces_count_and_a_last_word_may_be_longer_than_a_piece(byte_level, text, pieces):
    assert [text[start:stop] for start, stop in cut_text(text, byte_level, 13)] == pieces


def test_marks_of_sentencepiece_count():
    vocab = [(token, 0.0) for token in ("[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]")]
    backend = Tokenizer(Unigram([*vocab, *((token, -1.0) for token in "▁" + CHARACTERS)], unk_id=3))
    backend.pre_tokenizer = Metaspace()
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **names)
    text = "我们去看电影" * 9
    lengths = [len(tokenizer(text[start:stop])["input_ids"]) for start, stop in cut_text(text, tokenizer, 12)]
    assert max(lengths) == 12


# ---- A pair that knows what is wrong ----


class Tower(torch.nn.Module):
    """A model whose logits a function makes of the ids (L,) of each text."""

    def __init__(self, vocab_size, logits):
        super().__init__()
        self.config, self.logits = ElectraConfig(vocab_size=vocab_size), logits
        self.device, self.calls = torch.device("cpu"), 0

    def forward(self, input_ids, **inputs):
        self.calls += 1
        return type("Output", (), {"logits": torch.stack([self.logits(ids.tolist()) for ids in input_ids])})


WRONG = {"新": 3.0, "店": 2.0, "mill": 2.0}  # logits of being replaced; of all others -6


@pytest.fixture
def corrector(chinese):
    ids = chinese.get_vocab()

    def detect(text):
        return torch.tensor([{ids[word]: z for word, z in WRONG.items()}.get(index, -6.0) for index in text])

    def generate(text):
        logits = torch.zeros(len(text), len(chinese))
        logits[:, [ids["心"], ids["影"], ids["好"], ids["horse"]]] = torch.tensor([3.0, 2.5, 2.0, 2.0])
        return logits

    towers = Tower(len(chinese), generate), Tower(len(chinese), detect)

    def make(**options):
        ranker = _PairRanker(*towers, chinese.mask_token_id, 0.0, 4)
        return Corrector(ranker, chinese, **{"margin": 1.0, "batch_size": 4, "max_length": 16, **options})

    make.detector = Detector(towers[1], chinese, error_rate=detection.REPLACED_RATE)
    return make


def test_a_wrong_character_is_replaced_and_right_text_stays(corrector):
    assert corrector()("今天新情很好") == {
        "source": "今天新情很好",
        "target": "今天心情很好",
        "errors": [("新", "心", 2)],
    }
    assert corrector()("今天心情很好")["errors"] == []
    results = corrector()(["去看电店", "今天新情很好。我们去看电店！" * 3, "The Mills mill MILL", "新 mill"])
    assert results[0]["target"] == "去看电心"  # the generator's first choice
    assert [at for _, _, at in results[1]["errors"]] == [2, 12, 16, 26, 30, 40]
    # A word of several tokens stays; English words become English ones, in their case.
    assert results[2]["target"] == "The Mills horse HORSE"
    assert results[2]["errors"] == [("mill", "horse", 10), ("MILL", "HORSE", 15)]
    assert results[3]["target"] == "心 mill"  # as many characters as before


def test_confusions_limit_what_a_word_becomes_and_protect_others(corrector):
    confusions = Confusions({"新": ("好", "坏"), "店": ("影", "店")}, frozenset({"新情"}))
    (first, second, third) = corrector(confusions=confusions)(["去看电店", "新电", "新情"])
    assert [result["target"] for result in (first, second, third)] == ["去看电影", "好电", "新情"]
    nothing = corrector(confusions=Confusions({"新": ("x",)}))
    assert nothing("新")["errors"] == []


def test_changes_need_suspicion_and_a_gain_above_the_margin(corrector):
    text = "今天新情很好"
    (change,) = corrector().propose([text], threshold=0.5)[0]
    # Of both tokens p_G and D are known, so the gain follows.
    logits = torch.zeros(len(corrector().tokenizer), dtype=torch.float64)
    ids = corrector().tokenizer.get_vocab()
    logits[[ids["心"], ids["影"], ids["好"], ids["horse"]]] = torch.tensor([3.0, 2.5, 2.0, 2.0], dtype=torch.float64)
    log_p = logits.log_softmax(0)

    def brute_force(z, log_p_generator):
        share, p = 1 / (1 + math.exp(z)), math.exp(log_p_generator)
        return math.log(share * p / (0.85 / 0.15 * (1 - share) + p))

    gain = brute_force(-6.0, log_p[ids["心"]].item()) - brute_force(3.0, log_p[ids["新"]].item())
    assert change[1:3] == ("心", 3.0)
    assert change.gain == pytest.approx(gain, rel=1e-6)
    assert corrector(margin=gain + 0.01)(text)["errors"] == []
    assert corrector(margin=gain - 0.01)(text)["errors"] != []
    share = 1 / (1 + math.exp(-3.0))
    assert corrector(threshold=share + 1e-4)(text)["errors"] == []
    assert corrector(threshold=share - 1e-4)(text)["errors"] != []


def test_texts_that_cannot_be_judged_are_told_and_the_others_go_on(corrector):
    for judge in (corrector(), corrector.detector):
        empty, other, huge, fine = judge(["  ", "Привет мир", "今天很好。" * 8_000, "新"])
        assert "empty" in empty["skipped"]
        assert "vocabulary" in other["skipped"]
        assert "skipped" not in huge
        assert huge["errors"] == []
        assert len(fine["errors"]) == 1
    cut = corrector()("新 mill" + "s" * 30)
    assert " 16 " in cut["skipped"]
    assert cut["target"].startswith("心 mill")


def test_a_detector_moves_probabilities_to_the_rate_of_errors(corrector, chinese):
    tower = corrector.detector.discriminator
    result = Detector(tower, chinese, error_rate=0.02, threshold=0.6)("天新 mills")
    words = {word: (at, share) for word, at, share in result["tokens"]}
    assert {word: at for word, (at, _) in words.items()} == {"天": 0, "新": 1, "mills": 3}
    for word, z in (("天", -6.0), ("新", 3.0), ("mills", 2.0)):  # of `mill` and `##s`
        odds = math.exp(z) * (0.02 / 0.98) / (0.13 / 0.87)
        assert words[word][1] == pytest.approx(odds / (1 + odds), rel=1e-6)
    assert [error[0] for error in result["errors"]] == ["新"]
    assert corrector.detector(["新"])[0] == corrector.detector("新")


@pytest.mark.parametrize(
    ("source", "right", "word", "changed", "expected"),
    [
        ("teh mill", "the mill", "teh", "the", True),
        ("teh mill", "then mill", "teh", "the", False),  # which begins with it
        ('he said "teh" mill', 'he said "the" mill', "teh", "the", True),
        ("teh mill", "the mill", "mill", "river", False),
        ("今天新情", "今天心情", "新", "心", True),
    ],
)
def test_a_change_is_right_where_it_makes_the_right_word(source, right, word, changed, expected):
    first = source.index(word)
    change = Change(Unit(first, first + len(word), 1, 2), changed, 0.0, 0.0)
    assert _is_right(change, source, right) is expected


def test_calibration_keeps_to_the_false_positive_rate_on_right_sentences(chinese, caplog):
    ids, draw, size = chinese.get_vocab(), random.Random(0), len(chinese)
    noise = [draw.gauss(0, 2) for _ in range(size)]

    def detect(text):
        pairs = zip([0, *text], text, strict=False)
        return torch.tensor([noise[(index + before) % size] + 3 * (index == ids["店"]) for before, index in pairs])

    towers = Tower(size, lambda text: torch.tensor([noise[::-1]] * len(text))), Tower(size, detect)
    rights = ["".join(draw.choices(CHARACTERS[:14], k=6)) for _ in range(60)]
    sources = [text[:2] + "店" + text[3:] if row % 3 else text for row, text in enumerate(rights)]
    for rate in (0.0, 0.1, 0.5):
        corrector = Corrector(_PairRanker(*towers, chinese.mask_token_id, 0.0, 8), chinese)
        for judge in (corrector, Detector(towers[1], chinese)):
            kept = judge.calibrate(sources, rights, rate)
            clean = list(dict.fromkeys(rights))
            flagged = sum(bool(result["errors"]) for result in judge(clean)) / len(clean)
            assert flagged <= rate
            assert kept["false_positive_rate"] == pytest.approx(flagged)
            assert kept["threshold"] == judge.threshold
            assert bool(caplog.text) == (kept.get("wrong_sentences_corrected_first") == 0)  # a warning
            caplog.clear()


# ---- Confusions ----


def test_confusion_files_are_read_with_strings_of_characters_and_protected_words(tmp_path):
    path = tmp_path / "confusions.txt"
    path.write_text("# sound\n新\t心辛\t欣\n\nteh the\n电影 电影\nteh then teh\n", encoding="utf-8-sig")
    read = read_confusions(str(path))
    assert read.rights == {"新": ("心", "辛", "欣"), "teh": ("the", "then")}
    assert read.protected_in("去看电影院") == [range(2, 4)]
    assert Confusions({}, frozenset({"art"})).protected_in("party art") == [range(6, 9)]
    assert Confusions({}, frozenset({"art"})).protected_in("Art") == [range(3)]
    overlapping = Confusions({}, frozenset({"北京", "京城"}))
    assert overlapping.protected_in("北京城很大") == [range(2), range(1, 3)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("新 心\n情\n", "line 2"),
        ("# nothing\n", "confusions.txt"),
        *((row, f"line 1: '{row}'") for row in ("今天 明天", "万 hzp")),
    ],
)
def test_confusion_files_with_wrong_columns_are_refused(tmp_path, text, message):
    (tmp_path / "confusions.txt").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_confusions(str(tmp_path / "confusions.txt"))


def test_sentences_get_one_error_of_a_kind_drawn_by_its_share():
    sets = [Confusions({"心": ("新",), "田": ("天",), "天": ("天",)}), Confusions({"号": ("好",), "y": ("x",)})]
    misspell, source = Misspeller(sets, [0.6, 0.3], seed=1), "今天新好"
    counts = {"sound": 0, "shape": 0, "random": 0}
    for _ in range(3000):
        (change,) = [(old, new) for old, new in zip(source, misspell(source), strict=True) if old != new]
        kind = "sound" if change in (("新", "心"), ("天", "田")) else "shape" if change == ("好", "号") else "random"
        counts[kind] += 1
    assert counts == pytest.approx({"sound": 1800, "shape": 900, "random": 300}, abs=90)
    assert Misspeller(sets[1:], [1.0])("今天") == "今天"  # no row, and nothing is random
    for shares in ([0.5], [0.9, 0.2], [-0.1, 0.5]):
        with pytest.raises(ValueError, match="shares"):
            Misspeller(sets, shares)


def test_rows_misspell_words_in_upper_case_and_leave_protected_ones_and_random_errors_are_right_words(tmp_path):
    (tmp_path / "typos.txt").write_text("then the\ni I\nhuose house\nhouse house\nMill Mill\n")
    read = read_confusions(str(tmp_path / "typos.txt"))
    misspell = Misspeller([read], [1.0])
    sentences = ["The house", "THE house", "house I", "house Mill"]
    assert list(map(misspell, sentences)) == ["Then house", "THEN house", "house i", "house Mill"]
    misspell = Misspeller([read], [0.0])
    drawn = {word for _ in range(200) for word in misspell("we like the old mill").split()}
    assert drawn == {"we", "like", "old", "mill", "the", "I", "house"}


def test_errors_in_a_text_with_chinese_are_single_characters():
    sets = [Confusions({"aple": ("apple",), "ta": ("她",), "他": ("她",)})]
    misspell = Misspeller(sets, [1.0])
    assert {misspell("她有apple手机") for _ in range(20)} == {"他有apple手机"}
    assert misspell("we have Apple phones") == "we have Aple phones"


def test_pairs_are_made_from_text_and_a_file_that_changes_none_is_refused(tmp_path, capsys):
    (tmp_path / "text.txt").write_text(
        "今天新情很好。我们去看电影！好\n\nThe horse saw the mill. It was\tthere.\n" * 30
    )
    (tmp_path / "set.txt").write_text("horse horse\n")
    flags = ["--files", str(tmp_path / "text.txt"), "--confusion_files", str(tmp_path / "set.txt")]
    flags += ["--output_file", str(tmp_path / "pairs.tsv"), "--max_pairs", "100"]
    with pytest.raises(ValueError, match=r"set\.txt: .*100"):
        confusion.main(flags)
    assert not list(tmp_path.glob("pairs*"))
    with pytest.raises(ValueError, match=r"set\.txt"):
        confusion.main([*flags, "--output_file", str(tmp_path / "set.txt")])
    with pytest.raises(ValueError, match="--files"):
        confusion.main([*flags, "--files", str(tmp_path / "text.txt,weight=2")])
    (tmp_path / "set.txt").write_text("心 新\n店 电\nhouse horse\n")
    confusion.main(flags)
    assert "100 pairs" in capsys.readouterr().out
    header, *rows = (line.split("\t") for line in (tmp_path / "pairs.tsv").read_text().splitlines())
    assert (header, len(rows)) == (["text", "right"], 100)
    whole = {"今天新情很好。", "我们去看电影！", "The horse saw the mill.", "It was there."}
    assert {right for _, right in rows} == whole
    errors = {(text, right) for text, right in rows if text != right}
    assert errors == {("今天心情很好。", "今天新情很好。"), ("我们去看店影！", "我们去看电影！"),
                      ("The house saw the mill.", "The horse saw the mill.")}  # fmt: skip


# ---- The commands ----


@pytest.fixture
def directory(model, tokenizer, tmp_path):
    """The models of a finished run, with random weights."""
    model.save_pretrained(tmp_path / "run")
    tokenizer.save_pretrained(tmp_path / "run")
    return str(tmp_path / "run")


def test_files_and_standard_input_give_a_json_line_for_each_line(directory, tmp_path, capsys, monkeypatch):
    lines = ["The old mill was the river.", "", "Привет", "the mill " * 200]
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n")
    flags = ["--model", directory, "--threshold", "0", "--margin", "-100", "--top_k", "3"]
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
    assert judged == [["a"], ["he"]]  # each line is answered before the next one
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
    detection.main(["--model", directory, "--as_is", "--file", str(tmp_path / "lines.txt")])
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [len(result["tokens"]) for result in found] == [7, 0, 0, 400]
    assert all(result["source"][at : at + len(word)] == word for result in found for word, at, _ in result["tokens"])
    correction.main([*flags, "the [river] was"])  # is shown with wrong and right words
    out = capsys.readouterr().out
    assert "\x1b[" not in out
    assert out.count("[-") == out.count("{+") > 0


def test_text_that_is_unknown_is_refused_of_files_alone_and_leaves_no_output(directory, tmp_path):
    text = "Привет мир"
    (tmp_path / "lines.txt").write_text(f"{text}\n", encoding="utf-8")
    output = tmp_path / "results.jsonl"
    for module, more in ((detection, ["--as_is"]), (correction, [])):
        flags = ["--model", directory, *more, "--output_file", str(output)]
        with pytest.raises(ValueError, match=r"lines\.txt"):
            module.main([*flags, "--file", str(tmp_path / "lines.txt")])
        assert not output.exists()
        module.main([*flags, "", text])
        assert len(output.read_text(encoding="utf-8").splitlines()) == 2
        output.unlink()


@pytest.mark.parametrize("name", ["file", "discriminator", "generator", "thresholds", "calibrate", "confusion_file"])
def test_what_is_written_replaces_nothing_that_is_read(name, tmp_path):
    path = str(tmp_path / "a")
    given = {"discriminator": "tower", name: path}
    if name == "calibrate":
        given["thresholds"] = path
    else:
        given["output_file"] = path
    with pytest.raises(ValueError, match="replace"):
        correction.CorrectArguments(**given)
    if name == "confusion_file":
        with pytest.raises(ValueError, match="replace"):
            correction.CorrectArguments(model="tower", calibrate="pairs", thresholds=path, confusion_file=path)


def test_thresholds_keep_how_texts_were_read_when_they_were_chosen(directory, tmp_path, capsys, monkeypatch):
    pairs, kept = tmp_path / "pairs.tsv", tmp_path / "kept.json"
    pairs.write_text("text\tright\nthe old mill .\tthe old river .\nin it\tin it\n")
    flags, judges = ["--model", directory, "--thresholds", str(kept)], []
    for module, more, given in (
        (detection, ["--as_is"], {"max_length": 16}),
        (correction, [], {"max_length": 16, "top_k": 3}),
    ):
        settings = [part for name, value in given.items() for part in (f"--{name}", str(value))]
        module.main([*flags, *more, *settings, "--calibrate", str(pairs)])
        monkeypatch.setattr(detection, "run_on_texts", lambda judge, *_: judges.append(judge))
        module.main([*flags, *more, "the old mill ."])
        assert {name: getattr(judges[-1], name) for name in given} == given
        for name, value in given.items():
            with pytest.raises(ValueError, match=name):
                module.main([*flags, *more, f"--{name}", str(value + 1), "the old mill ."])
        monkeypatch.undo()
    capsys.readouterr()


def test_thresholds_are_written_and_read_and_refused_for_what_they_were_not_chosen_for(directory, tmp_path, capsys):
    pairs, kept, words = tmp_path / "pairs.tsv", tmp_path / "kept.json", tmp_path / "words.txt"
    pairs.write_text(
        "text\tright\n" + "the old mill .\tthe old river .\n" + "".join(f"{w} it\t{w} it\n" for w in ("a", "he", "in"))
    )
    words.write_text("mill river\n")
    confusions = ["--confusion_file", str(words)]
    for module, more, names in ((detection, ["--as_is"], {"threshold"}), (correction, confusions, {"margin"})):
        flags = ["--model", directory, "--thresholds", str(kept), *more]
        module.main([*flags, "--calibrate", str(pairs), "--false_positive_rate", "0.3", "--error_rate", "0.1"])
        written = json.loads(kept.read_text())
        assert {"threshold", *names} <= written.keys()
        assert written["false_positive_rate"] <= 0.3
        assert (written["model"], written["calibrate"]["file"]) == ("run", "pairs.tsv")
        assert written["error_rate"] == 0.1
        capsys.readouterr()
        results = []
        for rates in ([], ["--error_rate", "0.1"]):
            module.main([*flags, *rates, "the old mill .", "--format", "json"])
            results.append(json.loads(capsys.readouterr().out))
        assert results[0] == results[1]
        if module is detection:
            found = [word for word in results[0]["tokens"] if word[2] > written["threshold"]]
            assert results[0]["errors"] == found
        with pytest.raises(ValueError, match="error_rate"):
            module.main([*flags, "--error_rate", "0.2", "the old mill ."])
    correction.main([*flags, "--score", str(pairs), "--format", "json"])
    assert json.loads(capsys.readouterr().out)["sentences"] == 4
    correction.main([*flags, "--score", str(pairs), "--sighan13"])
    assert "4 sentences, 1 of them wrong" in capsys.readouterr().out
    with pytest.raises(ValueError, match="weights"):
        detection.main([*flags[:-2], "--as_is", "the old mill ."])  # they are of both towers
    words.write_text("mill river old\n")
    for named in (flags, flags[:-2]):
        with pytest.raises(ValueError, match="confusion_file"):
            correction.main([*named, "the old mill ."])
    words.write_text("mill river\n")
    ElectraForRTDPretraining(tiny_config()).save_pretrained(directory)
    with pytest.raises(ValueError, match="weights"):
        correction.main([*flags, "the old mill ."])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["a", "--file", "b"], "--file"),
        (["--score", "a", "--calibrate", "a", "--thresholds", "b"], "--score"),
        (["--file", "a", "--output_file", "m/a"], "m/a"),
        (["--score", "a", "--output_file", "b"], "--output_file"),
        (["--calibrate", "a"], "--thresholds"),
        (["--calibrate", "a", "--thresholds", "a"], "a would replace"),
        (["--calibrate", "a", "--thresholds", "b", "--confusion_file", "b"], "b would replace"),
        (["a", "--threshold", "2"], "--threshold"),
        (["a", "--margin", "nan"], "--margin"),
    ],
)
def test_flags_that_make_no_sense_are_refused(flags, message):
    with pytest.raises(ValueError, match=message):
        correction.main(["--model", "m", *flags])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("threshold", math.nan),
        ("threshold", 10**400),
        ("error_rate", 0),
        ("margin", "high"),
        ("margin", math.inf),
        ("top_k", 0),
        ("batch_size", 1.5),
        ("max_length", True),
    ],
)
def test_values_of_a_file_of_thresholds_are_checked_as_those_of_flags(tmp_path, name, value):
    kept = tmp_path / "kept.json"
    kept.write_text(json.dumps({"threshold": 0.5, name: value}))
    arguments = correction.CorrectArguments(model="m", thresholds=str(kept))
    with pytest.raises(ValueError, match=rf"kept\.json: {name}"):
        detection.open_judge(pytest.fail, ["threshold", name], arguments)


# ---- Pairs of other families ----


@pytest.mark.parametrize("name", ["roberta", "modernbert"])
def test_pairs_of_other_families_detect_and_correct_from_a_run_and_its_towers(name, byte_level, tmp_path):
    sizes = {"vocab_size": len(byte_level), "pad_token_id": byte_level.pad_token_id}
    towers = [tiny_family_config(name, **sizes) for _ in range(2)]
    model = ElectraForRTDPretraining(
        ElectraRTDConfig(generator_config=towers[0], discriminator_config=towers[1], sharing="none")
    ).eval()
    model.save_pretrained(tmp_path / "joint")
    byte_level.save_pretrained(tmp_path / "joint")
    model.save_towers(tmp_path / "run", byte_level)
    text, kept = "the river and the mill", {}
    for source in ("joint", "run"):
        detector = Detector.from_pretrained(str(tmp_path / source))
        corrector = Corrector.from_pretrained(str(tmp_path / source), threshold=0.0, margin=-100.0)
        kept[source] = [share for _, _, share in detector(text)["tokens"]], corrector(text)
        assert "Ġ" not in str(kept[source])
    assert kept["joint"][0] == pytest.approx(kept["run"][0], rel=1e-4)
    assert kept["joint"][1] == kept["run"][1]
    errors = kept["run"][1]["errors"]
    assert errors
    assert all(text[at : at + len(wrong)] == wrong for wrong, _, at in errors)
    assert len(kept["run"][1]["target"].split(" ")) == len(text.split(" "))
