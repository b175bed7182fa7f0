"""One node's logs as they are kept here: each byte once, through kills, full disks and files that are set aside.

The length of a file here tells how far it is; ``positions.json`` tells from where in which file there it was begun.
"""

import json
import logging
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from bamboo_agent.log_sender import NAME, OLD, PIECE_BYTES, Piece, Place
from pydantic import TypeAdapter

LIMIT_BYTES = 4 << 20
"""Of a file here, before it is set aside; one old one is kept."""
POSITIONS = "positions.json"
LONGEST_HEADER = 256

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """From its byte ``here_begin`` on, the file here is the file there from its byte ``begin`` on."""

    file_id: int
    begin: int
    here_id: int
    here_begin: int

    def at(self, here_bytes: int) -> Place:
        """Up to where of the file there it goes, when it is so long."""
        return Place(self.file_id, self.begin + max(0, here_bytes - self.here_begin))


_ORIGINS: TypeAdapter[dict[str, Origin]] = TypeAdapter(dict[str, Origin])


class Mirror:
    """One thread at a time."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError."""
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._origins = self._read()

    def known(self) -> dict[str, Place]:
        """By log, what is here of it. Raises OSError."""
        found = {}
        for name, origin in self._origins.items():
            for path in (self._folder / name, self._folder / (name + OLD)):
                status = _status(path)
                if status is not None and status.st_ino == origin.here_id:
                    found[name] = origin.at(status.st_size)
        return found

    def keep(self, piece: Piece, data: bytes) -> None:
        """Raises OSError; then what is here is still a beginning of what was to be kept."""
        path = self._folder / piece.name
        status = _status(path)
        if status is not None and status.st_size >= LIMIT_BYTES:
            end = data.find(b"\n") + 1
            if end or status.st_size >= 2 * LIMIT_BYTES:
                self._append(path, piece, data[:end])
                path.replace(path.with_name(path.name + OLD))
                piece, data = piece._replace(begin=piece.begin + end), data[end:]
        self._append(path, piece, data)

    def _append(self, path: Path, piece: Piece, data: bytes) -> None:
        if not data:
            return
        known = self.known().get(piece.name)
        with path.open("ab", buffering=0) as file:
            status = os.fstat(file.fileno())
            origin = self._origins.get(piece.name)
            is_more = origin is not None and origin.here_id == status.st_ino
            if not is_more or known != Place(piece.file_id, piece.begin):
                note = _left_out(known, piece)
                self._origins[piece.name] = Origin(
                    file_id=piece.file_id,
                    begin=piece.begin,
                    here_id=status.st_ino,
                    here_begin=status.st_size + len(note),
                )
                self._write_origins()
                _write(file.fileno(), note)
            _write(file.fileno(), data)

    def _read(self) -> dict[str, Origin]:
        try:
            return _ORIGINS.validate_json((self._folder / POSITIONS).read_bytes())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            log.warning("%s is of no use, all logs there are copied again: %s", self._folder / POSITIONS, error)
            return {}

    def _write_origins(self) -> None:
        new = self._folder / f"{POSITIONS}.new"
        new.write_text(json.dumps({name: asdict(origin) for name, origin in self._origins.items()}))
        new.replace(self._folder / POSITIONS)


class Pieces:
    """Takes apart what the sender writes, however it is cut up on its way. It trusts nothing in it."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def of(self, data: bytes) -> Iterator[tuple[Piece, bytes]]:
        """Those that are complete now. Raises ValueError."""
        self._rest += data
        while (end := self._rest.find(b"\n", 0, LONGEST_HEADER)) >= 0:
            piece = _piece(bytes(self._rest[:end]))
            begin = end + 1
            if len(self._rest) < begin + piece.num_bytes:
                return
            content = bytes(self._rest[begin : begin + piece.num_bytes])
            del self._rest[: begin + piece.num_bytes]
            yield piece, content
        if len(self._rest) >= LONGEST_HEADER:
            raise ValueError(f"no piece of a log begins like this: {bytes(self._rest[:40])!r}")


def _piece(header: bytes) -> Piece:
    match json.loads(header):
        case [str(name), int(file_id), int(begin), int(num_bytes)]:
            if NAME.fullmatch(name) and min(file_id, begin, num_bytes) >= 0 and num_bytes <= PIECE_BYTES:
                return Piece(name, file_id, begin, num_bytes)
    raise ValueError(f"no piece of a log begins like this: {header[:40]!r}")


def _left_out(known: Place | None, piece: Piece) -> bytes:
    """A line where there is a hole, else nothing."""
    done = known.num_bytes if known is not None and known.file_id == piece.file_id else 0
    if piece.begin <= done:
        return b""
    return f"\n--- {piece.begin - done} bytes of {piece.name} were left out here: more than could be copied\n".encode()


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _write(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]
