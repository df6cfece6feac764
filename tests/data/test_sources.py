import pytest

from hf_electra_rtd.data.readers import Reading
from hf_electra_rtd.data.sources import DatasetSource, parse_dataset_source, parse_file_source


def test_options_stand_behind_a_pattern_and_win_over_the_defaults(tmp_path):
    (tmp_path / "a.jsonl").touch()
    source = parse_file_source(f"{tmp_path}/*.jsonl,text_column=body,weight=2.5", Reading("content", "latin-1"))
    assert source.files == (str(tmp_path / "a.jsonl"),)
    assert source.reading == Reading("body", "latin-1")
    assert source.weight == 2.5


def test_a_comma_in_a_file_name_is_no_option(tmp_path):
    for name in ("a,b.txt", "c,weight=2.txt"):
        (tmp_path / name).touch()
        assert parse_file_source(str(tmp_path / name)).files == (str(tmp_path / name),)
    assert parse_file_source(f"{tmp_path}/a,b.txt,weight=3").weight == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("wieght=2", "no option 'wieght'. Known are: text_column, encoding, encoding_errors, weight"),
        ("weight=2,weight=3", "'weight' is given twice"),
        ("weight=", "'weight' is empty"),
        ("weight=two", "weight=two is not a number"),
        ("weight=0", "weight is 0.0: it must be above 0"),
        ("weight=inf", "weight is inf"),
        ("weight=1001", "weight is 1001.0: it must be at most 1000"),
        ("encoding=utf9", "no encoding 'utf9'"),
    ],
)
def test_options_that_cannot_be_honoured_are_refused(tmp_path, options, message):
    (tmp_path / "a.txt").touch()
    with pytest.raises(ValueError, match=message):
        parse_file_source(f"{tmp_path}/a.txt,{options}")


def test_a_dataset_is_named_with_its_options():
    text = "wikimedia/wikipedia,config=20231101.en,split=train[:1%],streaming=true,weight=0.5"
    expected = DatasetSource("wikimedia/wikipedia", "20231101.en", "train[:1%]", True, None, "body", 0.5)
    assert parse_dataset_source(text, "body") == expected
    with pytest.raises(ValueError, match=r"no option 'encoding'.* Known are: config, split"):
        parse_dataset_source("a/b,encoding=utf-8")
    with pytest.raises(ValueError, match="streaming=maybe is neither true nor false"):
        parse_dataset_source("a/b,streaming=maybe")
