"""Files that are whole or not there, locks that end with their process, and messages with the path."""

import errno
import hashlib
import os
import subprocess
import sys

import pytest

from hf_electra_rtd.files import (
    format_bytes,
    hash_files,
    hash_model,
    known_names,
    lock_directory,
    naming,
    remove_directory,
    remove_partial,
    write_text,
    writing,
)


def test_a_file_and_a_directory_appear_whole_and_replace_what_was_there(tmp_path):
    for text in ("old", "new"):
        write_text(tmp_path / "deep" / "file.txt", text)
        with writing(tmp_path / "directory") as partial:
            partial.mkdir()
            (partial / text).write_text(text)
    assert (tmp_path / "deep" / "file.txt").read_text() == "new"
    assert [path.name for path in (tmp_path / "directory").iterdir()] == ["new"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "directory"]


def test_a_failed_write_leaves_what_was_there_and_nothing_else(tmp_path):
    write_text(tmp_path / "file.txt", "old")
    with pytest.raises(RuntimeError), writing(tmp_path / "file.txt") as partial:  # noqa: PT012
        partial.write_text("half")
        raise RuntimeError
    assert (tmp_path / "file.txt").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_killed_writer_leaves_only_what_remove_partial_removes(tmp_path):
    script = """
import os, sys
from hf_electra_rtd.files import writing
with writing(sys.argv[1]) as partial:
    partial.write_text("half")
    os._exit(9)
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "file.txt")], check=False)
    assert not (tmp_path / "file.txt").exists()
    assert len(list(tmp_path.iterdir())) == 1
    remove_partial(tmp_path)
    (tmp_path / "a" / "b").mkdir(parents=True)
    remove_directory(tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_a_directory_whose_replacement_was_killed_gets_its_name_back(tmp_path):
    script = """
import os, sys
from hf_electra_rtd.files import writing
replace = os.replace
def killed_after(*paths):
    replace(*paths)
    os._exit(9)
with writing(sys.argv[1]) as partial:
    partial.mkdir()
    os.replace = killed_after
"""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "old").touch()
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "model")], check=False)
    assert not (tmp_path / "model").exists()
    remove_partial(tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["model", "model/old"]


@pytest.mark.parametrize(
    ("number", "message"), [(errno.ENOSPC, "No space left to write a/b"), (errno.EACCES, "a/b cannot be written: ")]
)
def test_a_failure_to_write_names_the_path_and_the_remedy(number, message):
    with pytest.raises(OSError, match=message) as raised, naming("a/b"):
        raise OSError(number, os.strerror(number))
    assert "another directory" in str(raised.value)
    assert raised.value.errno == number


def test_a_directory_is_locked_until_its_process_ends(tmp_path):
    script = """
import sys
from hf_electra_rtd.files import lock_directory
try:
    lock_directory(sys.argv[1])
except ValueError as error:
    sys.exit(str(error))
"""
    lock = lock_directory(tmp_path)
    run = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False, capture_output=True, text=True)
    assert f"Another process is using {tmp_path}" in run.stderr
    lock.release()
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False).returncode == 0
    lock_directory(tmp_path).release()


def test_hashes_are_sha256_of_the_contents_in_order(tmp_path):
    for name, text in (("config.json", "c"), ("b.safetensors", "b"), ("a.safetensors", "a"), ("notes.txt", "n")):
        (tmp_path / name).write_text(text)
    assert hash_files([tmp_path / "config.json", tmp_path / "notes.txt"]) == hashlib.sha256(b"cn").hexdigest()
    assert hash_model(tmp_path) == hashlib.sha256(b"cab").hexdigest()


def test_an_unknown_name_gets_the_nearest_or_all():
    assert known_names("smal", ["small", "base"], "sizes") == "Did you mean 'small'?"
    assert known_names("xyz", ["small", "base"], "sizes") == "Known sizes: base, small."


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (5.8e6, "5.8 MB"), (1.336e9, "1.34 GB"), (2e12, "2 TB")],
)
def test_bytes_have_a_unit(number, text):
    assert format_bytes(number) == text
