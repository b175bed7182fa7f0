"""Asks the local cloud, and starts it when it is not there."""

import http.client
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TypeVar

import psutil
from bamboo_agent.config import has_nursery
from bamboo_trainer import births
from bamboo_trainer.births import Birth, BirthError, BirthKind
from pydantic import TypeAdapter, ValidationError

from bamboo_cli.errors import CloudError
from bamboo_cli.providers.local_cloud.calls import (
    ADDRESS,
    API_FILE,
    BORN,
    CALLS,
    FAILURE,
    LOG_FILE,
    YES_OR_NO,
    ApiAddress,
    Call,
    Preempt,
    Retire,
    error_of,
)

log = logging.getLogger(__name__)

CALL_S = 30.0
START_S = 30.0
"""On a busy laptop Python alone may take seconds to start."""
PAUSE_S = 0.05
NOT_INHERITED = ("BAMBOO_CLUSTER", "BAMBOO_INSTANCE", "BAMBOO_NODE_CONFIG", "BAMBOO_CONTROL_FD", "BAMBOO_NURSERY")
"""The daemon belongs to no cluster, whoever starts it."""

T = TypeVar("T")


class _NotThere(Exception):
    """No daemon took the call; it was not sent."""


class CloudClient:
    def __init__(self, folder: Path, *, idle_s: float) -> None:
        self._folder = folder
        self._idle_s = idle_s

    def call(self, call: Call, answer: TypeAdapter[T]) -> T:
        """Starts the daemon if need be. Raises CloudError and its kinds.

        Sent again when the answer is lost (the daemon was killed), but for Preempt: that one cannot be repeated.
        """
        deadline = time.monotonic() + START_S
        while True:
            try:
                return self._send(self._address(), call, answer)
            except _NotThere as error:
                self._start(deadline, error)
            except (OSError, http.client.HTTPException) as error:
                if isinstance(call, Preempt) or time.monotonic() > deadline:
                    raise CloudError(
                        f"the local cloud was asked to {_name(call)} and its answer was lost ({error!r})",
                        next_step=f"See what it did with `bamboo status`; its log is {self._folder}/daemon.log.",
                    ) from error
                time.sleep(PAUSE_S)

    def retire(self) -> bool:
        """End the daemon, and wait until it has, unless it has instances. True: it is not there (any more)."""
        try:
            address = self._address()
            if not self._send(address, Retire(), YES_OR_NO):
                return False
        except (_NotThere, OSError, http.client.HTTPException):
            return self._daemon() is None
        deadline = time.monotonic() + CALL_S
        while self._is_daemon(address.pid) and time.monotonic() < deadline:
            time.sleep(PAUSE_S)
        return not self._is_daemon(address.pid)

    def _send(self, address: ApiAddress, call: Call, answer: TypeAdapter[T]) -> T:
        connection = http.client.HTTPConnection("127.0.0.1", address.port, timeout=CALL_S)
        try:
            try:
                connection.connect()
            except ConnectionRefusedError as error:
                raise _NotThere(str(error)) from error
            headers = {"Authorization": f"Bearer {address.token}", "Content-Type": "application/json"}
            connection.request("POST", f"/{_name(call)}", CALLS[_name(call)].dump_json(call), headers)
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        if response.status == 503:
            raise _NotThere("the local cloud is ending")
        try:
            if response.status != 200:
                raise error_of(FAILURE.validate_json(body))
            return answer.validate_json(body)
        except ValidationError as error:
            raise CloudError(
                f"the local cloud answered {_name(call)} with {body[:200]!r}",
                next_step="End the daemon of another version of bamboo-train, then try again.",
            ) from error

    def _address(self) -> ApiAddress:
        """Raises _NotThere."""
        address = self._daemon()
        if address is None:
            raise _NotThere(f"no local cloud serves {self._folder}")
        return address

    def _daemon(self) -> ApiAddress | None:
        try:
            address = ADDRESS.validate_json((self._folder / API_FILE).read_bytes())
        except (OSError, ValidationError):
            return None
        return address if self._is_daemon(address.pid) else None

    @staticmethod
    def _is_daemon(pid: int) -> bool:
        """The file may be of a daemon that was killed, and its number another process's by now."""
        try:
            process = psutil.Process(pid)
            return process.status() != psutil.STATUS_ZOMBIE and any("local_cloud" in a for a in process.cmdline())
        except psutil.Error:
            return False

    def _start(self, deadline: float, missing: _NotThere) -> None:
        if time.monotonic() > deadline:
            raise CloudError(
                f"the local cloud could not be reached for {START_S:g} s: {missing}",
                next_step=f"Its log is {self._folder}/daemon.log.",
            )
        command = [sys.executable, "-m", "bamboo_cli.providers.local_cloud", str(self._folder)]
        command += ["--idle-s", str(self._idle_s)]
        environment = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
        if self._is_born(command, environment, deadline):
            return
        try:
            started = subprocess.run(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=START_S,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CloudError(f"the local cloud could not be started: {error}") from error
        if started.returncode != 0 and "another local cloud" not in started.stderr:
            raise CloudError(
                f"the local cloud could not be started: {started.stderr.strip()}",
                next_step=f"Its log is {self._folder}/daemon.log.",
            )
        if started.returncode != 0:
            time.sleep(PAUSE_S)  # another client's is starting, or the last one is ending

    def _is_born(self, command: list[str], environment: dict[str, str], deadline: float) -> bool:
        """Of a nursery that commands share, with one of its own. False: there is none, or it came to nothing."""
        shared = environment.get(births.SHARED_VARIABLE)
        if not shared or not has_nursery():
            return False
        birth = Birth(command=(*command, BORN), environment=environment, folder=str(self._folder), kind=BirthKind.NODE)
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = os.open(self._folder / LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            daemon = psutil.Process(births.ask_shared(shared, birth, (file,)))
            while self._daemon() is None:
                if daemon.status() == psutil.STATUS_ZOMBIE or time.monotonic() > deadline:
                    return False
                time.sleep(PAUSE_S)
        except (OSError, BirthError, psutil.Error) as error:
            log.warning("the nursery at %s could not be used: %s", shared, error)
            return False
        finally:
            os.close(file)
        return True


def _name(call: Call) -> str:
    return type(call).__name__.lower()
