"""One node's thread that copies what is new in its logs to here, over whatever connection there is. docs/remote.md."""

import json
import logging
import queue
import shlex
import threading
from importlib import resources
from pathlib import Path

from bamboo_cli.errors import ConnectionLostError
from bamboo_cli.remote.connection import Connection, Talk
from bamboo_cli.remote.log_mirror import Mirror, Pieces
from bamboo_cli.remote.steps import PYTHON, Place

PAUSE_S = 15.0
"""After something went wrong that is not the connection."""
PACE_S = 1.0
"""From one sending of a node to its next: many small ones would cost the coordinator more than what is in them."""

log = logging.getLogger(__name__)


class LogCopy:
    """Whatever happens to it, nothing else notices. All connections of a node have one thread: nothing comes twice."""

    def __init__(self, place: Place, folder: Path) -> None:
        self._place = place
        self._folder = folder
        self._connections: queue.SimpleQueue[Connection | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._talk: Talk | None = None
        self._told = ""
        self._thread: threading.Thread | None = None

    def use(self, connection: Connection) -> None:
        """From now on; the one before has ended, or is about to."""
        self._connections.put(connection)
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=f"logs of {self._place.node_id}", daemon=True)
            thread.start()
            self._thread = thread  # not before it runs: ``finish`` may come from another thread, and waits for it

    def finish(self, within_s: float) -> None:
        """What is new yet, if it comes in that time; then no more."""
        self._stop.set()
        self._connections.put(None)
        talk = self._talk
        if talk is not None:
            talk.finish()
        if self._thread is not None:
            self._thread.join(within_s)

    def _run(self) -> None:
        while (connection := self._connections.get()) is not None:
            while connection.is_open and not self._stop.is_set():
                try:
                    self._copy(connection)
                except (ConnectionLostError, OSError, ValueError) as error:
                    if connection.is_open:
                        self._complain(str(error))
                if not self._stop.is_set():
                    connection.wait_for_its_end(PAUSE_S)

    def _copy(self, connection: Connection) -> None:
        """Until the sender ends. Raises ConnectionLostError, ValueError; OSError: of files here."""
        mirror, pieces = Mirror(self._folder), Pieces()
        with connection.talk(_command(self._place)) as talk:
            self._talk = talk
            talk.say(json.dumps(mirror.known()).encode() + b"\n")
            if self._stop.is_set():
                talk.finish()
            while data := talk.hear():
                for piece, content in pieces.of(data):
                    mirror.keep(piece, content)
                    self._told = ""
            if not self._stop.is_set() and talk.exit_code() is not None:
                self._complain(f"the sender there ended ({talk.last_words() or 'without a word'})")

    def _complain(self, what: str) -> None:
        """Once, until it has gone well again."""
        if what != self._told:
            log.warning("the logs of %s cannot be copied, trying again: %s", self._place.node_id, what)
        self._told = what


def _command(place: Place) -> str:
    source = resources.files("bamboo_agent").joinpath("log_sender.py").read_text(encoding="utf-8")
    return f'cd "$HOME"/{shlex.quote(place.folder)} && exec {PYTHON} -I -S -c {shlex.quote(source)} {PACE_S}'
