"""Scripts from their command lines: flags from dataclasses, a YAML recipe (`--config`), the recipe of a size. Flags
win, then the file."""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from transformers import HfArgumentParser


def parse_arguments(
    dataclass_types: Sequence[Any],
    argv: Sequence[str],
    description: str | None = None,
    defaults: dict[str, Any] | None = None,
    recipes: dict[str, dict[str, Any]] | None = None,
) -> tuple[Any, ...]:
    """Fills dataclasses from a command line.

    Args:
        dataclass_types: whose fields are the flags.
        argv: the command line, without the program's name.
        description: for `--help`.
        defaults: in place of the dataclasses' own.
        recipes: defaults for each value of `--size`.

    Returns:
        An instance of each dataclass.

    Raises:
        SystemExit: after a message, for a flag that is not known or cannot be read.
        ValueError: for a recipe file that holds an unknown key or is not a mapping.
    """
    parser = HfArgumentParser(
        dataclass_types,
        description=description,
        allow_abbrev=False,
        usage="%(prog)s [--config FILE] [--flag value ...] (--help lists the flags)",  # all of them would fill screens
        formatter_class=_HelpFormatter,
    )
    parser.add_argument("--config", metavar="FILE", help="A YAML recipe: a mapping of flags to values. Flags win.")
    parser.set_defaults(**(defaults or {}))
    first, _ = _parser_of("--config").parse_known_args(argv)
    from_file = [] if first.config is None else _read_recipe(first.config, parser)
    everything = [*from_file, *argv]
    if recipes is not None:
        size = _parser_of("--size").parse_known_args(everything)[0].size or parser.get_default("size")
        if size not in recipes:
            parser.error(f"argument --size: there is no size {size!r}; known are: {', '.join(recipes)}")
        recipe = dict(recipes[size])
        if _parser_of("--num_train_epochs").parse_known_args(everything)[0].num_train_epochs is not None:
            recipe.pop("max_steps", None)  # a length in epochs replaces the recipe's length in steps
        parser.set_defaults(**recipe)
    *filled, unknown = parser.parse_args_into_dataclasses(everything, return_remaining_strings=True)
    if unknown:
        close = difflib.get_close_matches(unknown[0], parser._option_string_actions, n=1)
        parser.error(f"there is no flag {unknown[0]}" + (f"; did you mean {close[0]}?" if close else ""))
    return tuple(filled[: len(dataclass_types)])


def run_as_script(main: Callable[[list[str]], int | None], *mistakes: type[Exception]) -> NoReturn:
    """Runs a script, and exits: with what `main` returns, or after `error: ...` in place of a traceback.

    Args:
        main: the script; it takes the command line, without the program's name.
        *mistakes: what, besides ValueError, tells a person all that there is to know.
    """
    told: tuple[type[Exception], ...] = (ValueError, *mistakes)
    try:
        sys.exit(main(sys.argv[1:]))
    except told as error:
        sys.exit(f"error: {error}")


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Defaults beside each flag, and the description as it was written."""


def _parser_of(flag: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(flag)
    return parser


def _read_recipe(path: str, parser: argparse.ArgumentParser) -> list[str]:
    """A recipe as the flags that it stands for, so that types and choices are checked in one place."""
    import yaml

    recipe = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    if not isinstance(recipe, dict):
        raise ValueError(f"{path} must be a mapping of flags to values, such as `learning_rate: 5.0e-4`.")
    known = {action.dest for action in parser._actions} - {"help", "config"}
    flags: list[str] = []
    for key, value in recipe.items():
        if key not in known:
            close = difflib.get_close_matches(str(key), sorted(known), n=1)
            raise ValueError(f"{path}: there is no flag {key!r}." + (f" Did you mean {close[0]!r}?" if close else ""))
        if value is None:
            continue
        flags.append(f"--{key}")
        if isinstance(value, list):
            flags.extend(map(str, value))
        else:
            flags.append(json.dumps(value) if isinstance(value, dict) else str(value))
    return flags
