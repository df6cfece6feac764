"""Files that are complete or absent, locks that end with their process, and messages that name the path."""

import errno
import hashlib
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import SafetensorError

from hf_electra_rtd.base import files
from hf_electra_rtd.base.files import remove_partial, write_text, writing


def run_script(script, *arguments):
    """Runs a script in a process of its own and returns its exit status and its message."""
    done = subprocess.run([*command(script), *map(str, arguments)], capture_output=True, text=True)
    return done.returncode, done.stderr


def command(script):
    """A command that runs a script with all names of `files`. It saves the seconds of importing the whole package."""
    imports = f"import os, sys\nsys.path.insert(0, {str(Path(files.__file__).parent)!r})\nfrom files import *\n"
    return [sys.executable, "-c", imports + script]


def test_a_file_and_a_directory_appear_whole_and_replace_what_was_there(tmp_path):
    for text in ("old", "new"):
        write_text(tmp_path / "deep" / "file.txt", text)
        with writing(tmp_path / "directory", "mark") as partial:
            partial.mkdir()
            (partial / text).write_text(text)
            (partial / "mark").touch()
    assert (tmp_path / "deep" / "file.txt").read_text() == "new"
    assert sorted(path.name for path in (tmp_path / "directory").iterdir()) == ["mark", "new"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "directory"]


@pytest.mark.parametrize("replaces", [None, "mark"])
def test_what_is_not_ours_to_replace_is_refused_by_name_and_stays(tmp_path, replaces):
    path = tmp_path / "out"
    (path / "theirs").mkdir(parents=True)
    with pytest.raises(ValueError, match="out is there"), writing(path, replaces):
        pass
    assert (path / "theirs").is_dir()
    for inputs in ([str(path)], [None, str(tmp_path)]):
        with pytest.raises(ValueError, match="out would replace a part of"):
            files.check_output(path, *inputs)


def write(path, kind, text):
    """Writes a file, or a directory of two files."""
    if kind == "file":
        write_text(path, text)
        return
    with writing(path, "mark") as partial:
        partial.mkdir()
        (partial / "text").write_text(text)
        (partial / "mark").touch()


def write_and_die(path, kind, number):
    """Writes in a process that dies right before or after one of its system calls, and returns its exit status."""
    calls = itertools.count(1)

    def deadly(function):
        def call(*arguments, **options):
            if next(calls) == number:
                os._exit(9)
            result = function(*arguments, **options)
            if next(calls) == number:
                os._exit(9)
            return result

        return call

    process = os.fork()
    if process == 0:
        for name in ("fsync", "mkdir", "open", "replace", "rmdir", "unlink"):
            setattr(os, name, deadly(getattr(os, name)))
        status = 1
        try:
            write(path, kind, "new")
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # the child runs no threads of torch
@pytest.mark.parametrize("kind", ["file", "directory"])
def test_a_write_that_is_killed_anywhere_leaves_what_was_there_or_what_comes(tmp_path, kind):
    path = tmp_path / "model"
    text = path if kind == "file" else path / "text"
    left = set()
    for number in itertools.count(1):
        write(path, kind, "old")
        status = write_and_die(path, kind, number)
        remove_partial(tmp_path)
        left.add(text.read_text())
        assert list(tmp_path.iterdir()) == [path]
        if status == 0:
            break
        assert status == 9
    assert left == {"old", "new"}
    assert number > 5


@pytest.mark.parametrize("kind", [OSError, RuntimeError, SafetensorError, Exception])  # tokenizers raises Exception
@pytest.mark.parametrize(
    ("number", "message"), [(errno.ENOSPC, "No space left to write a/b"), (errno.EACCES, "a/b cannot be written: ")]
)
def test_a_failure_to_write_names_the_path_and_the_remedy(kind, number, message):
    error = OSError(number, os.strerror(number)) if kind is OSError else kind(f"It failed (os error {number})")
    with pytest.raises(OSError, match=message) as raised, files.naming("a/b"):
        raise error
    assert "another directory" in str(raised.value)
    assert raised.value.errno == number


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RuntimeError(), "a/b cannot be read: RuntimeError. Take another."),
        (RuntimeError("It ends.\n  Early."), "a/b cannot be read: It ends. Early. Take another."),
        (ValueError("a/b, line 3: it is empty."), "a/b, line 3: it is empty."),  # our own message
    ],
)
def test_whatever_is_raised_while_a_file_is_read_names_the_file_and_the_remedy(error, message):
    with pytest.raises(ValueError, match="a/b") as raised, files.reading("a/b", "Take another."):
        raise error
    assert str(raised.value) == message


def test_a_directory_is_locked_until_its_process_ends(tmp_path):
    lock = files.lock_directory(tmp_path)
    status, message = run_script("lock_directory(sys.argv[1])", tmp_path)
    assert status == 1
    assert f"Another process is using {tmp_path}" in message
    lock.release()
    assert run_script("lock_directory(sys.argv[1])", tmp_path)[0] == 0
    files.lock_directory(tmp_path).release()


def test_hashes_are_sha256_of_the_contents_in_order(tmp_path):
    for name, text in (("config.json", "c"), ("b.safetensors", "b"), ("a.safetensors", "a"), ("notes.txt", "n")):
        (tmp_path / name).write_text(text)
    assert files.hash_files([tmp_path / "config.json", tmp_path / "notes.txt"]) == hashlib.sha256(b"cn").hexdigest()
    assert files.hash_model(tmp_path) == hashlib.sha256(b"cab").hexdigest()
    for path in tmp_path.glob("*.safetensors"):
        path.rename(path.with_name(f"pytorch_model-{path.stem}.bin"))  # as in older models on the Hub
    (tmp_path / "training_args.bin").write_text("t")
    assert files.hash_model(tmp_path) == hashlib.sha256(b"cab").hexdigest()


def test_the_standard_input_is_utf_8_whatever_the_locale_says():
    script = "print([ascii(line) for line in open_text()])"
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0"}
    for given, shown in ((b"\xef\xbb\xbfna\xc3\xafve\r\n", b"na\\\\xefve\\\\r\\\\n"), (b"\xff\n", None)):
        ran = subprocess.run(command(script), input=given, env=environment, capture_output=True, check=False)
        assert shown in ran.stdout if shown else b"UnicodeDecodeError" in ran.stderr
