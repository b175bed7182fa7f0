"""A machine as a cloud gives it: a real sshd on an address and a port of its own, with a home of its own."""

import getpass
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bamboo_cli.keys import KeyPair, client_key, host_key
from bamboo_cli.providers.base import Reach
from tests.waiting import wait_until

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
MISSING = "needs an sshd (apt-get install openssh-server)"


@dataclass(slots=True, kw_only=True)
class Machine:
    folder: Path
    address: str = "127.0.0.2"
    port: int = 0
    options: tuple[str, ...] = ()
    """Further lines of sshd_config."""
    wrapped: tuple[str, ...] = ()
    """What sshd is started with, such as ``ip netns exec …``."""
    process: "subprocess.Popen[bytes] | None" = None
    kept: socket.socket | None = None
    """Keeps the port ours until sshd listens there, and when it does not: other tests look for free ports as well."""
    shown: KeyPair = field(init=False)
    """The host key that it has."""
    known: KeyPair = field(init=False)
    """The one key that it lets in, once it is authorised."""

    def __post_init__(self) -> None:
        self.home.mkdir(parents=True)
        (self.folder / "bin").mkdir()
        self.shown = host_key(self.folder, "vm")
        self.known = client_key(self.folder)
        if not self.port:
            self.kept = socket.socket()
            self.kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # sshd, which does so too, may listen
            self.kept.bind((self.address, 0))
            self.port = self.kept.getsockname()[1]

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def reach(self) -> Reach:
        return Reach(address=self.address, port=self.port, user=getpass.getuser(), host_key=self.shown.public)

    def program(self, name: str, text: str) -> None:
        """Put a program where the machine's commands find it first."""
        file = self.folder / "bin" / name
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)

    def authorise(self) -> None:
        """As cloud-init does when it has made the user."""
        (self.folder / "authorized_keys").write_text(self.known.public + "\n")

    def boot(self) -> None:
        """sshd answers when this returns."""
        assert SSHD is not None
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        config = self.folder / "sshd_config"
        lines = (
            f"ListenAddress {self.address}:{self.port}",
            f"HostKey {self.folder}/keys/host-vm",
            f"AuthorizedKeysFile {self.folder}/authorized_keys",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "UsePAM no",
            "StrictModes no",
            "PidFile none",
            "PermitRootLogin prohibit-password",
            f"SetEnv HOME={self.home} PATH={self.folder}/bin:{os.environ['PATH']} PIP_CONFIG_FILE=/dev/null",
            *self.options,
        )
        config.write_text("\n".join(lines) + "\n")
        with (self.folder / "sshd.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self.wrapped, SSHD, "-D", "-e", "-f", str(config)], stdin=subprocess.DEVNULL, stderr=log, stdout=log
            )
        wait_until(self.answers, "sshd to answer")

    def answers(self) -> bool:
        try:
            with socket.create_connection((self.address, self.port), timeout=1) as sock:
                return sock.recv(3) == b"SSH"
        except OSError:
            return False

    def processes(self) -> list[psutil.Process]:
        """sshd, its sessions, and what they run; what went into a session of its own is not among them."""
        if self.process is None:
            return []
        with suppress(psutil.NoSuchProcess):
            main = psutil.Process(self.process.pid)
            return [main, *main.children(recursive=True)]
        return []

    def sessions(self) -> list[psutil.Process]:
        found = []
        for process in self.processes()[1:]:
            with suppress(psutil.NoSuchProcess):
                if process.name().startswith("sshd"):
                    found.append(process)
        return found

    def marked(self, word: str = "") -> list[psutil.Process]:
        """All processes that were started in its home, sessions of their own included; those with that word only."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                words = (process.name(), *process.cmdline(), "")
                if word in words and process.environ().get("HOME") == str(self.home):
                    found.append(process)
        return found

    def agents(self) -> list[psutil.Process]:
        return self.marked("bamboo_agent")

    def end(self) -> None:
        """As a cloud ends a machine."""
        for process in [*self.processes(), *self.marked()]:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()


@contextmanager
def machine(folder: Path, *, booted: bool = True, **facts: object) -> Iterator[Machine]:
    made = Machine(folder=folder, **facts)  # type: ignore[arg-type]
    try:
        if booted:
            made.authorise()
            made.boot()
        yield made
    finally:
        made.end()
        if made.kept is not None:
            made.kept.close()
