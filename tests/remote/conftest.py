"""Machines with a real sshd; without one on this system the tests of this folder that need it are skipped."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bamboo_cli.remote.bastion import Bastions
from tests.remote.machine import MISSING, SSHD, Machine, machine


@pytest.fixture(autouse=True)
def never_the_real_metadata_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing listens on the discard port of the loopback."""
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:9")


@pytest.fixture
def vm(tmp_path: Path) -> Iterator[Machine]:
    """Booted, and open to our key."""
    if SSHD is None:
        pytest.skip(MISSING)
    with machine(tmp_path / "vm") as made:
        yield made


@pytest.fixture
def raw_vm(tmp_path: Path) -> Iterator[Machine]:
    """Not booted yet, and open to nobody."""
    if SSHD is None:
        pytest.skip(MISSING)
    with machine(tmp_path / "vm", booted=False) as made:
        yield made


@pytest.fixture
def bastions() -> Iterator[Bastions]:
    made = Bastions()
    yield made
    made.close()
