"""Machines behind instances: namespaces with a root file system over this machine's, a real sshd, real metadata."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.aws.firewall import Gate, ruleset
from tests.aws.machine import Boot, Machine, Stopped
from tests.aws.metadata import ADDRESS, MetadataServer
from tests.aws.vm import held, init, namespaces
from tests.aws.vm.cloud_config import Seed, seed_of
from tests.aws.vm.held import HeldStep

ROOT = Path(__file__).parents[3]
ORDER = ("host keys", "authorized keys", "sshd", "commands")
DISK_BYTES = 2 << 30
SPACES = "--pid --fork --kill-child --mount --uts --ipc"


@dataclass(slots=True, kw_only=True)
class VirtualMachine:
    boot: Boot
    name: str
    wire: str
    log: Path
    _process: "subprocess.Popen[bytes]"
    _metadata: MetadataServer
    _was_killed: bool = False

    def kill(self) -> None:
        if self._was_killed:
            return
        self._was_killed = True
        self._process.kill()  # the kernel kills all of its PID namespace, which has lost its first process
        self._process.wait()
        self._metadata.close()
        namespaces.remove(self.name)

    def stopped(self) -> Stopped | None:
        code = self._process.poll()
        if code is None or self._was_killed:
            return None
        return Stopped.SHUT_DOWN if code == 0 else Stopped.BROKE

    def cut(self) -> None:
        namespaces.cut(self.wire)

    def freeze(self) -> None:
        """It hangs: its kernel still takes connections, nobody in it answers."""
        for pid in self._pids():
            with contextlib.suppress(ProcessLookupError):  # it has ended since it was listed
                os.kill(pid, signal.SIGSTOP)

    def run(self, command: str) -> str:
        """As root on the machine, past SSH; its standard output. Raises CalledProcessError."""
        pid = self._init()
        entered = ["nsenter", "--target", str(pid), "--mount", "--uts", "--ipc", "--net", "--pid", "--root", "--wd=/"]
        return subprocess.run(
            [*entered, "/bin/sh", "-c", command],
            check=True,
            text=True,
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        ).stdout

    def _init(self) -> int:
        """Its PID 1, as we number it."""
        return int(Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()[0])

    def _pids(self) -> list[int]:
        space = os.readlink(f"/proc/{self._init()}/ns/pid")
        found = []
        for folder in Path("/proc").iterdir():
            try:
                if folder.name.isdigit() and os.readlink(folder / "ns/pid") == space:
                    found.append(int(folder.name))
            except OSError:
                continue
        return found


@dataclass(slots=True, kw_only=True)
class Rack:
    """All machines of a test run. ``folder``: for their logs."""

    folder: Path
    order: Sequence[str] = ORDER
    """What the next machines do when they boot. What is left out never happens; there are also ``break`` (fail there),
    ``foreign host key``, ``mute`` (in place of sshd), ``dpkg lock``, ``wait`` (until it is let go: ``hold``)."""
    disk_bytes: int = DISK_BYTES
    programs: Mapping[str, str] = field(default_factory=dict)
    """Scripts on the next machines by path, in place of what is there."""
    machines: list[VirtualMachine] = field(default_factory=list)
    _held: list[HeldStep] = field(default_factory=list)
    _num_made: int = 0

    def open(self) -> None:
        namespaces.make_bridge()

    def boot(self, boot: Boot) -> Machine:
        self._num_made += 1
        name, wire = f"vm{self._num_made}", f"wire{self._num_made}"
        folder = self.folder / name
        folder.mkdir()
        namespaces.make(name, wire, [a for a in (boot.private_address, boot.public_address) if a])
        metadata = MetadataServer(boot.metadata, namespaces.listen_in(name, ADDRESS, namespaces.METADATA_PORT))
        told = self.folder / f"{name}.json"
        told.write_text(json.dumps(self._told(boot, folder)))
        log = self.folder / f"{name}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [
                    *f"ip netns exec {name} unshare {SPACES}".split(),
                    _base_python(),
                    "-I",
                    "-S",
                    init.__file__,
                    str(told),
                ],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"},
            )
        machine = VirtualMachine(boot=boot, name=name, wire=wire, log=log, _process=process, _metadata=metadata)
        self.machines.append(machine)
        return machine

    def admit(self, region: str, gates: Sequence[Gate]) -> None:
        namespaces.filter_bridge(ruleset(region.replace("-", "_"), gates))

    def hold(self, step: str, *, after: bool = False) -> HeldStep:
        """All machines wait there; see ``held.py``."""
        self._held.append(held.hold(step, after=after))
        return self._held[-1]

    def close(self) -> None:
        for one in self._held:
            one.lift()
        self._held.clear()
        held.clear()
        for machine in self.machines:
            machine.kill()
        self.machines.clear()
        self.order, self.disk_bytes, self.programs = ORDER, DISK_BYTES, {}

    def dispose(self) -> None:
        self.close()
        namespaces.remove_bridge()

    def _told(self, boot: Boot, folder: Path) -> dict[str, object]:
        seed: Seed = seed_of(boot.user_data, boot.public_key)
        return dataclasses.asdict(seed) | {
            "name": f"ip-{boot.private_address.replace('.', '-')}",
            "folder": str(folder),
            "disk_bytes": self.disk_bytes,
            "order": list(self.order),
            "shown": _shown(),
            "packages": sysconfig.get_path("purelib"),
            "programs": {"/usr/local/bin/timeout": held.TIMEOUT, **self.programs},
            "held": held.WAIT,
        }


def _shown() -> list[str]:
    """Where this Python, its packages and this repository lie, unless the root file system has them."""
    places = {Path(sys.base_prefix), Path(sys.prefix), ROOT}
    outer = [p for p in places if not any(other != p and other in p.parents for other in places)]
    return [str(p) for p in outer if p.parts[1] in ("tmp", "run") or p.stat().st_dev != Path("/").stat().st_dev]


def _base_python() -> str:
    return str(Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}")
