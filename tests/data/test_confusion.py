"""Confusion files, and the pairs of wrong and right sentences that are made from them."""

# ruff: noqa: RUF001  # punctuation of Chinese

from collections import Counter

import pytest

from hf_electra_rtd.data import confusion
from hf_electra_rtd.data.confusion import Confusions, Misspeller, count_right_words, read_confusions


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
    source = "今天新好"
    often = {"心": 10**9, "田": 10**9, "号": 10**9}  # nearly no word stays as it is
    misspell = Misspeller(sets, [0.6, 0.3], {**dict.fromkeys("新天好x", 0), **often}, seed=1)
    counts = {"sound": 0, "shape": 0, "random": 0}
    for _ in range(3000):
        (change,) = [(old, new) for old, new in zip(source, misspell(source), strict=True) if old != new]
        kind = "sound" if change in (("新", "心"), ("天", "田")) else "shape" if change == ("好", "号") else "random"
        counts[kind] += 1
    assert counts == pytest.approx({"sound": 1800, "shape": 900, "random": 300}, abs=90)
    assert Misspeller(sets[1:], [1.0], {})("今天") == "今天"  # no row applies, and the share of random errors is 0
    for shares in ([0.5], [0.9, 0.2], [-0.1, 0.5]):
        with pytest.raises(ValueError, match="shares"):
            Misspeller(sets, shares, {})


def test_a_wrong_word_is_drawn_as_often_as_it_stands_in_the_text():
    """So `then` in place of `the` is as frequent as `the` in place of `then`, however rare `then` is."""
    sets = [Confusions({"the": ("then",), "then": ("the",), "teh": ("the",)})]
    sentences = ["See THE mill."] * 900 + ["then we left"] * 100
    counts = count_right_words(sets, sentences)
    assert counts == {"the": 900, "then": 100}
    misspell = Misspeller(sets, [1.0], counts, seed=1)
    drawn = Counter(map(misspell, sentences * 50))
    # Out of `the` (901), `then` (101) and `teh`, which no text holds, so that it counts as `the` does.
    assert drawn["See THEN mill."] == pytest.approx(45_000 * 101 / (901 + 101 + 901), rel=0.05)
    assert drawn["See TEH mill."] == pytest.approx(45_000 * 901 / (901 + 101 + 901), rel=0.05)
    assert drawn["the we left"] == pytest.approx(5_000 * 901 / (901 + 101), rel=0.05)


def test_rows_misspell_words_in_upper_case_and_leave_protected_ones_and_random_errors_are_right_words(tmp_path):
    (tmp_path / "typos.txt").write_text("then the\ni I\nhuose house\nhouse house\nMill Mill\n")
    read = read_confusions(str(tmp_path / "typos.txt"))
    often = {"then": 10**9, "i": 10**9}
    misspell = Misspeller([read], [1.0], {"the": 0, "I": 0, "house": 0, "Mill": 0, **often})
    sentences = ["The house", "THE house", "house I", "house Mill"]
    assert list(map(misspell, sentences)) == ["Then house", "THEN house", "house i", "house Mill"]
    misspell = Misspeller([read], [0.0], {"the": 0, "I": 0, "house": 0})
    drawn = {word for _ in range(200) for word in misspell("we like the old mill").split()}
    assert drawn == {"we", "like", "old", "mill", "the", "I", "house"}
    drawn = {misspell("The, THE") for _ in range(100)}
    assert drawn == {"The, THE", "I, THE", "House, THE", "The, I", "The, HOUSE"}  # never `the` for `The`


def test_a_protected_word_is_whole_also_where_its_letters_carry_marks():
    protected = Confusions({}, frozenset({"हम", "Mill"}))
    text = "हम, Mill mills, हमें"
    assert [text[part.start : part.stop] for part in protected.protected_in(text)] == ["हम", "Mill"]


def test_errors_in_a_text_with_chinese_are_single_characters():
    sets = [Confusions({"aple": ("apple",), "ta": ("她",), "他": ("她",)})]
    misspell = Misspeller(sets, [1.0], {"她": 1, "apple": 1})
    assert {misspell("她有apple手机") for _ in range(20)} == {"她有apple手机", "他有apple手机"}
    assert {misspell("we have Apple phones") for _ in range(20)} == {"we have Apple phones", "we have Aple phones"}


def test_pairs_are_made_from_text_and_a_file_that_changes_none_is_refused(tmp_path, capsys):
    (tmp_path / "text.txt").write_text(
        "今天新情很好。“我们去看电影！”好\n\nThe horse saw the mill. It was\tthere.\n" * 30
    )
    (tmp_path / "set.tsv").write_text("horse horse\n")
    flags = ["--files", str(tmp_path / "text.txt"), "--confusion_files", str(tmp_path / "set.tsv")]
    flags += ["--output_file", str(tmp_path / "pairs.tsv"), "--max_pairs", "100"]
    with pytest.raises(ValueError, match=r"100 .*set\.tsv"):
        confusion.main(flags)
    assert not list(tmp_path.glob("pairs*"))
    with pytest.raises(ValueError, match=r"replace.*set\.tsv"):
        confusion.main([*flags, "--output_file", str(tmp_path / "set.tsv")])
    with pytest.raises(ValueError, match="--files"):
        confusion.main([*flags, "--files", str(tmp_path / "text.txt,weight=2")])
    with pytest.raises(ValueError, match=r"--output_file"):  # a .csv would be read with commas
        confusion.main([*flags, "--output_file", str(tmp_path / "pairs.csv")])
    (tmp_path / "set.tsv").write_text("心 新\n店 电\nhouse horse\n")
    confusion.main(flags)
    assert "100 pairs" in capsys.readouterr().out
    header, *rows = (line.split("\t") for line in (tmp_path / "pairs.tsv").read_text().splitlines())
    assert (header, len(rows)) == (["text", "right"], 100)
    whole = {"今天新情很好。", "“我们去看电影！”", "The horse saw the mill.", "It was there."}
    assert {right for _, right in rows} == whole
    errors = {(text, right) for text, right in rows if text != right}
    assert errors == {("今天心情很好。", "今天新情很好。"), ("“我们去看店影！”", "“我们去看电影！”"),
                      ("The house saw the mill.", "The horse saw the mill.")}  # fmt: skip
