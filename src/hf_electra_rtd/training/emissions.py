"""What a run emitted, where `codecarbon` measured it (`--report_to codecarbon`)."""

from __future__ import annotations

import csv
import math
import os
from pathlib import Path
from typing import Any


EMISSIONS_FILE = "emissions.csv"  # as codecarbon writes it: a line a session
_COLUMNS = ("emissions", "energy_consumed", "country_name", "codecarbon_version")  # kg of CO2 equivalents, kWh


def read_emissions(output_dir: str | os.PathLike[str]) -> dict[str, Any]:
    """The emissions of a run, its sessions added up, as in [`PretrainingRecord`]; empty where nothing was measured.

    Args:
        output_dir: of the run.

    Raises:
        ValueError: for a file that is not codecarbon's.
    """
    path = Path(output_dir) / EMISSIONS_FILE
    if not path.is_file():
        return {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            sessions = list(reader)
        if missing := [name for name in _COLUMNS if name not in (reader.fieldnames or ())]:
            raise ValueError(f"there is no column {', '.join(missing)}")
        if not sessions:
            return {}
        emissions, energy = (math.fsum(float(session[name]) for session in sessions) for name in _COLUMNS[:2])
        if not math.isfinite(emissions + energy):
            raise ValueError(f"{emissions:g} kg, {energy:g} kWh")
    except (csv.Error, TypeError, ValueError) as error:  # TypeError: of a line that ends too soon
        raise ValueError(f"{path} is not as codecarbon writes it ({error}): remove it.") from None
    last = sessions[-1]
    source = f"codecarbon {last['codecarbon_version']}"
    return {"kg_co2_eq": emissions, "energy_kwh": energy, "country": last["country_name"], "source": source}
