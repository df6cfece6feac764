"""Flags, the tables of rules, YAML files and exit statuses of the commands."""

import gc
import importlib
import json
import re
import subprocess
import sys
from dataclasses import MISSING, dataclass, field, fields
from math import inf, nan
from types import SimpleNamespace

import pytest
from transformers import HfArgumentParser

import hf_electra_rtd_command
from hf_electra_rtd import RTDTrainingArguments
from hf_electra_rtd.base import cli
from hf_electra_rtd.base.cli import (
    FAILED,
    INTERRUPTED,
    Rule,
    check_arguments,
    check_number,
    flag,
    help_of,
    parse_arguments,
    required,
    run,
)
from hf_electra_rtd.data import arguments as data_arguments
from hf_electra_rtd.finetuning import arguments as fine_tuning
from hf_electra_rtd.finetuning import finetune
from hf_electra_rtd.inference import correction, detection, export, likelihood
from hf_electra_rtd.pair import configuration_electra_rtd
from hf_electra_rtd.pair import original_checkpoints as checkpoints
from hf_electra_rtd.pair.configuration_electra_rtd import ElectraRTDConfig
from hf_electra_rtd.publishing import publish
from hf_electra_rtd.training import arguments, model, pretrain


@dataclass
class Options:
    size: str = "tiny"
    files: list[str] = field(default_factory=list)
    learning_rate: float = flag(0.5, "How fast.", "(0, 5]")
    num_train_epochs: float | None = None
    max_steps: int = -1
    correct: bool = False
    name: str | None = None
    shows: bool = True


def parse(*argv, **options):
    return parse_arguments([Options], argv, **options)[0]


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "recipe.yaml"
    return lambda text: path.write_text(text) and str(path)


def test_flags_may_be_written_with_dashes(config):
    assert parse("--learning-rate", "3", "--max-steps=4") == parse("--learning_rate", "3", "--max_steps=4")
    assert parse("--learning-rate", "3", "--max-steps=4").max_steps == 4
    assert parse("--name", "-- a well-known text").name == "-- a well-known text"


def test_flags_win_over_the_file_and_the_file_over_defaults(config):
    path = config("size: small\nlearning_rate: 5e-4\nfiles: [a, b]\ncorrect: true\nname: null\n")
    assert parse("--config", path, "--files", "c") == Options("small", ["c"], 5e-4, correct=True)
    options = parse("--config", path, "--learning_rate", "3", "--size", "tiny", defaults={"name": "x", "max_steps": 7})
    assert options == Options("tiny", ["a", "b"], 3.0, max_steps=7, correct=True, name="x")
    path = config("files: [no, 01, 1_0, ~]\nname: yes\ncorrect: yes\nmax_steps: 1_000\n")  # texts stay as written
    assert parse("--config", path) == Options("tiny", ["no", "01", "1_0", "~"], 0.5, None, 1000, True, "yes")
    path = config("files: []\nshows: false")
    assert parse("--config", path) == Options(shows=False)
    path = config("max_steps: 5")
    assert [parse("--config", path, *more).max_steps for more in ([], ["--num_train_epochs", "2"])] == [5, -1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning_rat: 1", "no flag 'learning_rat'. Did you mean 'learning_rate'"),
        ("- a", "must hold flags and values"),
        ("max_steps: [1, 2]", "max_steps takes one value"),
        ("a: [", "cannot be read"),
        ("a: !!python/object/apply:os.mkdir [code_ran]", "cannot be read"),
        (None, "cannot be read: .*No such file"),
    ],
)
def test_a_file_that_holds_no_known_flags_or_values_is_refused(config, text, message):
    with pytest.raises(ValueError, match=message):
        parse("--config", "nowhere.yaml" if text is None else config(text))


@pytest.mark.parametrize("argv", [["--files", "a", "--files=b"], ["--config", "a.yaml", "--config", "b"]])
def test_a_flag_whose_first_values_would_be_lost_is_refused(config, argv):
    with pytest.raises(ValueError, match=f"{argv[0]} "):
        parse(*[word.replace("a.yaml", config("name: x")) for word in argv])


@pytest.mark.parametrize("argv", [["--learning_rat", "1"], ["--learning", "1"], ["--learning_rate", "fast"]])
def test_flags_that_are_unknown_abbreviated_or_of_another_type_are_refused(argv):
    with pytest.raises(ValueError, match=argv[0].lstrip("-")):
        parse(*argv)


def test_no_file_beside_the_script_gives_flags(tmp_path, monkeypatch):
    (tmp_path / "script.args").write_text("--learning_rate 5\n")
    for script in (str(tmp_path / "script.py"), ""):  # as in Python's own shell
        monkeypatch.setattr(sys, "argv", [script])
        assert parse() == Options()


@dataclass
class TextOptions:
    model: str = required("Which.")
    texts: list[str] = flag([], "What.", words="TEXT")
    as_is: bool = False
    batch_size: int = 8


def test_words_without_a_flag_may_stand_before_behind_or_in_the_file(config):
    path = config("texts: [a, b]\nmodel: m\nas_is: true\nbatch_size: 4\n")
    for argv, wanted in {
        ("--model", "m", "x", "y"): TextOptions("m", ["x", "y"]),
        ("x", "--model", "m", "--as_is"): TextOptions("m", ["x"], as_is=True),
        ("--model", "m", "--as_is", "true"): TextOptions("m", ["true"], as_is=True),
        ("--config", path): TextOptions("m", ["a", "b"], as_is=True, batch_size=4),
        ("c", "--config", path, "--batch_size", "2"): TextOptions("m", ["c"], as_is=True, batch_size=2),
    }.items():
        assert parse_arguments([TextOptions], argv) == (wanted,)


@pytest.mark.parametrize("module", [module for module, _ in hf_electra_rtd_command.COMMANDS.values()])
def test_no_line_of_a_help_is_wider_than_its_screen(module, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        importlib.import_module(f"hf_electra_rtd.{module}").main(["--help"])
    assert [line for line in capsys.readouterr().out.splitlines() if len(line) > 100] == []


@pytest.mark.parametrize(
    ("main", "groups"),
    [(pretrain.main, pretrain.HELP_GROUPS), (finetune.main, fine_tuning.HELP_GROUPS)],
    ids=["pretrain", "finetune"],
)
def test_the_help_fits_on_two_screens_and_shows_every_flag_of_its_groups(main, groups, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 120
    shown = {match[1] for line in lines if (match := re.match(r"  --(\w+)(?: |$)", line))}
    assert {name for group in groups.values() for name in group} == shown - {"config"}


def test_help_shows_no_flag_that_is_always_an_error_or_ignored(capsys):
    always = "deepspeed|load_best_model_at_end|hub_token|do_train|local_rank"
    for main in (pretrain.main, finetune.main):
        with pytest.raises(SystemExit):
            main(["--help-all"])
        text = capsys.readouterr().out
        assert "--push_to_hub" in text
        assert re.findall(rf"--(?:{always})\b", text) == []


@pytest.mark.parametrize("interval", ["(0, inf)", "[0, 1)", "(0, 1]", "[3, inf)", "[1, 65535]"])
def test_a_number_outside_its_interval_is_refused_and_inside_it_accepted(interval):
    low, high = (float(end) for end in interval[1:-1].split(", "))
    ends = {low: interval[0] == "[", high: interval[-1] == "]"}
    included = [end for end, is_in in ends.items() if is_in]
    for value in (None, (low + min(high, low + 2)) / 2, *included):
        check_number("share", value, interval)
    for value in (low - 1, high + 1, nan, inf, -inf, *(ends.keys() - included)):
        with pytest.raises(ValueError, match="share is"):
            check_number("share", value, interval)


@dataclass
class Checked:
    rates: list[float] | None = flag(None, "", "(0, 1]")
    kind: str = flag("first", "", choices=("first", "second"))
    path: str | None = flag(None, "")
    names: list[str] = flag([], "")
    texts: list[str] = flag([], "", words="TEXT")
    inherited: int = -1

    def __post_init__(self):
        check_arguments(self, intervals={"inherited": "[1, inf)"})


def test_numbers_and_names_are_those_of_their_fields_and_defaults_need_no_check():
    Checked(rates=[0.5, 1], kind="second", inherited=3, texts=[""])  # an empty text is a text
    for name, value in {"rates": [0.5, 0.0], "kind": "secnd", "inherited": 0, "path": "", "names": [""]}.items():
        with pytest.raises(ValueError, match=f"--{name}"):
            Checked(**{name: value})


@pytest.mark.parametrize("type_", [RTDTrainingArguments, fine_tuning.FineTuningArguments])
def test_a_parser_of_transformers_reads_our_arguments_too(type_, tmp_path):
    (read,) = HfArgumentParser(type_).parse_args_into_dataclasses(["--output_dir", str(tmp_path), "--use_cpu"])
    assert read == type_(str(tmp_path), use_cpu=True)


def test_an_option_that_changes_nothing_is_told_once(caplog):
    rule = Rule("kind=second", "Why.", needs=("rates",), changes_nothing=True)
    for _ in range(2):
        check_arguments(Checked(kind="second"), rules=[rule])
    assert len(caplog.records) == 1
    assert "--kind second" in caplog.text
    caplog.clear()
    check_arguments(Checked(kind="second", rates=[1.0]), rules=[rule])
    assert not caplog.records


# Each table of rules with the dataclasses whose fields it names.
TRAINING = (RTDTrainingArguments,)
PRETRAINING = (pretrain.RunArguments, model.ModelArguments, data_arguments.DataArguments, RTDTrainingArguments)
FINE_TUNING = (fine_tuning.TaskArguments, fine_tuning.OwnTaskArguments, fine_tuning.FineTuningArguments)
TABLES = {
    "pretrain": (pretrain.RULES, PRETRAINING),
    "networks": (model.RULES, (model.ModelArguments,)),
    "kept generator": (model.KEPT_RULES, (model.ModelArguments,)),
    "training": (arguments.TRAINER_RULES, TRAINING),
    "one network learns": (arguments.ALONE_RULES, TRAINING),
    "hub": (arguments.HUB_RULES, TRAINING),
    "finetune": (fine_tuning.RULES, FINE_TUNING),
    "fine-tuning": (fine_tuning.TRAINER_RULES, FINE_TUNING),
    "prepare": (data_arguments.RULES, (data_arguments.PreparationArguments,)),
    "text": (data_arguments.TEXT_RULES, (data_arguments.DataArguments,)),
    "named tokenizer": (data_arguments.TOKENIZER_RULES, (data_arguments.DataArguments,)),
    "text of prepare": (data_arguments.DATA_RULES, (data_arguments.DataArguments,)),
    "prepared text": (data_arguments.PREPARED_RULES, (data_arguments.DataArguments,)),
    "detect": (detection.RULES, (detection.DetectArguments,)),
    "correct": (correction.RULES, (correction.CorrectArguments,)),
    "score": (likelihood.RULES, (likelihood.ScoreArguments,)),
    "export": (export.RULES, (export.ExportArguments,)),
    "publish": (publish.RULES, (publish.PublishArguments,)),
    "convert": (checkpoints.RULES, (checkpoints.ConvertArguments,)),
    "pair": (configuration_electra_rtd.RULES, (ElectraRTDConfig,)),
    "no network": (configuration_electra_rtd.NO_NETWORK_RULES, (ElectraRTDConfig,)),
    "no generator": (configuration_electra_rtd.NO_GENERATOR_RULES, (ElectraRTDConfig,)),
    "draws": (configuration_electra_rtd.DRAW_RULES, (ElectraRTDConfig,)),
}
ROWS = [(rule, types) for rules, types in TABLES.values() for rule in rules]


def test_no_table_of_rules_is_left_out_here():
    walked = [rule for rule, _ in ROWS]
    for name, module in list(sys.modules.items()):
        if name.startswith("hf_electra_rtd."):
            for table in [value for key, value in vars(module).items() if key.endswith("RULES")]:
                assert [rule for rule in table if rule not in walked] == [], name


def another_value(entry):
    """A valid value of a field that is not its default."""
    told = help_of(entry)
    if told.choices:
        return next(name for name in told.choices if name != entry.default)
    if told.interval:
        low, high = map(float, told.interval[1:-1].split(", "))
        low = max(low, -1.0)
        inside = [low + min(1.0, high - low) / share for share in (2, 3)]
        return next(value for value in inside if value != entry.default)
    return "another"


def with_defaults(dataclass_type):
    """An unchecked instance of a dataclass as if no flag were given; required fields are None."""
    made = object.__new__(dataclass_type)
    for entry in fields(dataclass_type):
        default = None if entry.default is MISSING else entry.default
        object.__setattr__(made, entry.name, default if entry.default_factory is MISSING else entry.default_factory())
    return made


@pytest.mark.parametrize(("rule", "types"), ROWS, ids=lambda value: getattr(value, "flag", ""))
def test_each_rule_speaks_where_it_is_broken_and_only_there(rule, types, caplog):
    cli.warn_once.cache_clear()

    def check(*given, lacking=()):
        made = [with_defaults(type_) for type_ in types]
        owners = {entry.name: (owner, entry) for owner in made for entry in fields(owner)}
        for need in lacking:
            if "=" in need:
                owner, entry = owners[need.partition("=")[0]]
                names = help_of(entry).choices or ["another"]
                value = next(name for name in names if f"{entry.name}={name}" not in lacking)
                object.__setattr__(owner, entry.name, value)
        for name, _, value in (part.partition("=") for part in given):
            owner, entry = owners[name]
            number = json.loads(value) if value and help_of(entry).interval else value
            object.__setattr__(owner, name, another_value(entry) if value == "" else number)
        check_arguments(*made, rules=[rule])

    enough = rule.needs[:1]
    broken = [((rule.flag, *enough, other), ()) for other in rule.excludes]
    if rule.needs:
        broken.append(((rule.flag,), rule.needs))
    if not broken:
        broken.append(((rule.flag,), ()))
    else:
        check(rule.flag, *enough)
    for given, lacking in broken:
        if rule.changes_nothing:
            check(*given, lacking=lacking)
        else:
            with pytest.raises(ValueError, match=rule.flag.replace("=", ".")):
                check(*given, lacking=lacking)
    assert not rule.changes_nothing or rule.flag.partition("=")[0] in caplog.text


def exit_of(run_command, monkeypatch, capsys, *argv):
    """Runs a command and returns its exit status and everything that it printed."""
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


def test_a_command_whose_reader_has_ended_ends_without_a_word():
    code = "from hf_electra_rtd.base.cli import run; run(lambda argv: print('text ' * 100_000))"
    command = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert command.stdout is not None
    command.stdout.close()
    assert command.communicate()[1] == ""
    assert command.returncode == FAILED


@pytest.mark.parametrize(
    ("command", "argv", "status", "message"),
    [
        (lambda: run(lambda argv: None), ["--quiet", ""], None, ""),  # an empty text is a text
        (hf_electra_rtd_command.main, [], FAILED, "COMMAND"),
        (hf_electra_rtd_command.main, ["--help"], 0, "pretrain"),
        (hf_electra_rtd_command.main, ["pretran"], FAILED, "pretrain"),
    ],
)
def test_a_command_line_that_names_nothing_is_refused(monkeypatch, capsys, command, argv, status, message):
    code, printed = exit_of(command, monkeypatch, capsys, "hf-electra-rtd", *argv)
    assert code == status
    assert message in printed


@pytest.mark.parametrize("argument", ["--help", "--version", "pretran"])
def test_the_console_command_answers_without_what_takes_long_to_import(argument):
    code = "import atexit, sys, hf_electra_rtd_command as command\n"
    code += "atexit.register(lambda: print(sorted(sys.modules))); command.main()"
    done = subprocess.run([sys.executable, "-c", code, argument], capture_output=True, text=True, check=False)
    assert done.returncode == (FAILED if argument == "pretran" else 0)
    assert not {"torch", "transformers", "numpy", "hf_electra_rtd"} & set(eval(done.stdout.splitlines()[-1]))


def test_garbage_of_the_imports_is_left_and_garbage_of_the_command_is_collected(monkeypatch):
    states = []

    def command(argv):
        states.append(gc.isenabled())
        return 7

    monkeypatch.setattr(gc, "freeze", lambda: states.append(gc.isenabled()))
    monkeypatch.setattr(detection, "main", command)
    monkeypatch.setattr(sys, "argv", ["hf-electra-rtd", "detect"])
    with pytest.raises(SystemExit) as ended:
        hf_electra_rtd_command.main()
    assert ended.value.code == 7
    assert states == [False, True]  # when the imports are frozen, and in the command


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
