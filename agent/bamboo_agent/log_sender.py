"""Sends what is new in a node's logs, until nobody listens any more. docs/remote.md, "Logs".

The coordinator sends this very text and has the node's Python run it in the node's folder: so it fits the coordinator,
whatever is installed there, and imports nothing of ours. Its argument is how many seconds lie between two sendings. It
is told on one line where to go on, and writes pieces, each behind a line that says what it is.
"""

import json
import os
import re
import select
import sys
from collections.abc import Mapping
from typing import NamedTuple

NAME = re.compile(r"(agent|worker(-\d{1,3})?)\.log")
OLD = ".1"
"""Behind the name of a log that was set aside."""
LOOK_S = 0.2
PIECE_BYTES = 32 << 10
ROUND_BYTES = 256 << 10
"""At a time, of all files together: what goes this way shares it with the agent's link."""
LAG_BYTES = 4 << 20
"""What lags further behind than this is not caught up with."""
KEPT_BYTES = 1 << 20
"""Then only the last so many are sent."""


class Place(NamedTuple):
    """In a file that may be renamed: its inode, and a number of bytes."""

    file_id: int
    num_bytes: int


class Piece(NamedTuple):
    name: str
    """Of the log, whether it has been set aside meanwhile or not."""
    file_id: int
    begin: int
    num_bytes: int


def missing(known: Mapping[str, Place], there: Mapping[str, Place]) -> list[tuple[str, Piece]]:
    """What was not sent yet, at most one piece for each log, with the file that it is in.

    ``known``: by log, up to where it was sent; ``there``: by file, how long it is, old ones included.
    """
    found = []
    for name, (file_id, size) in sorted(there.items()):
        if not NAME.fullmatch(name):
            continue
        old = there.get(name + OLD)
        at = known.get(name) or Place(old.file_id if old else file_id, 0)
        if old and at.file_id == old.file_id != file_id and at.num_bytes < old.num_bytes:
            found.append((name + OLD, _rest(name, at, old.num_bytes)))
            continue
        if at.file_id != file_id or at.num_bytes > size:  # another file, or this one was cut
            at = Place(file_id, 0)
        if at.num_bytes < size:
            found.append((name, _rest(name, at, size)))
    return found


def _rest(name: str, at: Place, size: int) -> Piece:
    begin = at.num_bytes if size - at.num_bytes <= LAG_BYTES else size - KEPT_BYTES
    return Piece(name, at.file_id, begin, size - begin)


def files_here() -> dict[str, Place]:
    found = {}
    with os.scandir(".") as entries:
        for entry in entries:
            if NAME.fullmatch(entry.name.removesuffix(OLD)):
                try:
                    status = os.stat(entry.name)
                except FileNotFoundError:
                    continue
                found[entry.name] = Place(status.st_ino, status.st_size)
    return found


def send_new(known: dict[str, Place], sink: int) -> bool:
    """One round; whether there was anything. ``known`` is brought up to date. Raises BrokenPipeError."""
    wanted = missing(known, files_here())
    for file, rest in wanted:
        left = ROUND_BYTES // len(wanted)
        try:
            with open(file, "rb", buffering=0) as source:
                if os.fstat(source.fileno()).st_ino != rest.file_id:  # set aside since we looked
                    continue
                source.seek(rest.begin)
                end = rest.begin + min(rest.num_bytes, left)
                while piece := source.read(min(PIECE_BYTES, end - source.tell())):
                    begin = source.tell() - len(piece)
                    header = json.dumps(Piece(rest.name, rest.file_id, begin, len(piece)))
                    _write(sink, header.encode() + b"\n" + piece)
                    known[rest.name] = Place(rest.file_id, begin + len(piece))
        except FileNotFoundError:
            continue
    return bool(wanted)


def _write(sink: int, data: bytes) -> None:
    while data:
        data = data[os.write(sink, data) :]


def main() -> None:
    os.nice(10)  # what trains comes first
    pace_s = float(sys.argv[1])
    source, sink = sys.stdin.fileno(), sys.stdout.fileno()
    known = {name: Place(*at) for name, at in json.loads(sys.stdin.readline()).items()}
    try:
        has_ended = False
        while not has_ended:
            has_sent = send_new(known, sink)
            has_ended = bool(select.select([source], [], [], pace_s if has_sent else LOOK_S)[0])
        send_new(known, sink)
    except BrokenPipeError:
        pass


if __name__ == "__main__":
    main()
