"""A Hub on loopback, and no way to any other."""

from __future__ import annotations

import socket

import pytest

from tests.publishing.fake_hub import hub  # noqa: F401  # a fixture


@pytest.fixture(autouse=True)
def _loopback_only(monkeypatch):
    connect = socket.socket.connect

    def guarded(self, address):
        if self.family != socket.AF_UNIX and address[0] != "127.0.0.1":
            raise AssertionError(f"a test wants to reach {address}")
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)
