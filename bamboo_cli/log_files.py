"""The logs of a cluster on this machine, the coordinator's and those of each node: read, searched, followed."""

import heapq
import io
import os
import re
import time
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bamboo_cli import paths
from bamboo_cli.errors import UsageError

POLL_S = 0.3
NEW_FILES_S = 1.5
"""How often new nodes and workers are looked for."""
NODE_LOGS = ("agent.log", "worker.log", "worker-*.log")
"""The last: of further accelerators."""
OLD = ".1"
"""Behind the name of a log that was set aside since it was long."""
MOMENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[,.]\d+")
"""At the beginning of a line; one without it belongs to the line before, like a traceback."""

ESCAPE = "\x1b"
TO_TERMINALS = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-~])")
"""Escape sequences: colours, titles of windows, cursors that move."""
UNSEEN = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    source: str
    """``coordinator``, ``n3 agent``, ``n3 worker``, ``n3 worker-1``, ``n3 setup``."""
    path: Path


def log_files(instances: Mapping[str, str | None], cluster_dir: Path, nodes: Collection[str]) -> tuple[LogFile, ...]:
    """Those that exist; of ``nodes``, or of all and the coordinator. ``instances``: ids by node, None where there is
    none yet. Raises UsageError for an unknown node."""
    if unknown := [node for node in nodes if node not in instances]:
        raise UsageError(
            f"there is no node {', '.join(unknown)}", next_step=f"There were: {', '.join(instances) or 'none'}."
        )
    found = [] if nodes else [LogFile(source="coordinator", path=cluster_dir / "coordinator.log")]
    for node_id, instance_id in instances.items():
        if nodes and node_id not in nodes:
            continue
        found.append(LogFile(source=f"{node_id} setup", path=cluster_dir / paths.NODES / f"{node_id}.log"))
        folders = [cluster_dir / paths.NODES / node_id]  # copied there by the coordinator
        if instance_id:
            folders.append(paths.local_cloud_dir() / "instances" / instance_id)
        there = [path for folder in folders for pattern in NODE_LOGS for path in sorted(folder.glob(pattern))]
        found += [LogFile(source=f"{node_id} {path.stem}", path=path) for path in there]
    return tuple(file for file in found if file.path.exists())


def search(text: str) -> re.Pattern[str]:
    """A regular expression; small letters also find capital ones. Raises UsageError."""
    has_capitals = any(letter.isupper() for letter in re.sub(r"\\.", "", text))  # \S is none
    try:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):  # what "[[" may mean one day
            return re.compile(text, 0 if has_capitals else re.IGNORECASE)
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(
            f"{text!r} is no regular expression: {error}",
            next_step=f"To look for just these signs: {re.escape(text)!r}.",
        ) from error


def last_lines(
    files: Sequence[LogFile], count: int, wanted: re.Pattern[str] | None = None
) -> Iterator[tuple[str, str]]:
    """The last ``count`` of each file (that have what is ``wanted``), as (source, line), in the order of time."""
    tails = [_tail(file, count, wanted) for file in files]
    for _, _, source, line in heapq.merge(*tails):
        yield source, line


def _tail(file: LogFile, count: int, wanted: re.Pattern[str] | None) -> list[tuple[str, int, str, str]]:
    """With what orders them: the moment of the line, or of the last one before it that has one."""
    kept = _last((file.path,), count, wanted)
    old = _old(file.path)
    if len(kept) < count and old.exists():
        kept = _last((old, file.path), count, wanted)
    return [(moment, number, file.source, line) for number, (moment, line) in enumerate(kept)]


def _last(paths: Sequence[Path], count: int, wanted: re.Pattern[str] | None) -> list[tuple[str, str]]:
    kept: deque[tuple[str, str]] = deque(maxlen=count)
    moment = ""
    for path in paths:
        # a node that is given back may take its files with it
        with suppress(FileNotFoundError), path.open(encoding="utf-8", errors="replace") as stream:
            for line in stream:
                if found := MOMENT.match(line):
                    moment = found[0]
                if wanted is None or wanted.search(line if ESCAPE not in line else _bare(line)):
                    kept.append((moment, line))
    return [(moment, _bare(line)) for moment, line in kept]


def _old(path: Path) -> Path:
    return path.with_name(path.name + OLD)


def follow(
    files: Callable[[], Sequence[LogFile]], say: Callable[[str, str], None], wanted: re.Pattern[str] | None = None
) -> None:
    """Call ``say(source, line)`` for every new line until interrupted; new files are read from their beginning, as is
    one that was begun anew, after the end of the one that it replaces."""
    known = files()
    looked_at, read = time.monotonic(), dict[Path, tuple[int, int]]()
    for file in known:
        with suppress(FileNotFoundError):
            read[file.path] = _end_of(file.path)
    while True:
        if time.monotonic() - looked_at > NEW_FILES_S:
            known, looked_at = files(), time.monotonic()
        for file in known:
            for line in _new_lines(file.path, read):
                if wanted is None or wanted.search(line):
                    say(file.source, line)
        time.sleep(POLL_S)


def _end_of(path: Path) -> tuple[int, int]:
    """Which file it is, and how long."""
    status = path.stat()
    return status.st_ino, status.st_size


def _new_lines(path: Path, read: dict[Path, tuple[int, int]]) -> list[str]:
    """Whole ones only; a node that is given back may take its files with it, and a long one is set aside."""
    known = read.get(path)
    lines: list[str] = []
    try:
        if _end_of(path) == known:
            return []
        with path.open("rb") as stream:
            status = os.fstat(stream.fileno())
            file_id, size = status.st_ino, status.st_size
            if known is not None and file_id != known[0]:
                lines = _rest_of_old(_old(path), *known)
            begin = known[1] if known is not None and known[0] == file_id and known[1] <= size else 0
            stream.seek(begin)
            whole, newline, _ = stream.read().rpartition(b"\n")
    except FileNotFoundError:
        return []
    read[path] = file_id, begin + len(whole + newline)
    return lines + _texts(whole + newline)


def _rest_of_old(path: Path, file_id: int, begin: int) -> list[str]:
    """Of the file that was read so far, if this is it. Nothing more will be written to it."""
    with suppress(FileNotFoundError), path.open("rb") as stream:
        if os.fstat(stream.fileno()).st_ino == file_id:
            stream.seek(begin)
            return _texts(stream.read())
    return []


def _texts(lines: bytes) -> list[str]:
    """As a file that is opened for reading has them: other signs than line ends end no line."""
    return list(map(_bare, io.TextIOWrapper(io.BytesIO(lines), encoding="utf-8", errors="replace")))


def _bare(line: str) -> str:
    """As a terminal takes it: without its end, colours and whatever else is said to terminals."""
    return UNSEEN.sub("\N{REPLACEMENT CHARACTER}", TO_TERMINALS.sub("", line.rstrip("\n")))
