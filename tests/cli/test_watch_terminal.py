"""``bamboo status --watch`` on a real terminal, which changes its size meanwhile."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli import scenes

PATIENCE_S = 30.0


class Terminal:
    """A command on a terminal of its own, and all that it has written."""

    def __init__(self, home: Path, *arguments: str, columns: int, rows: int) -> None:
        self._ours, theirs = pty.openpty()
        self.resize(columns, rows)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bamboo_cli.main", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={"BAMBOO_HOME": str(home), "PATH": "/usr/bin:/bin", "TERM": "xterm-256color", "LANG": "C.UTF-8"},
            # tests that are run in the background of a shell ignore Ctrl-C, and so would their children
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        os.close(theirs)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def until(self, words: str) -> str:
        """What was written up to and with these words, since the last call."""
        deadline, raw = time.monotonic() + PATIENCE_S, b""
        while words not in raw.decode(errors="replace"):
            ready, _, _ = select.select([self._ours], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{words!r} never came; last: {raw[-2000:]!r}"
            raw += os.read(self._ours, 65_536)
        return raw.decode(errors="replace")

    def rest(self) -> str:
        raw = b""
        while True:
            try:
                chunk = os.read(self._ours, 65_536)
            except OSError:  # nobody has it open any more
                return raw.decode(errors="replace")
            raw += chunk

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    scenes.storm(tmp_path)
    terminal = Terminal(tmp_path, "status", "--watch", columns=100, rows=30)
    yield terminal
    terminal.close()


def test_it_has_a_screen_of_its_own_follows_the_size_and_leaves_the_last_picture(terminal: Terminal) -> None:
    begin = terminal.until("Ctrl-C ends this view")
    assert "\x1b[?1049h" in begin and "cluster storm (" in begin

    terminal.resize(40, 12)
    narrow = terminal.until("storm: up")
    terminal.process.send_signal(signal.SIGINT)
    end = narrow + terminal.rest()

    assert terminal.process.wait(PATIENCE_S) == 130
    assert "Traceback" not in end
    _, _, left = end.rpartition("\x1b[?1049l")
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", left).replace("\r", "").splitlines()
    assert any(line.startswith("running 801/1200") for line in shown)
    assert max(map(len, shown)) <= 40
