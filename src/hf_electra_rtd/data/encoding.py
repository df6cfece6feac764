"""Lines to ids, in this process or in several, in order and with little in memory."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from hf_electra_rtd.data import tokenizing_worker
from hf_electra_rtd.data.tokenizing_worker import encode_lines, load_backend, read_message, write_message
from hf_electra_rtd.records import count_cores


SMALL_CORPUS = 32 * 2**20  # bytes of text that are tokenised before several processes would have paid off
_MAX_WORKERS = 64


class Chunk(NamedTuple):
    """Some lines, a quarter of a megabyte, and what belongs to each: uint8 arrays of one number a line."""

    lines: list[str]
    parts: bytearray  # which output the line goes to
    document_ends: bytearray  # 1 where its document ends after it


class EncodedChunk(NamedTuple):
    """`ids` uint32, of all lines; `lengths` int64, of each line; and of each line what the chunk said."""

    ids: np.ndarray
    lengths: np.ndarray
    parts: np.ndarray
    document_ends: np.ndarray


def choose_num_proc(num_proc: int | None, num_bytes: int) -> int:
    """How many processes tokenise; 0 is this one.

    Args:
        num_proc: what was asked for; None leaves the choice to the size of the corpus.
        num_bytes: of the corpus.
    """
    if num_proc is not None:
        return num_proc
    if num_bytes < SMALL_CORPUS:
        return 0
    return min(count_cores(), _MAX_WORKERS)


def check_num_proc(num_proc: int | None) -> None:
    """Raises ValueError for a number of processes that cannot be."""
    if num_proc is not None and num_proc < 0:
        raise ValueError(f"num_proc is {num_proc}: it must be at least 1 (0 tokenises in the main process).")


def encode_chunks(
    tokenizer: PreTrainedTokenizerBase, chunks: Iterable[Chunk], num_proc: int = 0
) -> Iterator[EncodedChunk]:
    """The ids of chunks of lines, in their order, whatever the number of processes.

    Args:
        tokenizer: a fast one; no special tokens are added.
        chunks: are taken a few ahead of what is returned.
        num_proc: processes that tokenise; 0 for this one alone.

    Raises:
        ValueError: if a process dies.
    """
    described = tokenizer.backend_tokenizer.to_str()
    if not num_proc:
        backend = load_backend(described)
        for chunk in chunks:
            yield _join(chunk, *encode_lines(backend, chunk.lines))
        return
    with _Workers(described, num_proc) as workers:
        waiting: deque[tuple[Chunk, Future[tuple[np.ndarray, np.ndarray]]]] = deque()
        for chunk in chunks:
            waiting.append((chunk, workers.submit(chunk.lines)))
            if len(waiting) > 2 * num_proc:
                chunk, future = waiting.popleft()
                yield _join(chunk, *future.result())
        while waiting:
            chunk, future = waiting.popleft()
            yield _join(chunk, *future.result())


def _join(chunk: Chunk, ids: np.ndarray, lengths: np.ndarray) -> EncodedChunk:
    parts = np.frombuffer(chunk.parts, dtype=np.uint8)
    return EncodedChunk(ids, lengths.astype(np.int64), parts, np.frombuffer(chunk.document_ends, dtype=np.uint8))


class _Workers:
    """Processes that tokenise, each with a thread that feeds it.

    They are started as programs of their own: nothing is forked from a process with threads, the caller's main module
    is not imported again, Ctrl-C reaches only this process, and a worker whose caller died finds its input at an end.
    """

    def __init__(self, described: str, num_proc: int) -> None:
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
        command = [sys.executable, str(Path(tokenizing_worker.__file__))]
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._threads = ThreadPoolExecutor(num_proc)
        try:
            for _ in range(num_proc):
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env=environment,
                    start_new_session=True,
                )
                self._processes.append(process)
                _send(process, described.encode())
                self._idle.put(process)
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self._processes:
            process.kill()  # what it would still do, nobody needs
        self._threads.shutdown(wait=True, cancel_futures=True)
        for process in self._processes:
            process.wait()
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdout.close()
            with contextlib.suppress(BrokenPipeError):  # a message half written
                process.stdin.close()

    def submit(self, lines: list[str]) -> Future[tuple[np.ndarray, np.ndarray]]:
        return self._threads.submit(self._encode, lines)

    def _encode(self, lines: list[str]) -> tuple[np.ndarray, np.ndarray]:
        process = self._idle.get()
        try:
            _send(process, "\n".join(lines).encode())
            assert process.stdout is not None
            answer = read_message(process.stdout)
            if answer is None:
                raise _death(process)
        finally:
            self._idle.put(process)
        numbers = np.frombuffer(answer, dtype=np.uint32)
        num_lines = int(numbers[0])
        assert num_lines == len(lines)
        return numbers[1 + num_lines :], numbers[1 : 1 + num_lines]


def _send(process: subprocess.Popen[bytes], content: bytes) -> None:
    assert process.stdin is not None
    try:
        write_message(process.stdin, content)
    except BrokenPipeError:
        raise _death(process) from None


def _death(process: subprocess.Popen[bytes]) -> ValueError:
    status = process.wait()
    how = f"was killed (signal {-status})" if status < 0 else f"ended with status {status}"
    cause = ", most likely for want of memory. Use fewer (--num_proc)" if status == -signal.SIGKILL else ""
    return ValueError(
        f"A process that tokenises {how}{cause or '. Without others, --num_proc 0 may say why'}. Nothing incomplete "
        "was kept."
    )
