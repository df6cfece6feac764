"""How every command reads its flags, checks them and reports a mistake.

`hf_electra_rtd_command` lists the commands. Each is a module with `main(argv)`, so that `accelerate launch -m MODULE`
starts it in several processes.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from math import inf
from pathlib import Path
from typing import Any, NoReturn

from transformers import HfArgumentParser
from transformers.hf_argparser import string_to_bool

from hf_electra_rtd.base.files import check_name, known_names, reading
from hf_electra_rtd_command import COMMANDS, FAILED, INTERRUPTED


logger = logging.getLogger(__name__)

# The flags that `--help` shows under each title. A text replaces the help of the flag's field; None keeps it.
HelpGroups = Mapping[str, Mapping[str, str | None]]


@dataclass(frozen=True)
class Rule:
    """A row of a command's table of rules: which other flags a given flag needs or excludes.

    A flag is given if its value differs from its default. Flags are named by their fields; `name=value` means that the
    field has this value. A row without `needs` and `excludes` refuses the flag itself.
    """

    flag: str
    why: str  # the sentence that follows the flags in the message; may be empty
    needs: tuple[str, ...] = ()  # at least one of these must be given, too
    excludes: tuple[str, ...] = ()  # none of these may be given
    changes_nothing: bool = False  # warn once instead of raising an error

    @property
    def refuses(self) -> bool:
        """Whether giving the flag is an error whatever the other flags are."""
        return not (self.needs or self.excludes or self.changes_nothing or "=" in self.flag)


def run(command: Callable[[list[str]], int | None], name: str | None = None) -> NoReturn:
    """Runs a command's `main` on the command line and exits with its status. A mistake of the user or the machine
    (`ValueError`, `OSError`, `FloatingPointError`) prints `error: ...` and exits with status 2; any other error is a
    bug and shows a traceback. Sets `sys.argv[0]` to `hf-electra-rtd COMMAND`, so that records and messages call the
    command by this name however it was started."""
    # The spec of `__main__` holds the name after `-m`.
    module = getattr(sys.modules.get(command.__module__), "__spec__", None)
    for known, (path, _) in COMMANDS.items():
        if name == known or (module is not None and module.name == f"hf_electra_rtd.{path}"):
            sys.argv[0] = f"hf-electra-rtd {known}"
    signal.signal(signal.SIGTERM, _terminate)
    try:
        try:
            status: Any = command(sys.argv[1:])
        except SystemExit as nothing_to_do:
            status = nothing_to_do.code
        sys.stdout.flush()
        # Threads of a process group that outlive the interpreter may abort a process whose work is done. A launcher
        # would then kill the first process, which may still be saving. So the other processes exit at once.
        distributed: Any = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            rank = distributed.get_rank()
            distributed.destroy_process_group()
            if rank > 0 and not isinstance(status, str):
                os._exit(status or 0)
        sys.exit(status)
    except BrokenPipeError:  # the reader of the output, such as `head`, has exited
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)
    except (ValueError, OSError, FloatingPointError) as error:
        told = str(error)
        if isinstance(error, OSError) and error.strerror:  # without the error number
            told = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        print(f"error: {told}", file=sys.stderr)
        sys.exit(FAILED)
    except KeyboardInterrupt as interrupt:
        print("\nInterrupted.", file=sys.stderr)
        sys.exit(status_of(interrupt))


def status_of(interrupt: KeyboardInterrupt) -> int:
    """Returns the exit status after Ctrl-C, or after the signal that `_terminate` has noted."""
    return int(interrupt.args[0]) if interrupt.args else INTERRUPTED


def _terminate(number: int, _: Any) -> NoReturn:
    raise KeyboardInterrupt(128 + number)


def parse_arguments(
    dataclass_types: Sequence[Any],
    argv: Sequence[str],
    description: str | None = None,
    defaults: Mapping[str, Any] | None = None,
    help_groups: HelpGroups | None = None,
    rules: Sequence[Rule] = (),
) -> tuple[Any, ...]:
    """Fills dataclasses, whose fields are the flags, from a command line and an optional YAML file of flags (`--config
    FILE`). Flags on the command line win. `defaults` replace the dataclasses' own. With `help_groups`, `--help` shows
    only these flags, and `--help-all` shows all; flags that the `rules` refuse or the Trainer ignores are never shown.
    Raises ValueError for an unknown flag or a value of the wrong type, also in the YAML file, and for a list or
    `--config` that is given twice on the command line."""
    refused = [rule.flag for rule in rules if rule.refuses]
    shows_all = "--help_all" in map(_with_underscores, argv)
    parser = _Parser(dataclass_types, description, help_groups or {}, shows_all, refused)
    parser.set_defaults(**(defaults or {}))
    given = [_with_underscores(word).partition("=")[0] for word in argv]
    for action in parser._actions:
        name = f"--{action.dest}"
        if (action.nargs == "+" or name == "--config") and given.count(name) > 1:
            parser.error(f"{name} is given more than once, and only the last would count. Join them into one.")
    words = _with_config(argv, parser)
    try:
        *filled, unknown = parser.parse_args_into_dataclasses(
            words, return_remaining_strings=True, look_for_args_file=False
        )
    except json.JSONDecodeError as error:
        raise ValueError(f"A flag has the value {error.doc!r}, which is not JSON ({error.msg}).") from None
    except ValueError as error:  # dataclasses that are also used from Python name the field
        is_flag = "--" + re.split(r"\W", str(error), maxsplit=1)[0] in parser._option_string_actions
        raise ValueError(f"--{error}" if is_flag else str(error)) from None
    if unknown:
        names = known_names(unknown[0], parser._option_string_actions, "flags")
        parser.error(f"there is no flag {unknown[0]}. {names}")
    return tuple(filled[: len(dataclass_types)])


def given_flags(dataclass_types: Sequence[Any], argv: Sequence[str]) -> dict[str, Any]:
    """Returns the value of each flag on a command line and in its `--config` file, None for a flag that is not given.
    Defaults that depend on other flags are derived from these values."""
    parser = _Parser(dataclass_types, None, {}, False, ())
    nothing = argparse.Namespace(**{action.dest: None for action in parser._actions})
    words = [word for word in _with_config(argv, parser) if word not in ("-h", "--help", "--help_all")]
    return vars(parser.parse_known_args(words, nothing)[0])


def _with_underscores(word: str) -> str:
    """Rewrites `--max-steps` as `--max_steps`."""
    return re.sub(r"^--[\w-]+(?==|$)", lambda flag: f"--{flag[0][2:].replace('-', '_')}", word)


def _with_config(argv: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """Returns the flags in the `--config` file of a command line, followed by the words of the command line itself."""
    argv = [_with_underscores(word) for word in argv]
    config = _value_of("--config", argv)
    if config is None:
        return argv
    configured = _read_config(config, parser)
    if "--max_steps" in configured and _value_of("--num_train_epochs", argv) is not None:
        configured.append("--max_steps=-1")  # else the file's steps would win over the epochs
    # `--config` stands between, so that the file's last flag does not take positional words of the command line.
    return [*configured, "--config", config, *argv]


def parse_size(flag: str, text: str | None) -> int | None:
    """Converts a size such as `512MB` to bytes, and None to None. Raises ValueError with the flag's name for a text
    that is not a size."""
    from accelerate.utils import convert_file_size_to_int

    try:
        return None if text is None else int(convert_file_size_to_int(text.upper()))  # a lower-case b means bits there
    except (ValueError, OverflowError):
        raise ValueError(f"--{flag} {text}: name a size, such as 512MB or 24GB.") from None


class Help(str):
    """The help of a flag, which also carries the other arguments of [`flag`]: an HfArgumentParser passes all metadata
    of a field to argparse, which knows `help` alone."""

    interval: str | None = None
    choices: tuple[str, ...] | None = None
    words: str | None = None


def help_of(entry: Any) -> Help:
    """Returns the help of a field; that of a field which `flag` did not make carries nothing."""
    text = entry.metadata.get("help", "")
    return text if isinstance(text, Help) else Help(text)


def flag(
    default: Any,
    help: str,
    interval: str | None = None,
    choices: Iterable[str] | None = None,
    words: str | None = None,
) -> Any:
    """Makes a field of a dataclass of flags; a default list is copied. `interval`, such as `(0, 1]` or `[1, inf)`,
    bounds a number or each number of a list. `choices` are the names that a text may be. [`check_arguments`] checks
    both. A list with `words` takes the positional words of the command line; `words` is the name of such a word in the
    help."""
    text = Help(help)
    text.interval = interval
    text.choices = None if choices is None else tuple(choices)
    text.words = words
    metadata = {"help": text}
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def required(help: str) -> Any:
    """Makes a field without a default for a dataclass of flags."""
    return field(metadata={"help": help})


def check_arguments(
    *arguments: Any,
    rules: Sequence[Rule] = (),
    intervals: Mapping[str, str] | None = None,
    dashes: str = "--",
) -> None:
    """Checks dataclasses of flags: first each value by the interval or choices of its field (or of `intervals`, for
    inherited fields), then the flags together by `rules`. Values that equal their defaults are not checked. Raises
    ValueError, also for an empty value, with the names of the flags after `dashes`; warns once of each flag that
    changes nothing."""
    values: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    words: dict[str, str | None] = {}
    for dataclass_ in arguments:
        for entry in fields(dataclass_):
            name = entry.name
            value = values[name] = getattr(dataclass_, name)
            default = defaults[name] = entry.default if entry.default_factory is MISSING else entry.default_factory()
            told = help_of(entry)
            words[name] = told.words
            interval = told.interval or (intervals or {}).get(name)
            if value is None or value == default:
                continue
            if interval is not None:
                for number in value if isinstance(value, list) else [value]:
                    check_number(f"{dashes}{name}", number, interval)
            if "" in (value if isinstance(value, list) else [value]) and told.words is None:
                raise ValueError(f"{dashes}{name} has an empty value. Give another, or leave it out.")
            if told.choices is not None:
                check_name(f"{dashes}{name}", value, told.choices)

    def is_given(name: str) -> bool:
        name, has_value, wanted = name.partition("=")
        value = values[name]
        return value == wanted or str(value) == wanted if has_value else value != defaults[name]

    def shown(name: str) -> str:
        if dashes and words.get(name):
            return f"{words[name]} ({values[name][0]!r})"
        if dashes:
            return f"{dashes}{name.replace('=', ' ')}"
        return f"{name}={values[name]!r}" if isinstance(values.get(name), (str, int, float)) else name

    for rule in rules:
        if not is_given(rule.flag):
            continue
        clash = next((name for name in rule.excludes if is_given(name)), None)
        if clash is not None:
            relation = f"with {shown(clash)}"
            refusal = f"does not go {relation}"
        elif rule.needs:
            if any(is_given(name) for name in rule.needs):
                continue
            needed = " or ".join(map(shown, rule.needs))
            relation = f"without {needed}"
            refusal = f"needs {needed}"
        elif rule.excludes:
            continue
        else:
            relation = "here"
            refusal = "is not supported here"
        if not rule.changes_nothing:
            raise ValueError(f"{shown(rule.flag)} {refusal}. {rule.why}".rstrip())
        warn_once(f"{shown(rule.flag)} changes nothing {relation}. {rule.why}".rstrip())


def check_number(name: str, number: float | None, interval: str) -> None:
    """Raises ValueError for a number outside an interval. NaN is outside every interval, infinity outside those that
    end with `inf)`. None is not checked."""
    low, high = map(float, interval[1:-1].split(", "))
    if number is None:
        return
    above = number >= low if interval[0] == "[" else number > low
    below = number <= high if interval[-1] == "]" else number < high
    if above and below:
        return
    ends = []
    if low != -inf:
        ends.append(f"{'at least' if interval[0] == '[' else 'above'} {low:g}")
    ends.append("finite" if high == inf else f"{'at most' if interval[-1] == ']' else 'below'} {high:g}")
    shown = f"{number:g}" if isinstance(number, float) else number
    raise ValueError(f"{name} is {shown}: it must be {' and '.join(ends)}.")


@cache
def warn_once(message: str) -> None:
    if os.environ.get("RANK", "0") == "0":  # only the first process of a launcher warns
        logger.warning(message)


class _Parser(HfArgumentParser):
    """A parser whose flags are the fields of dataclasses, and which accepts no abbreviations. With `help_groups`, its
    help has titles."""

    def __init__(
        self,
        dataclass_types: Sequence[Any],
        description: str | None,
        help_groups: HelpGroups,
        shows_all: bool,
        hidden: Collection[str],
    ) -> None:
        self._own_texts = {name: text for flags in help_groups.values() for name, text in flags.items()}
        self._title_of = {name: title for title, flags in help_groups.items() for name in flags}
        self._titled: dict[str, Any] = {}
        self._shows_all = shows_all or not help_groups
        known = [(entry, type_) for type_ in dataclass_types for entry in fields(type_)]
        self._inherited = {entry.name for entry, type_ in known if entry.name not in type_.__annotations__}
        self._hidden = {*hidden, *self._inherited.intersection(_IGNORED)}
        for entry, type_ in known if help_groups else ():
            self._title_of.setdefault(entry.name, _title(type_, entry.name))
        self._words = {entry.name: text for entry, _ in known if (text := help_of(entry).words)}
        words = "".join(f" [{text} ...]" for text in self._words.values())
        super().__init__(
            dataclass_types,
            description=description,
            allow_abbrev=False,
            usage=f"%(prog)s [--config FILE] [--flag value ...]{words}",  # all flags would fill screens
            formatter_class=_HelpFormatter,
        )
        self.add_argument("--config", metavar="FILE", help="A YAML file of flags. Flags on the command line win.")
        if help_groups:
            super().add_argument("--help-all", "--help_all", action="help", help="Show all flags.")

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)

    def add_argument(self, *names: Any, **options: Any) -> Any:
        """Adds a flag to its group, named with underscores: `parse_arguments` reads `--a-b` as `--a_b`."""
        names = tuple(name for name in names if "-" not in name.lstrip("-"))
        name = names[0].lstrip("-")
        if name in self._words:
            metavar = self._words[name]
            super().add_argument(name, nargs="*", metavar=metavar, default=argparse.SUPPRESS, help=options["help"])
            options["help"] = argparse.SUPPRESS  # only `--config` uses the flag itself
        if self._words and options.get("const") is True:  # `--flag TEXT` must not give TEXT to a switch
            options = {"action": "store_true", "help": options.get("help")}
        if options.get("type") in _METAVARS and "metavar" not in options:
            options["metavar"] = _METAVARS[options["type"]]
        if len(options.get("choices") or ()) > 5:  # all names would be wider than a screen
            options["metavar"] = "NAME"
        of = options.get("dest", name)
        if options.get("action") == "store_false":
            options["help"] = f"The same as --{of} False."
        elif of in self._inherited:
            options["help"] = _INHERITED.get(of, options["help"])
        if self._own_texts.get(name):
            options["help"] = self._own_texts[name]
        title = self._title_of.get(of)
        is_shown = title is None or self._shows_all or name in self._own_texts
        if of in self._hidden or not is_shown:
            options["help"] = argparse.SUPPRESS
        if title is None:
            return super().add_argument(*names, **options)
        if not self._titled:  # all at once, in the order of the table
            self._titled = {title: self.add_argument_group(title) for title in dict.fromkeys(self._title_of.values())}
        return self._titled[title].add_argument(*names, **options)


_METAVARS: dict[Any, str] = {int: "N", float: "X", str: "TEXT", string_to_bool: "BOOL"}
# Flags of `TrainingArguments` that only the example scripts of transformers read, or that our trainers set.
_IGNORED = (
    "do_train",
    "do_eval",
    "do_predict",
    "local_rank",
    "greater_is_better",
    "label_names",
    "length_column_name",
    "include_for_metrics",
)
# Help texts for the flags of `TrainingArguments` whose own help would be wrong here.
_INHERITED = {
    "disable_tqdm": "Show no progress bars. By default they show in a terminal only.",
    "hub_private_repo": "Whether the repositories are private. By default they are.",
    "push_to_hub": "Publish the models on the Hub at the end.",
    "hub_model_id": "ORG/NAME, with which the names of the repositories begin.",
    "report_to": "Where losses and scores are also sent: none, all, or one of tensorboard, wandb, trackio, ...",
    "resume_from_checkpoint": "Resume from a checkpoint: its directory, `latest`, or `auto` (if there is one).",
}


def _title(dataclass_type: type, name: str) -> str:
    """Returns the title for a flag in no help group: the first line of its dataclass's docstring, or, for an inherited
    flag, one that names the base class."""
    if name not in dataclass_type.__annotations__:
        return f"Other flags of {dataclass_type.__base__.__name__}"  # type: ignore[union-attr]
    return str(dataclass_type.__doc__).strip().splitlines()[0].rstrip(".")


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows defaults where there are any, and wraps the paragraphs of the description except indented ones."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        paragraphs = text.strip().split("\n\n")
        return "\n\n".join(each if each.startswith(" ") else fill(each, width, indent) for each in paragraphs)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        # -1 stands for none, as in max_steps; the default of a `--no_flag` is that of its `--flag`.
        has_none = action.default in (None, "", [], -1) or action.const is False
        if isinstance(action.default, list) and not has_none:  # as it would be typed
            return f"{action.help} (default: {' '.join(map(str, action.default))})"
        return action.help if has_none else super()._get_help_string(action)


def _value_of(flag: str, argv: Sequence[str]) -> str | None:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(flag, dest="value")
    return parser.parse_known_args(argv)[0].value


def _read_config(path: str, parser: argparse.ArgumentParser) -> list[str]:
    """Reads a YAML file as words of a command line, so that types and choices are checked in one place."""
    import yaml

    with reading(f"{path} (--config)"):
        text = Path(path).read_text(encoding="utf-8")
        config, written = (yaml.load(text, loader) for loader in (yaml.SafeLoader, yaml.BaseLoader))
    if not isinstance(config, dict):
        raise ValueError(f"{path} must hold flags and values, such as `learning_rate: 5.0e-4`.")
    known = {
        action.dest: action
        for action in parser._actions
        if f"--{action.dest}" in action.option_strings  # leaves out `--no_x`, whose field is x, too
        and action.dest not in ("help", "help_all", "config")
    }
    flags: list[str] = []
    for key, value in config.items():
        if key not in known:
            raise ValueError(f"{path}: there is no flag {key!r}. {known_names(str(key), known, 'flags')}")
        if value is None or value == [] == known[key].default:
            continue
        if isinstance(value, bool) and known[key].nargs == 0:
            flags += [f"--{key}"] if value else []
            continue
        # Values as they are written: a label `no` must not become False.
        as_written = json.dumps(value) if isinstance(value, dict) else written.get(key, value)
        if isinstance(as_written, list) and len(as_written) > 1 and known[key].nargs not in ("+", "*"):
            raise ValueError(f"{path}: {key} takes one value, not a list.")
        values = as_written if isinstance(as_written, list) else [as_written]
        flags += [f"--{key}", *map(str, values)]
    return flags
