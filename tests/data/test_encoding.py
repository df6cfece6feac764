import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hf_electra_rtd.data import encoding
from hf_electra_rtd.data.encoding import Chunk, check_num_proc, choose_num_proc, encode_chunks
from tests.conftest import make_text


LINES = [line for line in make_text(40).splitlines() if line]


def chunks(size=7):
    for start in range(0, len(LINES), size):
        lines = [*LINES[start : start + size], "\u200b"]  # a line without a token
        yield Chunk(lines, bytearray(len(lines)), bytearray(len(lines)))


@pytest.mark.parametrize("num_proc", [0, 1, 3])
def test_ids_are_the_tokenizers_own_whatever_the_number_of_processes(tokenizer, num_proc):
    tokenizer.backend_tokenizer.enable_truncation(4)
    try:
        encoded = list(encode_chunks(tokenizer, chunks(), num_proc))
    finally:
        tokenizer.backend_tokenizer.no_truncation()
    for chunk, result in zip(chunks(), encoded, strict=True):
        expected = tokenizer(chunk.lines, add_special_tokens=False)["input_ids"]
        assert result.lengths.tolist() == [len(ids) for ids in expected]
        assert result.ids.tolist() == [token for ids in expected for token in ids]


def test_chunks_are_read_only_a_few_ahead(tokenizer):
    taken = 0

    def counted():
        nonlocal taken
        for chunk in chunks(1):
            taken += 1
            yield chunk

    results = encode_chunks(tokenizer, counted(), 2)
    next(results)
    assert taken == 5
    results.close()


def test_a_process_that_is_killed_is_told_and_the_others_end(tokenizer, monkeypatch):
    started = []
    popen = subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda *args, **options: started.append(popen(*args, **options)) or started[-1]
    )
    results = encode_chunks(tokenizer, chunks(1), 2)
    next(results)
    os.kill(started[0].pid, signal.SIGKILL)
    with pytest.raises(ValueError, match=r"was killed \(signal 9\).*memory.*--num_proc"):
        list(results)
    assert all(process.poll() is not None for process in started)


def test_want_of_memory_is_suspected_only_of_a_process_that_was_killed(tokenizer, monkeypatch, tmp_path):
    program = tmp_path / "worker.py"
    program.write_text("raise SystemExit(3)")
    monkeypatch.setattr(encoding.tokenizing_worker, "__file__", str(program))
    with pytest.raises(ValueError, match=r"ended with status 3\. Without others, --num_proc 0 may say why") as refusal:
        list(encode_chunks(tokenizer, chunks(1), 1))
    assert "memory" not in str(refusal.value)


def test_a_process_starts_though_its_directory_is_not_searched(tokenizer, monkeypatch):
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    assert len(list(encode_chunks(tokenizer, chunks(), 1))) == len(list(chunks()))


def test_no_process_outlives_a_caller_that_is_killed():
    script = """
import subprocess, sys, os, signal
from hf_electra_rtd.data import tokenizing_worker
from tokenizers import Tokenizer, models
popen = subprocess.Popen([sys.executable, tokenizing_worker.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    start_new_session=True)
described = Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]")).to_str().encode()
tokenizing_worker.write_message(popen.stdin, described)
tokenizing_worker.write_message(popen.stdin, b"one line")
assert tokenizing_worker.read_message(popen.stdout) is not None
print(popen.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    run = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    worker = int(run.stdout)
    for _ in range(200):
        try:
            os.kill(worker, 0)
            if Path(f"/proc/{worker}/stat").read_text().split()[2] == "Z":  # ended; who adopted it has not noticed yet
                return
        except (ProcessLookupError, FileNotFoundError):
            return
        time.sleep(0.05)
    pytest.fail("the worker is still there")


def test_a_small_corpus_is_tokenised_without_further_processes():
    assert choose_num_proc(None, 10**6) == 0
    assert choose_num_proc(None, 10**9) >= 1
    assert choose_num_proc(3, 10) == 3
    with pytest.raises(ValueError, match="num_proc is -1"):
        check_num_proc(-1)
