import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hf_electra_rtd.data import texts
from hf_electra_rtd.data.hub import load_source, pin_stream, read_dataset
from hf_electra_rtd.data.preparation import prepare_blocks
from hf_electra_rtd.data.sources import DatasetSource
from hf_electra_rtd.data.texts import Corpus
from tests.conftest import make_text


TEXTS = [make_text(1, seed) for seed in range(30)]


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    """A local directory that `datasets` loads as it does one of the Hub."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    datasets.disable_progress_bars()
    (tmp_path / "letters").mkdir()
    pq.write_table(pa.table({"body": [*TEXTS, None, ""], "year": [1900] * 32}), tmp_path / "letters/train.parquet")
    return str(tmp_path / "letters")


@pytest.mark.parametrize("streaming", [False, True])
def test_the_documents_of_a_dataset_are_those_of_its_rows(dataset, tmp_path, tokenizer, streaming):
    source = DatasetSource(dataset, streaming=streaming, text_column="body")
    (tmp_path / "same.txt").write_text("\n\n".join(TEXTS))
    made, _ = prepare_blocks([source], tokenizer, tmp_path / "made", 32, disable_progress=True)
    expected, _ = prepare_blocks([tmp_path / "same.txt"], tokenizer, tmp_path / "expected", 32, disable_progress=True)
    assert made.header.statistics == expected.header.statistics
    assert made.header.sha256 == expected.header.sha256
    (described,) = made.header.sources
    assert described["name"] == described["dataset"] == "letters"
    assert str(tmp_path) not in str(made.header)
    assert ("fingerprint" in described) != streaming
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["train.blocks"]  # nothing of the stream is left


def test_a_stream_is_fetched_once_and_not_at_all_for_blocks_that_are_there(dataset, tmp_path, tokenizer, monkeypatch):
    import datasets

    fetched = []
    load = datasets.load_dataset
    monkeypatch.setattr(
        datasets, "load_dataset", lambda *args, **options: fetched.append(args) or load(*args, **options)
    )
    source = DatasetSource(dataset, streaming=True, text_column="body", weight=2.5)
    options = {"held_out_share": 0.1, "drop_duplicates": "near", "disable_progress": True}
    first, _ = prepare_blocks([source], tokenizer, tmp_path / "made", 32, **options)
    again, _ = prepare_blocks([source], tokenizer, tmp_path / "made", 32, **options)
    assert len(fetched) == 1
    assert first.header == again.header


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text_column": "text"}, r"has no column 'text'.*text_column=.*body, year"),
        ({"text_column": "year"}, "column 'year' holds int64, not text"),
        ({"split": "test"}, r"has no split 'test' \(split=\.\.\.\).*train"),
        ({"config": "20th"}, r"has no config '20th' \(config=\.\.\.\).*default"),
        ({"dataset": "/there/is/none"}, "The dataset /there/is/none does not exist"),
        ({"dataset": "owner/name"}, "owner/name cannot be reached.*HF_HUB_OFFLINE is set: unset it"),
    ],
)
def test_a_dataset_that_cannot_be_used_is_named_with_the_remedy(dataset, streaming, options, message):
    with pytest.raises(ValueError, match=message):
        load_source(DatasetSource(**{"dataset": dataset, "streaming": streaming, "text_column": "body", **options}))


@pytest.mark.parametrize(
    "said", ["Dataset 'a/b' doesn't exist on the Hub or cannot be accessed.", "Dataset 'a/b' is a gated dataset."]
)
def test_a_dataset_that_does_not_exist_or_is_gated_is_told(monkeypatch, said):
    import datasets

    def refuse(*args, **options):
        raise datasets.exceptions.DatasetNotFoundError(said)

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with pytest.raises(ValueError, match=f"The dataset a/b cannot be had: {said}.*hf auth login"):
        load_source(DatasetSource("a/b"))


def test_a_connection_that_breaks_while_a_dataset_is_read_is_told(monkeypatch):
    class Broken:
        features = None

        def iter(self, batch_size):
            yield {"text": ["one"]}
            raise ConnectionError("reset by peer")

    monkeypatch.delenv("HF_HUB_OFFLINE")
    with pytest.raises(ValueError, match=r"a/b cannot be reached: reset by peer\. Check the connection"):
        list(read_dataset(DatasetSource("a/b", streaming=True), Broken()))


def prepare_stream(dataset, tmp_path, tokenizer, **options):
    source = DatasetSource(dataset, streaming=True, text_column="body", **options)
    return prepare_blocks([source], tokenizer, tmp_path / "made", 32, disable_progress=True)[0].header


def test_a_stream_of_other_content_is_fetched_anew_though_its_name_is_the_same(dataset, tmp_path, tokenizer):
    first = prepare_stream(dataset, tmp_path, tokenizer)
    (tmp_path / "p" / "letters").mkdir(parents=True)
    table = pa.table({"body": TEXTS[:20]})
    pq.write_table(table, tmp_path / "p/letters/train.parquet")
    other = prepare_stream(str(tmp_path / "p/letters"), tmp_path, tokenizer)
    assert other.sources[0]["num_documents"] == 20
    assert other.sha256 != first.sha256
    pq.write_table(table.slice(5), tmp_path / "p/letters/train.parquet")
    edited = prepare_stream(str(tmp_path / "p/letters"), tmp_path, tokenizer)
    assert edited.sources[0]["num_documents"] == 15
    assert str(tmp_path) not in str(edited)


def test_a_revision_of_the_hub_becomes_its_commit_and_stays_as_it_is_offline(monkeypatch, caplog):
    import huggingface_hub

    source = DatasetSource("a/b", streaming=True, revision="main")
    assert pin_stream(source) == (source, {})
    assert "used again by its name and revision alone" in caplog.text

    class Info:
        sha = "c0ffee"

    monkeypatch.setattr(huggingface_hub, "dataset_info", lambda *args, **options: Info)
    assert pin_stream(source)[0].revision == "c0ffee"


def test_what_was_fetched_of_a_stream_is_not_left_and_never_taken_for_another(dataset, tmp_path, monkeypatch):
    source = DatasetSource(dataset, streaming=True, text_column="body")
    with Corpus([source], tmp_path / "made", disable_progress=True) as corpus:
        assert corpus.counts()[0].num_documents == 30
        assert [path.suffix for path in (tmp_path / "made").iterdir()] == [".partial"]
    assert list((tmp_path / "made").iterdir()) == []

    def broken(*args):
        yield "one"
        raise ValueError("the connection broke")

    monkeypatch.setattr(texts, "read_dataset", broken)
    with (
        Corpus([source], tmp_path / "made", disable_progress=True) as corpus,
        pytest.raises(ValueError, match="the connection broke"),
    ):
        corpus.counts()
    assert list((tmp_path / "made").iterdir()) == []
