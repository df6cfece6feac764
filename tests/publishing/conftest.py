"""A Hub on loopback, and no way to any other."""

from __future__ import annotations

import socket
import time
from types import SimpleNamespace

import pytest
from huggingface_hub import HfApi, close_session, constants

from hf_electra_rtd.publishing.hub import Publisher
from tests.publishing.fake_hub import TOKEN, FakeHub


@pytest.fixture(autouse=True)
def _loopback_only(monkeypatch):
    connect = socket.socket.connect

    def guarded(self, address):
        if self.family != socket.AF_UNIX and address[0] != "127.0.0.1":
            raise AssertionError(f"a test wants to reach {address}")
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)


@pytest.fixture
def fake_hub(monkeypatch):
    """A running [`FakeHub`]. In this process `HfApi(endpoint=hub.endpoint)` speaks to it; give another process
    `hub.environment(home)`."""
    # `huggingface_hub` reads the environment when it is imported.
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", "hf_thisIsNotToBeSent")
    without_sleep = SimpleNamespace(**{**vars(time), "sleep": lambda seconds: None})
    monkeypatch.setattr("huggingface_hub.utils._http.time", without_sleep)
    close_session()
    with FakeHub() as hub:
        yield hub
    close_session()


@pytest.fixture
def waits():
    """The seconds that `publisher` would have waited."""
    return []


@pytest.fixture
def publisher(fake_hub, waits):
    return Publisher(HfApi(endpoint=fake_hub.endpoint, token=TOKEN), pauses=(1, 2), sleep=waits.append)
