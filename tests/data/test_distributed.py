"""Preparation in many tasks writes the same shards for any number of tasks, after any kill, and on each executor."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import VOCABULARY, make_text


pytest.importorskip("datatrove", reason="needs the extra scale")

import deduplicate
from datatrove.data import Document

from hf_electra_rtd.data import distributed
from hf_electra_rtd.data.distributed import PackShards, ReadTexts, index_shards
from hf_electra_rtd.data.preparation import prepare_blocks
from hf_electra_rtd.data.prepare_command import main
from hf_electra_rtd.data.sequences import check_held_out
from hf_electra_rtd.data.shards import open_blocks
from hf_electra_rtd.data.text import parse_sources


NUM_FILES = 5


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Text files of every kind. The last .txt file also holds a document of the first one."""
    directory = tmp_path_factory.mktemp("texts")
    files = [make_text(40 + 9 * each, seed=each) for each in range(5)]
    for number, text in enumerate([*files[:3], files[4] + "\n" + files[0].partition("\n\n")[0] + "\n"]):
        (directory / f"{number}.txt").write_text(text)
    documents = files[3].strip().split("\n\n")
    (directory / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents[:20]))
    pq.write_table(pa.table({"text": documents[20:]}), directory / "b.parquet")
    return directory


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(distributed, "_LARGEST_GROUP", 16)


def run_task(output_dir, tokenizer, texts, rank, tasks, **options):
    pack = PackShards(output_dir, tokenizer, 32, held_out_share=0.2, seed=1, **options)
    deque(pack.run(ReadTexts(parse_sources(str(texts))).run(None, rank, tasks), rank, tasks), maxlen=0)


def prepare_in(output_dir, tokenizer, texts, tasks, **options):
    for rank in reversed(range(tasks)):
        run_task(output_dir, tokenizer, texts, rank, tasks, **options)
    index_shards(output_dir, tasks)
    return output_dir


def content(output_dir):
    """Returns the hash of each shard and index."""
    files = [file for part in ("train", "held_out") for file in (output_dir / part).iterdir()]
    return {f"{file.parent.name}/{file.name}": hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def words(blocks, tokenizer):
    """Returns all tokens of block files in order, without special tokens."""
    ids = np.concatenate([blocks[index]["input_ids"] for index in range(len(blocks))])
    return ids[~np.isin(ids, tokenizer.all_special_ids)].tolist()


@pytest.fixture(scope="module")
def reference(texts, tokenizer, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed, "_LARGEST_GROUP", 16)
        return prepare_in(tmp_path_factory.mktemp("one"), tokenizer, texts, 1, shard_size=20_000)


@pytest.mark.parametrize("tasks", [2, 3, 9])
def test_any_number_of_tasks_writes_the_same(tmp_path, texts, tokenizer, reference, small_parts, tasks):
    expected = content(reference)
    assert len(expected) > 2 * NUM_FILES  # some parts fill several shards
    assert content(prepare_in(tmp_path, tokenizer, texts, tasks, shard_size=20_000)) == expected


def test_a_document_is_held_out_by_its_seed_and_text_alone(texts, tokenizer, reference):
    documents = [text.text for text in ReadTexts(parse_sources(str(texts))).run()]
    held_out = []
    for text in documents:
        drawn = hashlib.blake2b(text.encode(), digest_size=8, key=b"1").digest()
        held_out += [text] * (int.from_bytes(drawn, "big") / 2**64 < 0.2)
    counts = {name: open_blocks(reference / name).header.statistics for name in ("train", "held_out")}
    assert counts["held_out"]["documents"] == len(held_out)
    assert counts["train"]["documents"] == len(documents) - len(held_out)
    assert counts["held_out"]["corpus_tokens"] == sum(len(tokenizer.tokenize(text)) for text in held_out)
    assert 0.1 < len(held_out) / len(documents) < 0.3  # within 5 standard deviations
    assert len(set(documents)) == len(documents) - 1  # one document occurs twice


def test_the_text_is_read_hashed_and_tokenized_as_without_tasks(tmp_path, texts, tokenizer):
    plain, _ = prepare_blocks([str(texts)], tokenizer, tmp_path / "plain", 32, disable_progress=True)
    pack = PackShards(tmp_path, tokenizer, 32, held_out_share=0)
    deque(pack.run(ReadTexts(parse_sources(str(texts))).run()), maxlen=0)
    index_shards(tmp_path, 1)
    sharded = open_blocks(tmp_path / "train", verify=True)
    assert sharded.header.sources == plain.header.sources
    assert sharded.header.statistics.items() >= {"documents": plain.header.statistics["documents"]}.items()
    ours, others = (words(blocks, tokenizer) for blocks in (sharded, plain))  # small files are one part, in order
    assert abs(len(ours) - len(others)) < 32  # the seeds differ, and so do the lengths of the remainders
    assert ours[: len(others)] == others[: len(ours)]
    assert not (tmp_path / "held_out").exists()


def test_other_settings_than_those_of_finished_tasks_are_refused(tmp_path, texts, tokenizer):
    run_task(tmp_path, tokenizer, texts, 0, 2)
    with pytest.raises(ValueError, match=r"Task 0 of .* was finished with other settings \(packing\)"):
        run_task(tmp_path, tokenizer, texts, 1, 2, packing="original")
    run_task(tmp_path, tokenizer, texts, 1, 2)
    with pytest.raises(ValueError, match=r"other settings \(tasks\)"):
        index_shards(tmp_path, 1)


def pack_documents(output_dir, tokenizer, folder, *documents, tasks=1, **options):
    """Packs the same documents, pairs of file name and text, in every task, and indexes the shards."""
    pack = PackShards(output_dir, tokenizer, 32, str(folder), **options)
    for rank in range(tasks):
        given = [
            Document(text, str(number), metadata={"file_path": os.path.normpath(folder / file)})
            for number, (file, text) in enumerate(documents)
        ]
        deque(pack.run(iter(given), rank, tasks), maxlen=0)
    index_shards(output_dir, tasks)


@pytest.mark.parametrize(
    ("documents", "tasks", "told"),
    [
        ([("a.jsonl", "the mill"), ("b.jsonl", "the mill"), ("a.jsonl", "the mill")], 1, "do not stand together"),
        ([("../a.jsonl", "the mill")], 1, "no file_path below"),
        ([("a.jsonl", "the \0 mill")], 1, "a.jsonl: the document 0 holds a NUL character"),
        ([("a.jsonl", "the mill " * 50)], 2, r"Two tasks packed a\.jsonl"),
        ([("a.jsonl", "the mill")], 1, "train: 2 tokens are too few for one sequence of 32"),
    ],
)
def test_documents_that_cannot_be_packed_or_indexed_are_refused(tmp_path, tokenizer, documents, tasks, told):
    with pytest.raises(ValueError, match=told):
        pack_documents(tmp_path, tokenizer, tmp_path, *documents, tasks=tasks, held_out_share=0)
    assert not list(tmp_path.rglob("index.json"))


def test_held_out_text_of_another_kind_of_preparation_is_refused(tmp_path, texts, tokenizer):
    (tmp_path / "corpus").mkdir()
    shutil.copy(texts / "0.txt", tmp_path / "corpus")
    options = {"held_out_share": 0.2, "seed": 1}
    train, held_out = prepare_blocks([str(tmp_path / "corpus")], tokenizer, tmp_path, 32, **options)
    sharded = prepare_in(tmp_path / "many", tokenizer, tmp_path / "corpus", 2)
    others = [open_blocks(sharded / name) for name in ("train", "held_out")]
    assert others[0].header.sources == train.header.sources
    check_held_out(train, held_out)
    check_held_out(*others)
    for pair in ((train, others[1]), (others[0], held_out)):
        with pytest.raises(ValueError, match=r"0\.txt, which is held out, holds the same text"):
            check_held_out(*pair)


def flags_for(place, texts, **options):
    """Writes the vocabulary to `place`, and returns the command line that prepares the texts with it."""
    (place / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    values = {"train_files": texts, "tokenizer": place / "vocab.txt", "max_seq_length": 32, "held_out_share": 0.2}
    return [part for name, value in (values | {"seed": 1} | options).items() for part in (f"--{name}", str(value))]


@pytest.fixture
def command(tmp_path, texts, monkeypatch, small_parts):
    """Returns a function that prepares a copy of the texts by two tasks in this process, and returns which ran."""

    def run(executor):
        for rank in executor.get_incomplete_ranks():
            ran.append(rank)
            with suppress(ValueError):
                executor._run_for_rank(rank, 1)
        distributed._refuse_unfinished(executor.get_incomplete_ranks(), executor.tasks, executor.logging_dir)

    ran = []
    monkeypatch.setattr(distributed.LocalExecutor, "run", run)
    shutil.copytree(texts, tmp_path / "texts")
    options = {"shard_size": "20KB", "executor": "local", "tasks": 2, "output_dir": tmp_path / "out"}
    flags = flags_for(tmp_path, tmp_path / "texts", **options)

    def prepare():
        ran.clear()
        main(flags)
        return ran

    return prepare


def cut(shard):
    shard.write_bytes(shard.read_bytes()[:-1])


def exchange(shard):
    shutil.copy(next(file for file in shard.parent.glob("*.blocks") if file != shard), shard)


@pytest.mark.parametrize("damage", [Path.unlink, cut, exchange])
def test_a_task_whose_shard_is_gone_or_another_is_named_and_runs_again(tmp_path, reference, command, damage):
    assert command() == [0, 1]
    assert command() == []
    receipt = json.loads((tmp_path / "out" / "tasks" / "receipts" / "00001.json").read_text())
    name = receipt["parts"][0]["files"][0][0][0]
    damage(tmp_path / "out" / "train" / name)
    with pytest.raises(ValueError, match=rf"finished tasks \(1\) are not .*{name}.*the same command again"):
        command()
    assert command() == [1]
    assert content(tmp_path / "out") == content(reference)  # the reference is from text at another place


def test_a_failed_task_runs_again_alone_but_changed_text_is_refused(tmp_path, reference, command):
    file = tmp_path / "texts" / "1.txt"
    good = file.read_bytes()
    times = os.stat(file)
    file.write_bytes(b"\0" + good[1:])
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # the file seems unchanged
    with pytest.raises(ValueError, match=r"1 of 2 tasks.*: 1\..*1\.txt.* NUL .*alone. If you change the text, remove"):
        command()
    assert not list(tmp_path.rglob("index.json"))
    file.write_bytes(good)
    with pytest.raises(ValueError, match=r"Task 0 of .* other settings \(train_files\).*unchanged files"):
        command()
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert command() == [1]
    assert content(tmp_path / "out") == content(reference)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--executor", "local"], "--executor.*--tasks"),
        (["--executor", "slurm", "--tasks", "2", "--slurm", "time=1"], "needs at least --slurm partition"),
        (["--executor", "local", "--tasks", "2", "--drop_duplicates", "exact"], "no --drop_duplicates"),
        (["--executor", "local", "--tasks", "2", "--held_out_files", "x.txt"], "no --held_out_files"),
        (["--executor", "local", "--tasks", "2", "--train_datasets", "org/name"], "no block files or datasets"),
        (["--executor", "local", "--tasks", "2", "--train_files", "a.blocks"], "no block files or datasets"),
        (["--executor", "local", "--tasks", "2", "--train_files", "a.txt,weight=2"], "no weights"),
        (["--executor", "local", "--tasks", "2", "--train_files", "a.txt", "./a.txt"], "a.txt is named twice"),
        (["--executor", "slurm", "--tasks", "2", "--slurm", "partition=x", "time=1"], "needs sbatch"),
        (["--executor", "slurm", "--tasks", "2", "--slurm", "partition=x", "time=1", "--output_dir", "a b"], "a b"),
    ],
)
def test_what_an_executor_cannot_do_is_refused_before_any_work(tmp_path, corpus, monkeypatch, flags, told):
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "a.blocks"):
        Path(name).write_text(corpus.read_text())
    given = [] if "--train_files" in flags else ["--train_files", "a.txt"]
    with pytest.raises(ValueError, match=told):
        main([*given, "--output_dir", "out", *flags])
    assert not Path("out").exists()


@pytest.fixture(scope="module")
def large(tmp_path_factory, tokenizer):
    """The flags that prepare four files of half a megabyte, each one part, and the hashes of the expected shards."""
    directory = tmp_path_factory.mktemp("large")
    (directory / "texts").mkdir()
    for number in range(4):
        (directory / "texts" / f"{number}.txt").write_text(make_text(300, seed=number) * 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed, "_LARGEST_GROUP", 16)
        expected = content(prepare_in(directory / "whole", tokenizer, directory / "texts", 1))
    return flags_for(directory, directory / "texts", tasks=4), expected


def kill(parent, output_dir, victim=None):
    """Kills the victim, by default a task below `parent`, while a task writes a shard and another one is finished.
    Returns the processes that were below `parent`, or an empty list if there was no such moment in two minutes."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        time.sleep(0.02)
        if list(output_dir.glob("tasks/completions/*")):
            below = parent.children(recursive=True)
            for process in below:
                with suppress(psutil.Error):  # the process has just ended
                    is_task = "forkserver" in " ".join(process.cmdline())
                    if is_task and any(".partial-" in file.path for file in process.open_files()):
                        (victim or process).kill()
                        return below
    return []


@pytest.mark.slow
def test_a_killed_command_goes_on_and_a_killed_task_runs_again(tmp_path, large, small_parts, caplog):
    flags, expected = large
    flags = [*flags, "--output_dir", str(tmp_path), "--executor", "local", "--workers", "2"]
    script = "from hf_electra_rtd.data import distributed, prepare_command; from hf_electra_rtd.base.cli import run;"
    script += "distributed._LARGEST_GROUP = 16; run(prepare_command.main)"
    process = psutil.Popen(
        [sys.executable, "-c", script, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    below = kill(process, tmp_path, process)
    assert below
    process.wait()
    _, alive = psutil.wait_procs(below, timeout=60)
    assert not alive  # no task outlives the command
    assert not list(tmp_path.rglob("index.json"))

    with ThreadPoolExecutor(1) as thread:
        killed = thread.submit(kill, psutil.Process(), tmp_path)
        main(flags)
        assert killed.result()
    assert "was killed and runs again" in caplog.text
    assert content(tmp_path) == expected


SLURM = {  # replacements for the commands of Slurm that the scripts call
    "sbatch": """#!{python}
import os, re, subprocess, sys
script = open(sys.argv[-1]).read()
home = os.path.dirname(__file__)
open(home + "/submitted", "a").write(" ".join(sys.argv[1:-1]) + "\\n" + script)
first, last = map(int, re.search(r"--array=(\\d+)-(\\d+)", script).groups())
jobs, log = [], open(home + "/log", "a")
end = last + 1 - ("--job-name=prepare" in script and os.path.exists(home + "/lost"))  # a node, with the last task
for task in range(first, end) if "merge_stats" not in script else ():  # which adds up datatrove's own counts
    given = {{"SLURM_ARRAY_TASK_ID": str(task), "SLURM_NODELIST": "node[1-2]", "SLURM_JOB_ID": "7", "RUN_OFFSET": "0"}}
    jobs.append(subprocess.Popen(["bash", "-c", script], env={{**os.environ, **given}}, stdout=log, stderr=log))
for job in jobs:
    job.wait()
print("Submitted batch job", 7)
""",
    "srun": """#!/bin/bash
while [ "${{1:0:1}}" = - ]; do [ "$1" = -n ] && shift; shift; done
exec "$@"
""",
    "scontrol": "#!/bin/bash\nprintf 'node1\\nnode2\\n'\n",
}


@pytest.mark.slow
def test_scripts_for_slurm_run_tasks_and_index(tmp_path, texts, reference, monkeypatch, small_parts):
    (tmp_path / "bin").mkdir()
    for name, script in SLURM.items():
        (tmp_path / "bin" / name).write_text(script.format(python=sys.executable))
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "bin" / "lost").touch()
    sizes = {"shard_size": "20KB", "executor": "slurm", "tasks": 2, "output_dir": tmp_path / "out"}
    flags = flags_for(tmp_path, texts, **sizes)
    options = ["partition=cpu", "time=01:00:00", "account=me", "mem_per_cpu_gb=3"]
    main([*flags, "--slurm", *options])
    submitted = (tmp_path / "bin" / "submitted").read_text()
    for line in ("partition=cpu", "time=01:00:00", "account=me", "mem-per-cpu=3G", "array=0-1"):
        assert f"#SBATCH --{line}\n" in submitted
    assert "--dependency=afterany:7" in submitted
    assert not list((tmp_path / "out").rglob("index.json"))
    log = (tmp_path / "out" / "tasks" / "index" / "logs" / "task_00000.log").read_text()
    assert "1 of 2 tasks did not finish: 1." in log

    (tmp_path / "bin" / "lost").unlink()
    main([*flags, "--slurm", *options])
    assert content(tmp_path / "out") == content(reference)


@pytest.mark.slow
def test_near_copies_are_dropped_by_the_pipeline_of_the_example(tmp_path, monkeypatch):
    documents = [make_text(1, seed=seed, lines=(4, 9)) for seed in range(60)]
    files = [documents[:30], [*documents[30:], documents[3], documents[7] + "mill"]]
    (tmp_path / "web").mkdir()
    for number, texts in enumerate(files):
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        (tmp_path / "web" / f"{number}.jsonl").write_text(lines)
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    monkeypatch.chdir(tmp_path)
    flags = ["--data_folder", "web/", "--tokenizer", "vocab.txt", "--output_dir", "out", "--max_seq_length", "32"]
    deduplicate.main([*flags, "--tasks", "2"])
    counts = [open_blocks(tmp_path / "out" / name).header.statistics["documents"] for name in ("train", "held_out")]
    assert sum(counts) == len(documents)
