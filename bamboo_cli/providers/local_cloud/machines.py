"""What makes an instance real: its processes and its metadata endpoint on this machine. Decides nothing.

The caller lets one thread in at a time.
"""

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
from bamboo_trainer.births import BirthError, Child

from bamboo_cli.providers.local_cloud import home, processes
from bamboo_cli.providers.local_cloud.metadata import MetadataEndpoint
from bamboo_cli.providers.local_cloud.model import Rented
from bamboo_cli.providers.local_cloud.nursery import Nursery
from bamboo_cli.providers.local_cloud.processes import INSTANCE_VARIABLE

log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-m", "bamboo_agent")


class Machines:
    """``folder``: the local cloud's."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._nursery = Nursery()
        self._children: dict[str, subprocess.Popen[bytes] | Child] = {}
        """Processes that this life of the daemon started; those of an earlier one belong to init."""
        self._endpoints: dict[str, MetadataEndpoint] = {}

    def get_ready(self) -> None:
        """Booting will be asked for soon."""
        self._nursery.begin()

    @property
    def are_ready(self) -> bool:
        """Better wait until they are: a boot before costs as much as all that come after together."""
        return not self._nursery.is_loading()

    def close(self) -> None:
        """Instances live on."""
        self._nursery.end()

    def boot(self, rented: Rented) -> int:
        """The process number of its agent. Raises OSError."""
        folder, environment = home.of(self._folder, rented), home.environment(self._folder, rented)
        child: subprocess.Popen[bytes] | Child
        try:
            child = self._nursery.bear_node(COMMAND, folder=folder, environment=environment)
        except BirthError as error:
            log.info("%s boots by itself: %s", rented.instance_id, error)
            child = processes.start(COMMAND, folder=folder, environment=environment)
        self._children[rented.instance_id] = child
        return child.pid

    def booted_before(self, rented: Rented) -> int | None:
        """Its agent, which an earlier life of the daemon may have started without noting it."""
        for process in processes.marked(INSTANCE_VARIABLE, rented.instance_id):
            if os.getpgid(process.pid) == process.pid:
                return process.pid
        return None

    def end(self, rented: Rented) -> bool:
        """Kills what is left of the instance. False: something will not die; try again."""
        left = processes.end_marked(INSTANCE_VARIABLE, rented.instance_id, group=rented.pid)
        if left:
            log.error("%s: processes %s do not die", rented.instance_id, left)
            return False
        child = self._children.pop(rented.instance_id, None)
        if child is not None:
            child.wait()
        self.close_endpoint(rented.instance_id)
        return True

    def is_alive(self, rented: Rented) -> bool:
        child = self._children.get(rented.instance_id)
        if child is not None:
            return child.poll() is None
        if rented.pid is None or rented.pid_created_at is None or not rented.live:
            return False
        return processes.is_alive(rented.pid, rented.pid_created_at)

    def open_endpoint(self, instance_id: str, address: str, port: int, view: Callable[[], Rented]) -> int:
        """The port: ``port`` if it can be had, else another. Raises OSError."""
        try:
            endpoint = MetadataEndpoint(address=address, port=port, view=view)
        except OSError:
            if port == 0:
                raise
            endpoint = MetadataEndpoint(address=address, port=0, view=view)
        self._endpoints[instance_id] = endpoint
        return endpoint.port

    def close_endpoint(self, instance_id: str) -> None:
        endpoint = self._endpoints.pop(instance_id, None)
        if endpoint is not None:
            endpoint.close()


def born_at(pid: int) -> float:
    """Seconds since the epoch; 0.0 for a process that is dead already, which the next look finds out."""
    try:
        return psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        return 0.0
