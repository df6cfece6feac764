"""Prepares text in many tasks, on one machine or many: steps for datatrove pipelines, and executors to run them.

The input is divided into parts that do not depend on the number of tasks. Each part is packed by itself, with a seed
derived from its name, into shards of its own; the hash of a document's text decides whether the document is held out.
So any number of tasks gives the same shards. A finished task leaves a receipt, the list of its shards; `index_shards`
uses exactly the shards that the receipts of all tasks list.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shlex
import shutil
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import groupby, pairwise
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any

import dill
from datatrove.data import Document
from datatrove.executor import LocalPipelineExecutor, SlurmPipelineExecutor
from datatrove.io import DataFolder, get_datafolder
from datatrove.pipeline.base import PipelineStep
from transformers import PreTrainedTokenizerBase

from hf_electra_rtd.base.cli import check_number
from hf_electra_rtd.base.files import lock_directory, read_json, remove_partial, write_text
from hf_electra_rtd.base.records import count_cores
from hf_electra_rtd.data.blocks import BlockFile
from hf_electra_rtd.data.packing import get_packer
from hf_electra_rtd.data.preparation import HELD_OUT, TRAIN, pack, too_few
from hf_electra_rtd.data.sequences import TOKENIZER_DIRECTORY, get_tokenizer, log_header
from hf_electra_rtd.data.shards import SHARD_SIZE, ShardWriter, write_index
from hf_electra_rtd.data.text import Source, Text, document_lines
from hf_electra_rtd.data.tokenization import (
    check_known,
    check_tokenizer,
    keep_tokenizer,
    load_tokenizer,
    tokenizer_hash,
)
from hf_electra_rtd.data.words import LineEncoder, get_segmenter


logger = logging.getLogger(__name__)

TASKS_DIRECTORY = "tasks"  # in the output directory: datatrove's logs and completion marks, and the receipts
PARTS = ("train", "held_out")  # directories of shards, in the order of `TRAIN` and `HELD_OUT`
_RECEIPTS = "receipts"
_PART = "hf_electra_rtd_part"  # key of the part's name in the metadata of documents
_LARGEST_GROUP = 16 * 2**20  # files that begin within the same stretch of so many bytes are one part
_ATTEMPTS = 3  # how often a task that is killed is started


class ReadTexts(PipelineStep):
    """Reads files as `prepare` does, with the same checks. Neighbouring files that begin within the same 16 MiB of the
    text are one part. Raises ValueError for a file that is named twice."""

    name = "Texts"
    type = "📖 - READER"

    def __init__(self, sources: Sequence[Source]) -> None:
        super().__init__()
        places = [os.path.abspath(source.place) for source in sources]
        if twice := [place for place, count in Counter(map(os.path.realpath, places)).items() if count > 1]:
            raise ValueError(f"{twice[0]} is named twice. Name it once.")
        root = os.path.commonpath(map(os.path.dirname, places))
        start = 0
        described = []
        parts = defaultdict[int, list[tuple[str, Source]]](list)
        for source, place in zip(sources, places, strict=True):
            file = os.stat(place)
            name = os.path.relpath(place, root).replace(os.sep, "/")
            parts[start // _LARGEST_GROUP].append((name, replace(source, place=place)))
            described.append((name, file.st_size, file.st_mtime_ns, replace(source, place="")))
            start += file.st_size
        self.parts = [*parts.values()]
        self.corpus = hashlib.sha256(repr(described).encode()).hexdigest()

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        for part in self.parts[rank::world_size]:
            for _, source in part:
                lines = Text(source, Path(), disable_progress=True).read("Reading")
                documents = (document for is_text, document in groupby(lines, bool) if is_text)
                for number, document in enumerate(documents):
                    metadata = {"file_path": source.place, _PART: part[0][0]}
                    yield Document("\n".join(document), f"{source.name}/{number}", metadata=metadata)


class PackShards(PipelineStep):
    """Tokenizes, packs and writes the documents of a pipeline to `output_dir/train` and `output_dir/held_out`.

    `data_folder` is that of the reader: files are identified by their path below it. Every task must see `output_dir`
    under the same path. `num_proc` threads tokenize in each task. `settings` are further settings that must stay the
    same until all tasks are finished. Other arguments are those of `prepare_blocks`. Raises ValueError for settings
    that do not fit together, or that differ from those of a finished task of `output_dir`.
    """

    name = "Pack into shards"
    type = "💾 - WRITER"

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        tokenizer: PreTrainedTokenizerBase,
        max_seq_length: int,
        data_folder: str = ".",
        *,
        packing: str = "full",
        held_out_share: float = 0.05,
        seed: int = 42,
        word_segmenter: str | None = None,
        num_proc: int = 1,
        shard_size: int = SHARD_SIZE,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        check_number("held_out_share", held_out_share, "[0, 1)")
        check_number("seed", seed, "[0, 4294967295]")
        check_number("num_proc", num_proc, "[1, inf)")
        check_tokenizer(tokenizer)
        get_packer(packing, tokenizer, max_seq_length, seed)
        self.names = PARTS[: 2 if held_out_share else 1]
        self.output_dir = Path(output_dir).absolute()
        self.root = get_datafolder(data_folder).resolve_paths("")
        self.word_segmenter = word_segmenter
        self.num_proc = num_proc
        self.max_seq_length = max_seq_length
        self.packing = packing
        self.shard_size = shard_size
        self.recipe: dict[str, Any] = {
            "held_out_share": held_out_share,
            "seed": seed,
            "drop_duplicates": "no",
            "split": "text",  # unlike in `prepare_blocks`, a document's text decides whether it is held out
        }
        self.described = {
            "tokenizer_hash": tokenizer_hash(tokenizer),
            "packing": packing,
            "recipe": self.recipe,
            "word_segmenter": get_segmenter(word_segmenter)[1],
        }
        self.settings = {
            **self.described,
            "max_seq_length": max_seq_length,
            "shard_size": shard_size,
            **(settings or {}),
        }
        check_settings(self.output_dir, self.settings)
        keep_tokenizer(tokenizer, self.output_dir / TOKENIZER_DIRECTORY)

    def run(self, data: Any, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        tokenizer = load_tokenizer(str(self.output_dir / TOKENIZER_DIRECTORY))
        encoder = LineEncoder(tokenizer, get_segmenter(self.word_segmenter)[0])
        packer = get_packer(self.packing, tokenizer, self.max_seq_length, 0)
        parts: dict[str, Any] = {}
        for part, documents in groupby(data, self._part):
            if part in parts:
                raise ValueError(f"The documents of {part} do not stand together. Leave files in order.")
            name = hashlib.blake2b(part.encode(), digest_size=8).hexdigest()
            seed = hashlib.blake2b(f"{self.recipe['seed']}/{part}".encode(), digest_size=8).digest()
            sources: dict[str, dict[str, Any]] = {}
            with ExitStack() as stack:
                shape = (self.max_seq_length, len(tokenizer), self.shard_size)
                places = [self.output_dir / each for each in self.names]
                writers = [ShardWriter(stack, place, name, *shape) for place in places]
                options = (packer.tokens, self.max_seq_length, int.from_bytes(seed, "big"))
                packers = [type(packer)(*options) for _ in places]
                lines = self._lines(documents, sources)
                counted = pack(lines, encoder, tokenizer.unk_token_id, packers, writers, self.num_proc)
                facts = [source | {"sha256": source["sha256"].hexdigest()} for source in sources.values()]
                for writer, statistics in zip(writers, counted, strict=True):
                    writer.finish(statistics=statistics, sources=facts, **self.described)
            files = [[[file.name, BlockFile(file).header.sha256] for file in writer.files] for writer in writers]
            parts[part] = {"name": name, "files": files, "statistics": counted, "sources": facts}
            self.stat_update("sequences", value=sum(writer.num_sequences for writer in writers), unit="part")
        settings = {**self.settings, "tasks": world_size}
        write_text(_receipt(self.output_dir, rank), json.dumps({"settings": settings, "parts": [*parts.values()]}))
        yield from ()

    def _part(self, document: Document) -> str:
        """Returns the name of a document's part."""
        if _PART in document.metadata:
            return str(document.metadata[_PART])
        file = str(document.metadata.get("file_path", ""))
        root = self.root.rstrip("/") + "/"
        if not file.startswith(root):
            raise ValueError(f"The document {document.id} has no file_path below {self.root} (data_folder).")
        return file.removeprefix(root)

    def _lines(self, documents: Iterable[Document], sources: dict[str, dict[str, Any]]) -> Iterator[tuple[int, str]]:
        """Yields the lines that `pack` takes. Fills `sources` with the facts of each file that `scan` would return,
        except that the hash is still a hash object."""
        threshold = round(self.recipe["held_out_share"] * 2**64)
        key = str(self.recipe["seed"]).encode()
        for document in documents:
            file = document.metadata["file_path"]
            try:
                lines = document_lines(document.text)
            except ValueError as error:
                raise ValueError(f"{file}: the document {document.id} {error}") from None
            if not lines:
                continue
            text = "\n".join(lines).encode()
            new: dict[str, Any] = {
                "name": os.path.basename(file),
                "weight": 1.0,
                "sha256": hashlib.sha256(),
                "num_lines": 0,
                "num_documents": 0,
            }
            facts = sources.setdefault(file, new)
            facts["sha256"].update(text + b"\n\n")
            facts["num_lines"] += len(lines)
            facts["num_documents"] += 1
            drawn = int.from_bytes(hashlib.blake2b(text, digest_size=8, key=key).digest(), "big")
            yield from ((HELD_OUT if drawn < threshold else TRAIN, line) for line in (*lines, ""))


def check_settings(output_dir: Path, settings: Mapping[str, Any]) -> None:
    """Raises ValueError if a task of `output_dir` was finished with other values of these settings."""
    for path in sorted((output_dir / TASKS_DIRECTORY / _RECEIPTS).glob("*.json")):
        before = read_json(path)["settings"]
        changed = [name for name in settings if name in before and before[name] != settings[name]]
        if changed:
            raise ValueError(
                f"Task {int(path.stem)} of {output_dir} was finished with other settings ({', '.join(changed)}). "
                "Give the same settings and unchanged files, or choose another output_dir."
            )


def index_shards(output_dir: str | os.PathLike[str], tasks: int) -> None:
    """Writes the indexes of `output_dir/train` and `output_dir/held_out`, with which training reads the shards.

    Raises ValueError if a task is not finished, with its number and the last line of its log; if a shard is missing,
    cut off or replaced, in which case its task counts as unfinished from then on; if tasks had different settings or
    packed the same file; if most of the text is unknown to the vocabulary; and if there is too little text for one
    sequence.
    """
    output_dir = Path(output_dir).absolute()
    missing = [rank for rank in range(tasks) if not _receipt(output_dir, rank).exists()]
    _forget(output_dir, missing)
    _refuse_unfinished(missing, tasks, get_datafolder(str(output_dir / TASKS_DIRECTORY)))
    receipts = [read_json(_receipt(output_dir, rank)) for rank in range(tasks)]
    settings = receipts[0]["settings"]
    parts = [part for receipt in receipts for part in receipt["parts"]]
    check_settings(output_dir, {**settings, "tasks": tasks})
    parts.sort(key=lambda part: str(part["name"]))
    if twice := [part for part, after in pairwise(parts) if part["name"] == after["name"]]:
        raise ValueError(f"Two tasks packed {twice[0]['sources'][0]['name']}. Let the reader give a file to one task.")
    _check_shards(output_dir, receipts)
    for number in range(2 if settings["recipe"]["held_out_share"] else 1)[::-1]:  # the training sequences last
        directory = output_dir / PARTS[number]
        statistics = Counter[str]()
        for part in parts:
            statistics.update(part["statistics"][number])
        files = [directory / name for part in parts for name, _ in part["files"][number]]
        check_known(PARTS[number], statistics["unknown_tokens"], statistics["corpus_tokens"])
        if not files:
            raise too_few(PARTS[number], statistics["corpus_tokens"], settings["max_seq_length"])
        remove_partial(directory)
        sources = [source for part in parts for source in part["sources"]]
        header = write_index(directory, files, statistics=dict(statistics), sources=sources)
        log_header(("Training", "Held out")[number], header)


def _check_shards(output_dir: Path, receipts: Sequence[Mapping[str, Any]]) -> None:
    """Raises ValueError for shards that differ from their receipts. Their tasks count as unfinished from then on."""
    broken = dict[int, ValueError]()
    for rank, receipt in enumerate(receipts):
        try:
            for part in receipt["parts"]:
                for directory, files in zip(PARTS, part["files"], strict=False):
                    for name, sha256 in files:
                        BlockFile(output_dir / directory / name, sha256=sha256)
        except ValueError as error:
            broken[rank] = error
    if broken:
        _forget(output_dir, broken)
        raise ValueError(
            f"Shards of finished tasks ({', '.join(map(str, broken))}) are not as they were written: "
            f"{next(iter(broken.values()))} Start the same command again: it runs these tasks alone."
        )


def _forget(output_dir: Path, ranks: Iterable[int]) -> None:
    """Removes the receipts and completion marks of tasks, so that they run again."""
    for rank in ranks:
        _receipt(output_dir, rank).unlink(missing_ok=True)
        (output_dir / TASKS_DIRECTORY / "completions" / f"{rank:05d}").unlink(missing_ok=True)  # datatrove's


def _refuse_unfinished(missing: Sequence[int], tasks: int, logging_dir: DataFolder) -> None:
    if missing:
        log = f"logs/task_{missing[0]:05d}.log"
        last = "nothing"
        if logging_dir.exists(log):
            with logging_dir.open(log, "r", errors="replace") as file:
                last = next((line.strip() for line in reversed(file.readlines()) if line.strip()), last)
        raise ValueError(
            f"{len(missing)} of {tasks} tasks did not finish: {', '.join(map(str, missing[:9]))}. The log of task "
            f"{missing[0]}, {logging_dir.resolve_paths(log)}, ends with {last!r}. Fix the cause and start the same "
            "command again: it runs these tasks alone. If you change the text, remove the output directory first."
        )


def _receipt(output_dir: Path, rank: int) -> Path:
    return output_dir / TASKS_DIRECTORY / _RECEIPTS / f"{rank:05d}.json"


class LocalExecutor(LocalPipelineExecutor):
    """Runs each task in a process of its own. (datatrove's executor would wait forever for a task that is killed.)"""

    def run(self) -> None:
        context = get_context("forkserver")
        context.set_forkserver_preload([__name__])
        content = dill.dumps(self)
        waiting = self.get_incomplete_ranks()
        running: dict[Any, int] = {}
        killed = Counter[int]()
        while waiting or running:
            while waiting and len(running) < self.workers:
                process = context.Process(target=_run_alone, args=(content, waiting[0]), daemon=True)
                process.start()
                running[process] = waiting.pop(0)
            connection.wait([process.sentinel for process in running])
            for process in [process for process in running if process.exitcode is not None]:
                rank = running.pop(process)
                if process.exitcode >= 0:
                    logger.info(f"Task {rank} {'failed' if process.exitcode else 'is done'}.")
                    continue
                killed[rank] += 1
                if killed[rank] < _ATTEMPTS:
                    waiting.append(rank)
                logger.info(f"Task {rank} was killed{' and runs again' if rank in waiting else ''}.")
        _refuse_unfinished(self.get_incomplete_ranks(skip_completed=True), self.tasks, self.logging_dir)


def _run_alone(content: bytes, rank: int) -> None:
    """Runs a task in this process, which ends when its parent process ends, for whatever reason."""

    def end_with(parent: Any) -> None:
        parent.join()
        os._exit(1)

    Thread(target=end_with, args=[parent_process()], daemon=True).start()
    try:
        dill.loads(content)._run_for_rank(rank, 1)  # local ranks other than 0 log only errors to the console
    except Exception:
        raise SystemExit(1) from None  # the error is in the log


def _run_here(pipeline: list[Any], directory: Path, arguments: Any, cpus: int) -> str:
    """Runs the tasks, waits for them and writes the indexes."""
    workers = arguments.workers or max(1, count_cores() // cpus)
    lock = lock_directory(directory)
    try:
        LocalExecutor(pipeline, arguments.tasks, workers, logging_dir=str(directory / TASKS_DIRECTORY)).run()
        index_shards(directory, arguments.tasks)
    finally:
        lock.release()
    return "Train"


def _submit(pipeline: list[Any], directory: Path, arguments: Any, cpus: int) -> str:
    """Submits the tasks to Slurm, and a job that writes the indexes when the tasks have ended."""
    log = directory / TASKS_DIRECTORY
    options = dict(arguments.sbatch)
    sizes = {
        "tasks": arguments.tasks,
        "workers": arguments.workers or -1,
        "cpus_per_task": cpus,
        "mem_per_cpu_gb": options.pop("mem_per_cpu_gb", 2),
    }
    shared = {
        "partition": options.pop("partition"),
        "time": options.pop("time"),
        "qos": "",
        "sbatch_args": options,  # the executor hands options that it does not know to sbatch
        "env_command": f"export PATH={shlex.quote(os.path.dirname(sys.executable))}:$PATH",
    }
    job = SlurmPipelineExecutor(pipeline, job_name="prepare", logging_dir=str(log), **sizes, **shared)
    # The index job also runs if a task failed, and names that task.
    after = {"depends": job, "run_on_dependency_fail": True, "skip_completed": False, "job_name": "index"}
    index = partial(_index, directory, arguments.tasks)
    SlurmPipelineExecutor([index], 1, logging_dir=str(log / "index"), **after, **shared).run()
    return f"When the jobs have ended ({log / 'index'} says whether they failed), train"


def _index(directory: Path, tasks: int, *_: Any) -> None:
    index_shards(directory, tasks)


def _check(arguments: Any, data: Any, sources: Sequence[Source]) -> None:
    """Raises ValueError if the executor is not available here, and for requests that no executor supports."""
    if arguments.executor == "slurm":
        # datatrove writes the path into scripts without quoting it.
        directory = os.path.abspath(arguments.output_dir)
        if shlex.quote(directory) != directory:
            raise ValueError(f"--output_dir goes into scripts. Choose a path without special characters: {directory}.")
        if shutil.which("sbatch") is None:
            raise ValueError("--executor slurm needs sbatch, which is not here. Start it where jobs are submitted.")
    refused = {
        "block files or datasets": any(source.is_prepared or source.is_dataset for source in sources),
        "weights": any(source.weight != 1 for source in sources),
        "--held_out_files": data.held_out_files,
        "--drop_duplicates": data.drop_duplicates != "no",
    }
    for option, is_there in refused.items():
        if is_there:
            raise ValueError(f"--executor reads each file of text once, and takes no {option}. Prepare without it.")


def prepare(arguments: Any, data: Any) -> tuple[list[str], str]:
    """Runs `hf-electra-rtd prepare` with an executor. `arguments` are `PreparationArguments`, `data` `DataArguments`.
    Returns the directories of shards, and the beginning of the message that says how to train on them. On Slurm, the
    directories are complete only when the jobs have ended.

    Raises ValueError, before any work, for requests that an executor does not support; and for tasks that failed (see
    `index_shards`).
    """
    sources = data.sources()
    _check(arguments, data, sources)
    directory = Path(arguments.output_dir).absolute()
    reader = ReadTexts(sources)
    settings = {
        "tokenizer": data.tokenizer,
        "vocab_size": data.vocab_size,
        "lowercase": data.lowercase,
        "strip_accents": data.strip_accents,
        "train_files": reader.corpus,
    }
    check_settings(directory, {**settings, "tasks": arguments.tasks})  # before a new tokenizer replaces the old one
    tokenizer = get_tokenizer(data, arguments, directory)
    cpus = data.num_proc or 1
    packing = PackShards(
        directory,
        tokenizer,
        arguments.max_seq_length,
        packing=data.packing,
        held_out_share=data.held_out_share,
        seed=arguments.seed,
        word_segmenter=data.word_segmenter,
        num_proc=cpus,
        shard_size=data.shard_bytes or SHARD_SIZE,
        settings=settings,
    )
    run = _submit if arguments.executor == "slurm" else _run_here
    done = run([reader, packing], directory, arguments, cpus)
    return [str(Path(arguments.output_dir, name)) for name in packing.names], done
