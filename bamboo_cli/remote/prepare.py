"""Make a machine a node, over one connection: look, do what is missing, write the agent's file, start it."""

import errno
import io
import json
import os
import tarfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import cast

from bamboo_agent.config import AgentConfig

from bamboo_cli.errors import StepError
from bamboo_cli.providers.base import Instance, NodeConfig
from bamboo_cli.remote import wheel
from bamboo_cli.remote.connection import Connection, Stdin
from bamboo_cli.remote.facts import LOOK, Facts, look_script, parse_facts
from bamboo_cli.remote.installing import BOOT, installing
from bamboo_cli.remote.settings import RemoteConfig
from bamboo_cli.remote.starting import starting
from bamboo_cli.remote.steps import LARGER_DISK, File, Luggage, Place, Step, script_of

LOOK_S = 60.0
TAIL_BYTES = 1 << 16
LINE_CHARS = 300
LOG_LIMIT_BYTES = 8 << 20
SYSTEM_WORDS = tuple(os.strerror(code) for code in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENOMEM))


class StepLog:
    """What the steps of one node wrote, in a file; and the end of it, for errors."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._tail = b""

    def begin(self, step: Step) -> None:
        self._tail = b""
        self._write(
            f"--- {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime())} UTC, {step.name}: {step.doing}\n".encode()
        )

    def keep(self, piece: bytes) -> None:
        self._tail = (self._tail + piece)[-TAIL_BYTES:]
        self._write(piece)

    @property
    def tail(self) -> str:
        return self._tail.decode(errors="replace")

    @property
    def telling_line(self) -> str:
        """The last one, or the last in which the system says what it lacked: many programs end in other words."""
        lines = [line.strip() for line in self.tail.splitlines() if line.strip()]
        telling = [line for line in lines if any(words in line for words in SYSTEM_WORDS)] or lines
        return telling[-1][:LINE_CHARS] if telling else ""

    def _write(self, piece: bytes) -> None:
        """A disk that is full here holds nobody up."""
        try:
            if not self.path.exists() or self.path.stat().st_size < LOG_LIMIT_BYTES:
                with self.path.open("ab") as file:
                    file.write(piece)
        except OSError:
            return


def prepare(
    connection: Connection,
    *,
    instance: Instance,
    node: NodeConfig,
    luggage: Luggage,
    config: RemoteConfig,
    say: Callable[[Step], None],
    log: StepLog,
) -> None:
    """``node``: where the agent finds the coordinator, as seen from the machine. ``say`` hears of each step.

    Raises StepError; ConnectionLostError, after which it can be begun again on another connection.
    """
    place = Place(cluster_id=node.cluster_id, node_id=node.node_id)
    facts = look(connection, place, config, log)
    if not facts.agent_runs:
        say(BOOT)
        perform(connection, BOOT, place, log)
        facts = look(connection, place, config, log)  # the disk may have grown since
        for step in installing(facts, luggage, config):
            say(step)
            perform(connection, step, place, log)
    for step in starting(facts, place, agent_config(instance, node, config, facts)):
        perform(connection, step, place, log)


def perform(connection: Connection, step: Step, place: Place, log: StepLog) -> None:
    """Raises StepError, ConnectionLostError."""
    log.begin(step)

    def feed(stdin: Stdin) -> None:
        if step.files:
            _pack(step.files, stdin)
        stdin.write(step.text.encode())

    finished = connection.run(
        script_of(step, place),
        timeout_s=step.timeout_s,
        keep=log.keep,
        feed=feed if step.files or step.text else None,
    )
    if finished.exit_code == 0:
        return
    what = f"did not end within {step.timeout_s:.0f} s" if finished.timed_out else f"failed ({finished.exit_code})"
    why = f": {log.telling_line}" if log.telling_line else ""
    advice = LARGER_DISK if os.strerror(errno.ENOSPC) in why else step.advice
    raise StepError(f"{step.doing} {what}{why}", step=step.name, next_step=advice)


def look(connection: Connection, place: Place, config: RemoteConfig, log: StepLog) -> Facts:
    looking = Step(
        name=LOOK,
        doing="looking at the machine",
        script=look_script(unit=place.unit, pythons=config.pythons),
        timeout_s=LOOK_S,
    )
    perform(connection, looking, place, log)
    return parse_facts(log.tail)


def agent_config(instance: Instance, node: NodeConfig, config: RemoteConfig, facts: Facts) -> str:
    shutdown = ("shutdown", "-h", "now")
    return json.dumps(
        asdict(
            AgentConfig(
                cluster_id=node.cluster_id,
                node_id=node.node_id,
                coordinator_address=node.coordinator_address,
                coordinator_port=node.coordinator_port,
                secret=node.secret,
                instance_id=instance.instance_id,
                zone=instance.zone,
                address=instance.address,
                beat_s=node.beat_s,
                metadata_endpoint=config.metadata_endpoint,
                notice_poll_s=config.notice_poll_s,
                orphan_after_s=config.orphan_after_s,
                shutdown_command=config.shutdown_command or (shutdown if facts.is_root else ("sudo", "-n", *shutdown)),
            )
        )
    )


# --- what comes along -------------------------------------------------------------------------------------------


def pack_luggage(config: RemoteConfig) -> Luggage:
    """Takes about a second. Raises StepError."""
    ours, pip = wheel.our_wheel(), wheel.pip_wheel()
    return Luggage(
        wheel=_file(ours), pip=None if pip is None else _file(pip), wheelhouse=_wheelhouse(config.wheelhouse)
    )


def _file(made: wheel.Wheel) -> File:
    return File(name=made.name, content=made.data, fingerprint=made.sha256)


def _wheelhouse(folder: Path | None) -> tuple[File, ...]:
    if folder is None:
        return ()
    wheels = sorted(path for path in folder.glob("*.whl") if path.is_file())
    if not wheels:
        raise StepError(
            f"there is no wheel in {folder}",
            step="files",
            next_step="`pip download --dest FOLDER 'bamboo-train[train]'` fills one, for the machines' Python.",
        )
    return tuple(
        File(name=path.name, content=path, fingerprint=f"{path.stat().st_size} {path.stat().st_mtime_ns}")
        for path in wheels
    )


def _pack(files: tuple[File, ...], stdin: Stdin) -> None:
    with tarfile.open(mode="w|", fileobj=cast(io.RawIOBase, stdin), bufsize=1 << 16) as tar:
        for file in files:
            entry = tarfile.TarInfo(file.name)
            entry.size, entry.mode = file.num_bytes, 0o644
            if isinstance(file.content, bytes):
                tar.addfile(entry, io.BytesIO(file.content))
            else:
                with file.content.open("rb") as source:
                    tar.addfile(entry, source)
