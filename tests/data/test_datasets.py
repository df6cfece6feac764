import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hf_electra_rtd.data import text
from hf_electra_rtd.data.preparation import prepare_blocks
from hf_electra_rtd.data.text import Source, parse_source
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


def prepare(source, tokenizer, directory, **options):
    return prepare_blocks([source], tokenizer, directory, 32, disable_progress=True, **options)[0]


@pytest.mark.parametrize("kind", ["loaded", "streamed", "saved", "saved splits"])
def test_the_documents_of_a_dataset_are_its_rows(dataset, tmp_path, tokenizer, kind):
    from datasets import DatasetDict, load_dataset

    source = Source(dataset=dataset, streaming=kind == "streamed", text_column="body")
    if "saved" in kind:
        loaded = load_dataset(dataset, split="train")
        saved = DatasetDict({"train": loaded, "test": loaded.select([0])}) if "splits" in kind else loaded
        saved.save_to_disk(tmp_path / "saved" / "letters")
        source = parse_source(f"{tmp_path}/saved/letters,text_column=body")
    (tmp_path / "same.txt").write_text("\n\n".join(TEXTS))
    made = prepare(source, tokenizer, tmp_path / "made")
    expected = prepare(tmp_path / "same.txt", tokenizer, tmp_path / "expected")
    assert made.header.sha256 == expected.header.sha256
    assert made.header.statistics == expected.header.statistics
    (described,) = made.header.sources
    assert (described["name"], described["split"]) == ("letters", "train")
    assert described["sha256"] == expected.header.sources[0]["sha256"]
    assert str(tmp_path) not in str(made.header)
    assert {path.name for path in (tmp_path / "made").iterdir()} <= {".lock", "train.blocks"}  # nothing of the stream


def test_a_stream_is_downloaded_once_for_all_passes(dataset, tmp_path, tokenizer, monkeypatch):
    import datasets

    downloaded, load = [], datasets.load_dataset

    def count(name, *args, revision=None, **options):
        downloaded.append((name, revision))
        return load(dataset, *args, **options)

    monkeypatch.setattr(datasets, "load_dataset", count)
    source = Source(dataset="owner/letters", streaming=True, text_column="body", weight=2.5, revision="main")
    made = prepare(source, tokenizer, tmp_path / "made", held_out_share=0.1, drop_duplicates="near")
    assert downloaded == [("owner/letters", "main")]
    assert made.header.sources[0].items() >= {"name": "owner/letters", "revision": "main", "weight": 2.5}.items()


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text_column": "text"}, r"no text in a column 'text'.*there are: body, year.*text_column"),
        ({"text_column": "year"}, r"row 1 has no text in a column 'year' \(it is int\)"),
        ({"split": "test"}, "letters cannot be read .*split.*Check its id, config, split"),
        ({"config": "20th"}, "letters cannot be read .*20th.*Check its id, config"),
        ({"dataset": "/there/is/none"}, "The dataset /there/is/none cannot be read"),
        ({"dataset": "owner/name"}, "owner/name cannot be read.*hf auth login.*HF_HUB_OFFLINE is set"),
    ],
)
def test_a_dataset_that_cannot_be_used_is_named_with_the_remedy(
    dataset, tmp_path, tokenizer, streaming, options, message
):
    source = Source(**{"dataset": dataset, "streaming": streaming, "text_column": "body", **options})
    with pytest.raises(ValueError, match=message):
        prepare(source, tokenizer, tmp_path / "made")


def test_a_connection_that_breaks_leaves_nothing(dataset, tmp_path, tokenizer, monkeypatch):
    class Broken:
        column_names = None

        def iter(self, batch_size):
            yield {"body": ["one"]}
            raise ConnectionError("reset by peer")

    monkeypatch.setattr(text, "_load_dataset", lambda source: Broken())
    with pytest.raises(ValueError, match=r"letters cannot be read \(reset by peer\).*connection"):
        prepare(Source(dataset=dataset, streaming=True, text_column="body"), tokenizer, tmp_path / "made")
    assert [path.name for path in (tmp_path / "made").iterdir()] == [".lock"]
