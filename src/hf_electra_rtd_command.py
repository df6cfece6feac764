"""The console command `hf-electra-rtd COMMAND ...`.

This module lies beside the package, because importing the package takes seconds, and `--help`, `--version` or a
misspelled command need none of it.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import metadata
from typing import NoReturn


# Command: (module, what it does).
COMMANDS: dict[str, tuple[str, str]] = {
    "pretrain": ("training.pretrain", "pre-train a generator and a discriminator on text"),
    "prepare": ("data.prepare_command", "turn text into sequences once, to train on them often"),
    "finetune": ("finetuning.finetune", "fine-tune and evaluate on GLUE, CLUE or your own task"),
    "predict": ("finetuning.predict", "apply a fine-tuned model to files or standard input"),
    "export": ("inference.export", "turn a model into an ONNX graph, checked against torch"),
    "detect": ("inference.detection", "show which tokens of a sentence look replaced"),
    "correct": ("inference.correction", "correct wrong words of texts"),
    "misspell": ("data.confusion", "make pairs of wrong and right sentences from text"),
    "score": ("inference.likelihood", "score how likely a model considers each text"),
    "convert": ("pair.original_checkpoints", "convert a TensorFlow checkpoint of google-research/electra"),
    "compare": ("publishing.compare", "compare pre-trainings or fine-tunings in one table"),
    "publish": ("publishing.publish", "publish a run on the Hub"),
}
FAILED = 2  # exit status after a mistake, with a message
INTERRUPTED = 130  # after Ctrl-C


def main() -> NoReturn:
    name = _parse_command(sys.argv[1:2])
    del sys.argv[1]
    # The imports take a third less time without garbage collection, which finds next to nothing in them.
    gc.disable()
    try:
        run: Callable[..., NoReturn] = importlib.import_module("hf_electra_rtd.base.cli").run
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except FileNotFoundError as error:
        print(f"error: {error}. Was the working directory removed?", file=sys.stderr)
        sys.exit(FAILED)
    # From here on `run` reports errors, including those raised while the command's module is imported.
    run(lambda argv: _import_command(name)(argv), name)


def _import_command(name: str) -> Callable[[list[str]], int | None]:
    command: Callable[[list[str]], int | None] = importlib.import_module(f"hf_electra_rtd.{COMMANDS[name][0]}").main
    gc.freeze()  # no later collection looks through what was imported
    gc.enable()
    return command


def _parse_command(argv: Sequence[str]) -> str:
    width = max(map(len, COMMANDS))
    parser = argparse.ArgumentParser(
        "hf-electra-rtd",
        usage="%(prog)s COMMAND [--flag value ...]",
        description="\n".join(f"  {name:{width}}  {does}" for name, (_, does) in COMMANDS.items()),
        epilog="COMMAND --help lists the flags of a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=metadata.version("hf-electra-rtd"))
    parser.add_argument("command", metavar="COMMAND", help=argparse.SUPPRESS)
    name: str = parser.parse_args(argv).command
    if name not in COMMANDS:
        similar = get_close_matches(name, COMMANDS)
        known = f"Did you mean {' or '.join(similar)}?" if similar else f"Commands: {', '.join(COMMANDS)}."
        parser.error(f"there is no command {name!r}. {known}")
    return name


if __name__ == "__main__":
    main()
