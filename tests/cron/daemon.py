"""Debian's cron, for real, where it can touch no crontab of this machine: in mount and process namespaces of its own.

Its clock is set (libfaketime), so that nobody waits for two o'clock at night, nor for a minute to be full; what it
starts has the real time, since cron gives its commands an environment of their own. Its mails are files.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import psutil

from tests.cluster import Outcome
from tests.waiting import wait_until

NEEDED = {"cron": "cron", "crontab": "cron", "faketime": "faketime", "unshare": "util-linux", "nsenter": "util-linux"}
SPACES = ("--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
SETUP = """set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/spool/cron
mount -t tmpfs tmpfs /dev/shm  # libfaketime has names there, by process id
mkdir -m 1730 /var/spool/cron/crontabs
chgrp crontab /var/spool/cron/crontabs
mount -t tmpfs tmpfs /etc/cron.d
mount --bind /dev/null /etc/crontab
mkdir /run/upper /run/work
mount -t overlay overlay -o lowerdir=/usr/sbin,upperdir=/run/upper,workdir=/run/work /usr/sbin
cat > /usr/sbin/sendmail <<END
#!/bin/sh
cat > "$1/\\$\\$.new" && mv "$1/\\$\\$.new" "$1/\\$\\$.mail"
END
chmod 755 /usr/sbin/sendmail
echo ready
read -r _  # until the test ends; this shell is PID 1, and takes in what loses its parent
"""
TOOLS = "/usr/sbin:/usr/bin:/sbin:/bin"


def missing() -> str | None:
    """Why there can be no cron here; None: there can."""
    if os.geteuid() != 0:
        return "a cron of its own needs root (namespaces, mounts)"
    packages = sorted({package for tool, package in NEEDED.items() if shutil.which(tool, path=TOOLS) is None})
    if packages:
        return f"a cron of its own needs {', '.join(packages)} (apt-get install {' '.join(packages)})"
    tried = subprocess.run(["unshare", *SPACES, "true"], check=False, capture_output=True, text=True)
    return f"a cron of its own needs namespaces: {tried.stderr.strip()}" if tried.returncode else None


@dataclass(frozen=True)
class Cron:
    python: Path
    home: Path
    mails: Path
    pid: int
    """Of the namespaces' first process."""

    def bamboo(self, *arguments: str | Path) -> Outcome:
        """A command beside this cron, from a shell with an ordinary environment."""
        shell = {"BAMBOO_HOME": str(self.home), "PATH": os.environ["PATH"], "HOME": str(Path.home())}
        done = self._run(str(self.python), "-m", "bamboo_cli.main", *map(str, arguments), environment=shell)
        return Outcome(exit_code=done.returncode, stdout=done.stdout, stderr=done.stderr)

    def crontab(self) -> str:
        return self._run("crontab", "-l", environment={"PATH": TOOLS}).stdout

    @contextmanager
    def started(self, at: str) -> Iterator[None]:
        """The daemon, whose clock says ``at`` when it starts."""
        command = ["faketime", "-f", f"@{at}", "cron", "-f"]
        with subprocess.Popen([*self._beside(), *command], env={"PATH": TOOLS, "TZ": "UTC"}) as daemon:
            try:
                yield
            finally:
                _end_cron(daemon.pid)

    def mail(self, number: int) -> Message:
        """Waits for it; the first is 0."""
        wait_until(lambda: len(self._mails()) > number, lambda: f"mail {number} of cron")
        return message_from_bytes(self._mails()[number].read_bytes())

    def processes(self) -> list[str]:
        """Of Bamboo, in these namespaces."""
        return [" ".join(p.cmdline()) for p in psutil.Process(self.pid).children(recursive=True) if self._is_ours(p)]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return any("bamboo" in word for word in process.cmdline()[:3])
        except psutil.NoSuchProcess:
            return False

    def _mails(self) -> list[Path]:
        return sorted(self.mails.glob("*.mail"), key=lambda path: path.stat().st_mtime_ns)

    def _run(self, *command: str, environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*self._beside(), *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def _beside(self) -> tuple[str, ...]:
        return ("nsenter", "--target", str(self.pid), "--mount", "--pid", "--")


@contextmanager
def cron_of_its_own(folder: Path) -> Iterator[Cron]:
    """Bamboo's home and its Python are in ``folder``. Everything that was started ends with it."""
    mails = folder.parent / "mails"
    mails.mkdir()
    command = ["unshare", *SPACES, "bash", "-c", SETUP, "cron", str(mails)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            (first,) = psutil.Process(process.pid).children()
            yield Cron(python=_python_in(folder), home=folder / "home", mails=mails, pid=first.pid)
        finally:
            process.kill()


def _end_cron(outside: int) -> None:
    """nsenter waits for faketime, which waits for cron."""
    for process in psutil.Process(outside).children(recursive=True):
        if process.name() == "cron":
            process.terminate()
            return


def _python_in(folder: Path) -> Path:
    """A virtual environment with what this one has."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    (packages,) = (folder / "venv" / "lib").glob("*/site-packages")
    ours = next(path for path in sys.path if path.endswith("site-packages"))
    (packages / "ours.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    return folder / "venv" / "bin" / "python"
