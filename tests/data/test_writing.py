import gzip
import io
import os
import signal
import subprocess
import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hf_electra_rtd.data.blocks import BlockFile
from hf_electra_rtd.data.preparation import prepare_blocks
from hf_electra_rtd.data.writing import ScratchDirectory, remove_leftovers
from tests.conftest import make_text


def test_what_a_dead_process_left_is_removed_and_what_a_live_one_uses_is_not(tmp_path):
    script = f"""
import os, signal
from hf_electra_rtd.data.writing import ScratchDirectory
ScratchDirectory({str(tmp_path)!r})
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", script])
    (left,) = tmp_path.iterdir()
    with ScratchDirectory(tmp_path) as live:
        remove_leftovers(tmp_path)
        assert not left.exists()
        assert live.path.exists()
    assert list(tmp_path.iterdir()) == []


def test_a_preparation_that_is_killed_leaves_nothing_that_loads_and_nothing_at_all_after_the_next(tmp_path, tokenizer):
    corpus, directory = tmp_path / "corpus.txt", tmp_path / "blocks"
    corpus.write_text(make_text(40))
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    script = f"""
import sys, time
from hf_electra_rtd.data import preparation
from hf_electra_rtd.data.tokenization import load_tokenizer
encode = preparation.encode_chunks
preparation._CHUNK = 500
def slowly(*args):
    for number, chunk in enumerate(encode(*args)):
        yield chunk
        if number == 3:
            print("in the middle", flush=True)
            time.sleep(60)
preparation.encode_chunks = slowly
preparation.prepare_blocks([{str(corpus)!r}], load_tokenizer({str(tmp_path / "tokenizer")!r}), {str(directory)!r}, 32,
    held_out_share=0.1, disable_progress=True)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    with process:
        assert process.stdout.readline() == b"in the middle\n"
        process.send_signal(signal.SIGKILL)
    assert not list(directory.glob("*.blocks"))
    assert list(directory.glob(".*.partial"))
    options = {"held_out_share": 0.1, "disable_progress": True}
    train, _ = prepare_blocks([corpus], tokenizer, directory, 32, **options)
    expected, _ = prepare_blocks([corpus], tokenizer, tmp_path / "expected", 32, **options)
    assert BlockFile(train.path, verify=True).header == expected.header
    assert {path.suffix for path in directory.iterdir()} <= {".blocks", ".json"}
    assert not list(directory.glob(".*"))


def test_old_training_rows_never_lie_beside_new_held_out_rows(tmp_path, tokenizer, monkeypatch):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(make_text(40))
    os.utime(corpus, (time.time() - 100,) * 2)
    options = {"held_out_share": 0.1, "disable_progress": True}
    prepare_blocks([corpus], tokenizer, tmp_path / "blocks", 32, **options)
    from hf_electra_rtd.data import blocks

    publish = blocks.publish

    def interrupted(partial, path):
        publish(partial, path)
        raise KeyboardInterrupt

    monkeypatch.setattr(blocks, "publish", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare_blocks([corpus], tokenizer, tmp_path / "blocks", 32, **options, seed=1)
    assert {path.name for path in (tmp_path / "blocks").iterdir()} == {"held_out.blocks", "scanned.json"}


def test_a_full_disk_is_told_wherever_something_is_written_and_nothing_is_left(tmp_path, tokenizer):
    lines = [f"line {number} of a text that is not repeated" for number in range(20_000)]
    (tmp_path / "corpus.txt").write_text("\n".join(lines))
    table = pa.table({"text": ["\n".join(lines)]})
    pq.write_table(table, sink := io.BytesIO(), compression="none")
    (tmp_path / "corpus.parquet.gz").write_bytes(gzip.compress(sink.getvalue()))
    (tmp_path / "letters").mkdir()
    pq.write_table(pa.table({"text": lines}), tmp_path / "letters" / "train.parquet")
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    script = f"""
import resource, signal, sys
from pathlib import Path
import datasets
from hf_electra_rtd.data.blocks import BlockWriter
from hf_electra_rtd.data.preparation import prepare_blocks
from hf_electra_rtd.data.sources import DatasetSource
from hf_electra_rtd.data.tokenization import load_tokenizer
root = Path({str(tmp_path)!r})
datasets.config.HF_DATASETS_CACHE = str(root / "cache")
tokenizer = load_tokenizer(str(root / "tokenizer"))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
stream = DatasetSource(str(root / "letters"), streaming=True)
for source, kind, limit in (
    (root / "corpus.txt", "near", 0),
    (root / "corpus.txt", "near", 100),
    (root / "corpus.txt", "exact", 1000),
    (root / "corpus.txt", "no", 3000),
    (root / "corpus.parquet.gz", "no", 100),
    (root / "corpus.parquet.gz", "no", 300_000),
    (stream, "no", 1000),
    (stream, "no", 30_000),
):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        prepare_blocks([source], tokenizer, root / "blocks", 32, drop_duplicates=kind, disable_progress=True)
        said = "it was written"
    except ValueError as error:
        said = str(error)
    except OSError as error:
        said = repr(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert "Nothing incomplete was kept" in said, (source, kind, limit, said)
    assert {{path.name for path in (root / "blocks").iterdir()}} <= {{"scanned.json"}}, (source, kind, limit)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
