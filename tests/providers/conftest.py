"""A local cloud in a folder of the test. Whatever the test did, nothing of it is left."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from bamboo_cli.providers.base import Instance
from bamboo_cli.providers.local import LocalConfig, LocalProvider, LocalZone
from bamboo_cli.providers.local_cloud import processes, store
from bamboo_cli.providers.local_cloud.calls import ADDRESS, API_FILE
from bamboo_cli.providers.local_cloud.model import Rented
from tests.agent.coordinator_double import coordinator as coordinator
from tests.waiting import wait_until

CONFIG = LocalConfig(
    zones=(
        LocalZone(name="here", spot_usd_per_hour=0.3, on_demand_usd_per_hour=1.0, capacity=2),
        LocalZone(name="full", spot_usd_per_hour=0.2, on_demand_usd_per_hour=1.0, capacity=0),
        LocalZone(name="there", spot_usd_per_hour=0.4, on_demand_usd_per_hour=1.0),
    ),
    boot_delay_s=0.0,
    notice_poll_s=0.05,
)


@dataclass(slots=True, kw_only=True)
class CloudUnderTest:
    folder: Path
    providers: list[LocalProvider] = field(default_factory=list)

    def provider(self, *, idle_s: float = 60.0, **changes: Any) -> LocalProvider:
        self.providers.append(LocalProvider(self.folder, replace(CONFIG, **changes), idle_s=idle_s))
        return self.providers[-1]

    @property
    def daemon_pid(self) -> int:
        return ADDRESS.validate_json((self.folder / API_FILE).read_bytes()).pid

    def daemons(self) -> list[int]:
        """Processes that have the cloud's folder on their command line."""
        return [pid for pid in psutil.pids() if str(self.folder) in _command_line(pid)]

    def kill_daemon(self) -> None:
        daemon = self.daemon_pid
        os.kill(daemon, signal.SIGKILL)
        wait_until(is_gone(daemon), "the daemon to die")

    def rented(self, instance: Instance) -> Rented:
        """From the state file."""
        state = store.load(self.folder / "state.json")
        return next(r for r in state.rented if r.instance_id == instance.instance_id)

    def pid(self, instance: Instance) -> int:
        """Of its agent."""
        pid = self.rented(instance).pid
        assert pid is not None
        return pid

    def home(self, instance: Instance) -> Path:
        return self.folder / "instances" / instance.instance_id

    def end(self) -> None:
        """Also of a cloud whose state the test has spoilt."""
        try:
            for daemon in self.daemons():
                os.kill(daemon, signal.SIGKILL)
        except ProcessLookupError:
            pass
        for home in (self.folder / "instances").glob("*"):
            processes.end_marked(processes.INSTANCE_VARIABLE, home.name, group=None)


def _command_line(pid: int) -> str:
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return ""


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudUnderTest]:
    double = Path(__file__).parent.parent / "agent" / "worker_double.py"
    monkeypatch.setenv("BAMBOO_WORKER_COMMAND", f"{sys.executable} -S -E {double}")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:9")
    cloud = CloudUnderTest(folder=tmp_path / "local-cloud")
    try:
        yield cloud
    finally:
        cloud.end()


def is_gone(pid: int) -> Callable[[], bool]:
    def gone() -> bool:
        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    return gone
