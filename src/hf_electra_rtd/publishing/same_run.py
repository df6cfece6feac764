"""Whether what lies in a repository is of the same run as what would replace it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hf_electra_rtd.publishing.repositories import Repository
from hf_electra_rtd.records import EVALUATION_FILE, RECORD_FILE


_SHOWN = 16  # digits of a hash, which are enough to tell runs apart


def _of_pretraining(record: Mapping[str, Any]) -> dict[str, Any]:
    # Every session of a resumed run has its own `started`, command and versions. What it keeps are its rows, its seed,
    # the towers, and how long and how fast it learns; runs that differ in nothing of these are taken for one.
    model, training = record["model"], record["arguments"]["training"]
    return {
        "rows (sha256)": record["data"]["train"]["sha256"][:_SHOWN],
        "objective": model["objective"],
        "sharing": model["sharing"],
        "parameters": record["parameters"],
        **{name: training[name] for name in ("seed", "max_steps", "learning_rate")},
    }


def _of_fine_tuning(record: Mapping[str, Any]) -> dict[str, Any]:
    # Not the seed: the best of more seeds, or of another recipe, may replace a model.
    model = record["model"]
    return {
        "benchmark": record["benchmark"],
        "task": record["task"],
        # A directory has a hash; else it is an id on the Hub.
        "fine-tuned model": model["sha256"][:_SHOWN] if "sha256" in model else model["name_or_path"],
    }


RECORD_FILES = {RECORD_FILE: _of_pretraining, EVALUATION_FILE: _of_fine_tuning}


def identify_run(record_file: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """What tells a run from others, however often it was resumed.

    Args:
        record_file: `run_record.json` or `evaluation_record.json`.
        record: what it holds.

    Returns:
        By name, for people, too.

    Raises:
        KeyError, TypeError: if something is missing.
    """
    # As JSON has it, so that a record compares with the one that was read back.
    told: dict[str, Any] = json.loads(json.dumps(RECORD_FILES[record_file](record)))
    return {"record": record_file, **told}


def run_of(repository: Repository) -> dict[str, Any] | None:
    """The run that a repository would be of, by the record among its files; None where there is none, as on the
    branches of towers on the way."""
    for file in repository.files:
        if file.path_in_repo in RECORD_FILES:
            return identify_run(file.path_in_repo, json.loads(file.read()))
    return None


def difference(run: Mapping[str, Any], record_file: str, content: bytes) -> str:
    """What tells the run of a record from another, for people; empty where they are the same.

    Args:
        run: as `identify_run` tells it.
        record_file: name of the record.
        content: of that file. What cannot be read is of another run.
    """
    try:
        there = identify_run(record_file, json.loads(content))
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{record_file} cannot be read"
    if there["record"] != run["record"]:
        return f"it holds {record_file}"
    return ", ".join(f"{name} {there[name]}, here {run[name]}" for name in run if there[name] != run[name])
