"""Hostile inputs: every command names what it refuses, and loses nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_at_most_two_hostile_cases_of_a_hundred_are_not_clear_and_none_loses_data_or_hangs() -> None:
    command = [sys.executable, Path(__file__).with_name("hostile.py"), "--cases", "15"]  # of each area
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    found = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1100)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "not clear" in found.stdout
