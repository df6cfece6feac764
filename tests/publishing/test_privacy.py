import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_electra_rtd.publishing.privacy import find_private, without_local_paths


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("/srv/corpus/news.txt", "news.txt"),
        ("~/runs/tiny/", "tiny"),
        ("C:\\Users\\ada\\news.txt", "news.txt"),
        ("D:/corpus/news.txt", "news.txt"),
        ("file:///srv/corpus/news.txt", "news.txt"),
        ("/srv/my corpus/the news.txt", "the news.txt"),
        ("/srv/corpus/*.txt,weight=2", "*.txt,weight=2"),
        ("pretrain.py --a /srv/x.txt --b=/srv/y.txt -I/usr/include", "pretrain.py --a x.txt --b=y.txt -Iinclude"),
        ("--a '/srv/my corpus/x y.txt' --b", "--a 'x y.txt' --b"),
        ("PATH=/usr/bin:/opt/bin", "PATH=bin:bin"),
        ('{"base": "/srv/models/tiny"}', '{"base": "tiny"}'),
        ("/home/ada", "~"),
        ("/Users/ada/", "~"),
        ("/root", "~"),
        ("C:\\Users\\ada", "~"),
    ],
)
def test_a_local_path_becomes_its_last_component(text, cleaned):
    assert without_local_paths(text) == cleaned
    assert without_local_paths({"a": [text, (text,)]}) == {"a": [cleaned, (cleaned,)]}


@pytest.mark.parametrize(
    "text",
    [
        "google/electra-small-discriminator",
        "data/news.txt",
        "./news.txt",
        "1/4",
        "and/or",
        "https://huggingface.co/home/ada",
        "s3://bucket/home/news.txt",
        "hf://datasets/org/name/train.parquet",
        r"electra\.(?!pooler\.)(.*\.)?(query|value)",
        r"(/.*)?\d+/\w+",
        "</s>",
        "x / y",
        "2026/11/21",
        "<HUB_TOKEN>",
        "hf_electra_rtd",
        "~1/4",
        "",
    ],
)
def test_what_is_no_local_path_is_left(text):
    assert without_local_paths(text) == text
    assert find_private(text) == []


def test_what_is_no_text_is_left():
    values = {"a": 1, "b": None, "c": [True, 2.5]}
    assert without_local_paths(values) == values


def test_keys_lose_their_directories_too_unless_they_would_be_one():
    assert without_local_paths({"/srv/a.tsv": 1, "/srv/b.tsv": 2}) == {"a.tsv": 1, "b.tsv": 2}
    with pytest.raises(ValueError, match=r"keys are the same: a\.tsv"):
        without_local_paths({"/srv/a.tsv": 1, "/mnt/a.tsv": 2})


NAMES = st.text("abcXYZ019_-.", min_size=1, max_size=8).filter(lambda name: name.strip(".") and name[0].isalnum())
PATHS = st.builds(
    lambda root, names: root + "/".join(names),
    st.sampled_from(["/", "~/", "C:/", "file:///"]),
    st.lists(NAMES, min_size=2, max_size=5).filter(lambda names: names[0] not in ("home", "Users", "root")),
)


@given(PATHS, st.sampled_from(["{}", "--data {}", "--data={}", "a.py {} b", '"{}"', "[{}]", "({})", "{},weight=2"]))
def test_no_directory_is_left_wherever_a_path_stands(path, surrounding):
    text = surrounding.format(path)
    assert find_private(text) != []
    assert without_local_paths(text) == surrounding.format(path.rpartition("/")[2])


@given(st.text("ab /\\~:'\"=,-.\n", max_size=30))
def test_cleaning_leaves_nothing_to_find_and_nothing_to_clean(text):
    cleaned = without_local_paths(text)
    assert find_private(cleaned) == []
    assert without_local_paths(cleaned) == cleaned


@given(st.recursive(PATHS | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text("ab"), inner)))
def test_nothing_private_is_left_at_any_depth(value):
    assert find_private(json.dumps(without_local_paths(value))) == []


def test_tokens_are_found_and_not_told():
    token = "hf_" + "aB3xYz" * 6
    (finding,) = find_private(f"url: https://user:{token}@huggingface.co")
    assert token not in finding
    assert "token" in finding
    assert find_private("hf_" + "short") == []


def test_findings_stand_once_in_the_order_of_the_text():
    assert find_private("b /srv/x/y, then /home/ada, then /srv/x/y") == ["/srv/x/y", "/home/ada"]


def test_words_of_a_vocabulary_are_no_paths():
    assert find_private(json.dumps({"/": 1, "/www": 2, "//": 3, "##/": 4, "</s>": 5, "~": 6})) == []
