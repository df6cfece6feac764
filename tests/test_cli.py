"""Flags, YAML files and exit statuses of the commands."""

import os
import signal
import sys
from dataclasses import dataclass, field
from math import inf, nan
from types import SimpleNamespace

import pytest

from hf_electra_rtd import cli
from hf_electra_rtd.cli import FAILED, INTERRUPTED, RANGES, check_ranges, parse_arguments, run


@dataclass
class Options:
    size: str = "tiny"
    files: list[str] = field(default_factory=list)
    learning_rate: float = 0.5
    num_train_epochs: float | None = None
    max_steps: int = -1
    correct: bool = False
    name: str | None = None


RECIPES = {"tiny": {"learning_rate": 1.0, "max_steps": 10}, "small": {"learning_rate": 2.0, "max_steps": 20}}


def parse(*argv, recipes=RECIPES, **options):
    return parse_arguments([Options], argv, recipes=recipes, **options)[0]


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "recipe.yaml"
    return lambda text: path.write_text(text) and str(path)


def test_flags_may_be_written_with_dashes(config):
    assert parse("--learning-rate", "3", "--max-steps=4") == parse("--learning_rate", "3", "--max_steps=4")
    assert parse("--learning-rate", "3", "--max-steps=4").max_steps == 4
    assert parse("--name", "-- a well-known text").name == "-- a well-known text"


def test_flags_win_over_the_file_the_file_over_the_size_the_size_over_defaults(config):
    path = config("size: small\nlearning_rate: 5e-4\nfiles: [a, b]\ncorrect: true\nname: null\n")
    options = parse("--config", path, "--files", "c")
    assert options == Options("small", ["c"], 5e-4, max_steps=20, correct=True)
    options = parse("--config", path, "--learning_rate", "3", "--size", "tiny", defaults={"name": "x", "max_steps": 7})
    assert options == Options("tiny", ["a", "b"], 3.0, max_steps=10, correct=True, name="x")
    assert parse("--num_train_epochs", "2").max_steps == -1  # a length in epochs replaces the recipe's steps
    path = config("files: [no, 01, 1_0, ~]\nname: yes\ncorrect: yes\nmax_steps: 1_000\n")  # texts stay as written
    assert parse("--config", path) == Options("tiny", ["no", "01", "1_0", "~"], 1.0, None, 1000, True, "yes")
    path = config("max_steps: 5")
    assert [parse("--config", path, *more).max_steps for more in ([], ["--num_train_epochs", "2"])] == [5, -1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning_rat: 1", "no flag 'learning_rat'. Did you mean 'learning_rate'"),
        ("- a", "must hold flags and values"),
        ("a: [", "cannot be read"),
        ("a: !!python/object/apply:os.mkdir [code_ran]", "cannot be read"),
        (None, "cannot be read: .*No such file"),
    ],
)
def test_a_file_that_holds_no_known_flags_is_refused(config, text, message):
    with pytest.raises(ValueError, match=message):
        parse("--config", "nowhere.yaml" if text is None else config(text))


@pytest.mark.parametrize(
    "argv", [["--learning_rat", "1"], ["--learning", "1"], ["--learning_rate", "fast"], ["--size", "huge"]]
)
def test_flags_that_are_unknown_abbreviated_or_of_another_type_are_refused(argv, capsys):
    with pytest.raises(SystemExit):
        parse(*argv)
    assert argv[0].lstrip("-") in capsys.readouterr().err


@pytest.mark.parametrize("flag", RANGES)
def test_a_number_outside_its_interval_is_refused_by_flag_and_inside_it_accepted(flag):
    low, high = (float(end) for end in RANGES[flag][1:-1].split(", "))
    inside = (low + min(high, low + 2)) / 2
    ends = {low: RANGES[flag][0] == "[", high: RANGES[flag][-1] == "]"}
    included = [end for end, is_in in ends.items() if is_in]
    for value in (inside, None, [inside, inside], *included):
        check_ranges(SimpleNamespace(**{flag: value}))
    for value in (low - 1, high + 1, nan, inf, -inf, [inside, nan], *(ends.keys() - included)):
        with pytest.raises(ValueError, match=f"--{flag} is .*: it must be "):
            check_ranges(SimpleNamespace(**{flag: value}))


@pytest.mark.parametrize("steps", [0, -2])
def test_a_number_of_steps_is_at_least_1_or_minus_1(steps):
    check_ranges(SimpleNamespace(max_steps=-1))
    with pytest.raises(ValueError, match=f"--max_steps is {steps}: it must be at least 1"):
        check_ranges(SimpleNamespace(max_steps=steps))


def exit_of(run_command, monkeypatch, capsys, *argv):
    """(exit status, what was printed)."""
    monkeypatch.setattr(sys, "argv", list(argv))
    with pytest.raises(SystemExit) as ended:
        run_command()
    return ended.value.code, "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("result", "status", "message"),
    [
        (None, None, ""),
        (1, 1, ""),
        (ValueError("too little text"), FAILED, "error: too little text\n"),
        (OSError("disk full"), FAILED, "error: disk full\n"),
        (OSError(2, "No such file", "a.txt"), FAILED, "error: a.txt: No such file\n"),
        (KeyboardInterrupt(), INTERRUPTED, "\nInterrupted.\n"),
    ],
)
def test_a_command_exits_with_its_status_or_an_error_in_one_line(monkeypatch, capsys, result, status, message):
    def command(argv):
        assert argv == ["--flag"]
        if isinstance(result, BaseException):
            raise result
        return result

    assert exit_of(lambda: run(command), monkeypatch, capsys, "command", "--flag") == (status, message)
    with pytest.raises(ZeroDivisionError):  # a bug keeps its traceback
        run(lambda argv: 1 // 0)


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, INTERRUPTED), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_command_with_one_line_and_the_status_of_a_shell(monkeypatch, capsys, sent, status):
    monkeypatch.setattr(sys, "argv", ["command"])
    with pytest.raises(SystemExit) as ended:
        run(lambda argv: os.kill(os.getpid(), sent))
    assert (ended.value.code, *capsys.readouterr()) == (status, "", "\nInterrupted.\n")


@pytest.mark.parametrize(
    ("command", "argv", "status", "message"),
    [
        (lambda: run(lambda argv: None), ["--file", ""], FAILED, "'' (after --file) is empty"),
        (lambda: run(lambda argv: None), ["--file", "\udcff"], FAILED, "is not UTF-8"),
        (cli.main, [], FAILED, "arguments are required: COMMAND"),
        (cli.main, ["--help"], 0, "pretrain"),
        (cli.main, ["train"], FAILED, "invalid choice: 'train' (choose from"),
    ],
)
def test_a_command_line_that_names_nothing_is_refused(monkeypatch, capsys, command, argv, status, message):
    code, printed = exit_of(command, monkeypatch, capsys, "hf-electra-rtd", *argv)
    assert code == status
    assert message in printed


@pytest.mark.parametrize(
    ("module", "spec", "name"),
    [
        ("hf_electra_rtd.finetuning.finetune", None, "hf-electra-rtd finetune"),
        ("__main__", "hf_electra_rtd.training.pretrain", "hf-electra-rtd pretrain"),  # python -m, accelerate launch -m
        ("__main__", None, "own.py"),
    ],
)
def test_a_command_has_its_console_name_however_it_is_started(monkeypatch, capsys, module, spec, name):
    found = None if module == "__main__" and spec is None else SimpleNamespace(name=spec or module)
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(__spec__=found))

    def command(argv):
        assert sys.argv == [name, "--flag"]

    command.__module__ = module
    assert exit_of(lambda: run(command), monkeypatch, capsys, "own.py", "--flag") == (None, "")
