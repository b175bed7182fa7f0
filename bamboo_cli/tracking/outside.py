"""A tracker whose package is large and talks to a network: in a process of its own, told by lines of JSON."""

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bamboo_cli.coordinator.settings import TrackerWish
from bamboo_cli.tracking.points import Curve, Note, Point, TrackerError
from bamboo_cli.tracking.position import FOLDER

ANSWER_S = 180.0
"""For a package to load and a server to answer."""
END_S = 5.0
PIECE_BYTES = 1 << 16
NOT_INHERITED = "BAMBOO_CLUSTER"
"""What carries it is ended by ``bamboo down``; a tracker may still have something to send then."""


class Outside:
    """Steps that are run again are not told again: they have the same bits."""

    rewinds = False

    def __init__(self, wish: TrackerWish, cluster_dir: Path) -> None:
        self._wish, self._folder = wish, cluster_dir / FOLDER
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self, curve: Curve) -> int:
        self.close()
        self._folder.mkdir(exist_ok=True)
        with (self._folder / f"{self._wish.kind}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"bamboo_cli.tracking.{self._wish.kind}_process"],
                cwd=self._folder,
                env={name: value for name, value in os.environ.items() if name != NOT_INHERITED},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                start_new_session=True,  # Ctrl-C is for whoever it was meant for
            )
        options = {**self._wish.options, "folder": str(self._folder)}
        return int(self._ask({"do": "begin", "curve": asdict(curve), "options": options})["next_step"])

    def tell(self, points: tuple[Point, ...], notes: tuple[Note, ...], rewind_to: int | None) -> None:
        self._ask({"do": "tell", "points": [asdict(p) for p in points], "notes": [asdict(n) for n in notes]})

    def end(self, state: str) -> None:
        self._ask({"do": "end", "state": state})
        self.close()

    def close(self) -> None:
        """It ends by itself when nobody speaks to it any more, once it has sent what it has."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None
        with suppress(OSError):
            process.stdin.close()
        process.stdout.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S)

    def _ask(self, what: Mapping[str, Any]) -> Mapping[str, Any]:
        """Raises TrackerError."""
        process = self._process
        assert process is not None and process.stdin is not None
        log = f"its log is {self._folder / self._wish.kind}.log"
        try:
            is_sent = _send(process.stdin.fileno(), json.dumps(what).encode() + b"\n")
            answer = self._answer(process) if is_sent else None
        except OSError as error:
            raise TrackerError(f"its process ended; {log}") from error
        if answer is None:
            process.kill()
            raise TrackerError(f"it did not answer within {ANSWER_S:.0f} s; {log}")
        if not answer:
            raise TrackerError(f"its process ended; {log}")
        found: dict[str, Any] = json.loads(answer)
        if "error" in found:
            raise TrackerError(f"{found['error']}; {log}")
        return found

    def _answer(self, process: "subprocess.Popen[bytes]") -> bytes | None:
        """None: it took too long. Empty: it has ended."""
        assert process.stdout is not None
        heard = b""
        while not heard.endswith(b"\n"):
            if not select.select([process.stdout], [], [], ANSWER_S)[0]:
                return None
            piece = os.read(process.stdout.fileno(), PIECE_BYTES)
            if not piece:
                return b""
            heard += piece
        return heard


def _send(pipe: int, line: bytes) -> bool:
    """False: nobody reads it."""
    view = memoryview(line)
    while view:
        if not select.select([], [pipe], [], ANSWER_S)[1]:
            return False
        view = view[os.write(pipe, view[: select.PIPE_BUF]) :]  # so much it takes without waiting
    return True
