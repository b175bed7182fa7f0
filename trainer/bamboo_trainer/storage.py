"""Files on any fsspec URL (``file://``, ``s3://``, ``memory://``, or a plain path), written whole or not at all.

On a local disk a file is written beside its place, fsynced and renamed, so a full disk or a kill leaves the old file
(or none). Object stores show an object only when its upload is complete, so there the plain upload is enough.
"""

import fcntl
import glob
import importlib.util
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from fsspec.core import split_protocol, url_to_fs
from fsspec.implementations.local import LocalFileSystem
from fsspec.registry import known_implementations

LOCAL_SCHEMES = ("file", "local")


class StorageError(OSError):
    """What an object store raised, or that its package is missing."""


@contextmanager
def _translated() -> Iterator[None]:
    """Each store has errors of its own; beyond this file there is only OSError."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise StorageError(f"{type(error).__name__}: {error}") from error


class Buffer(Protocol):
    """Bytes-like: ``bytes``, ``bytearray`` or ``memoryview``."""

    def __buffer__(self, flags: int, /) -> memoryview: ...


def missing_package(url: str) -> str | None:
    """That has to be installed before the store of ``url`` can be used at all."""
    package = package_of(url)
    return None if importlib.util.find_spec(package) is not None else package


def package_of(url: str) -> str:
    """Which reads and writes the store of ``url``: ``s3fs``, say; ``fsspec`` itself for what needs no other."""
    entry = known_implementations.get(split_protocol(url)[0] or "file")
    return str(entry["class"]).partition(".")[0] if entry is not None else "fsspec"


def meant_url(path: str) -> str | None:
    """``s3://bucket/x`` for ``s3:/bucket/x``, which would be a folder; None: it is a path, or a URL as it should be."""
    scheme, _, rest = path.partition(":")
    if scheme not in known_implementations or not rest.startswith("/") or rest.startswith("//"):
        return None
    return f"{scheme}://{rest if scheme in LOCAL_SCHEMES else rest.lstrip('/')}"


@_translated()
def is_local(url: str) -> bool:
    """On this machine's own disk. Raises OSError when there is no such kind of store."""
    return isinstance(url_to_fs(url)[0], LocalFileSystem)


def try_out(url: str) -> None:
    """Write, read and remove a small file below ``url``; no trace is left. Raises OSError when that cannot be done."""
    made = _missing_folders(Path(url_to_fs(url)[1])) if is_local(url) else []
    file, data = join(url, f".bamboo-{secrets.token_hex(8)}"), b"can this be read again?"
    try:
        write_durably(file, [data])
        if read(file) != data:
            raise StorageError("a file that was written could not be read again")
        remove(file)
    finally:
        for folder in made:
            with suppress(OSError):
                folder.rmdir()


def _missing_folders(folder: Path) -> list[Path]:
    """Innermost first."""
    return [path for path in (folder, *folder.parents) if not path.exists()]


def join(url: str, *names: str) -> str:
    return "/".join([url.rstrip("/"), *names])


def write_durably(url: str, pieces: Iterable[Buffer]) -> None:
    """Make the file appear with all its ``pieces``, durable when this returns. Raises OSError; then nothing appears."""
    with _translated():
        filesystem, path = url_to_fs(url)
    if isinstance(filesystem, LocalFileSystem):
        _write_local(Path(path), pieces)
        return
    data = b"".join(pieces)  # what these raise is not the store's
    with _translated():
        filesystem.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
        filesystem.pipe_file(path, data)


def _write_local(path: Path, pieces: Iterable[Buffer]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with beside.open("wb") as file:
            with suppress(OSError):  # a file system without locks: then nobody clears up after a kill
                fcntl.flock(file, fcntl.LOCK_EX)
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def remove_unfinished(url: str) -> None:
    """What writers of the file that were killed have left beside it. Those that still write hold a lock."""
    if not is_local(url):
        return
    path = Path(url_to_fs(url)[1])
    for beside in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        with suppress(OSError), beside.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            beside.unlink()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@_translated()
def read(url: str) -> bytearray:
    """The whole file. Raises OSError (FileNotFoundError where there is none)."""
    filesystem, path = url_to_fs(url)
    with filesystem.open(path, "rb") as file:
        data = bytearray(filesystem.size(path) or 0)
        filled = 0
        while filled < len(data) and (count := file.readinto(memoryview(data)[filled:])):
            filled += count
    del data[filled:]
    return data


@_translated()
def size(url: str) -> int | None:
    """In bytes; None where there is no file."""
    filesystem, path = url_to_fs(url)
    filesystem.invalidate_cache()
    try:
        found: dict[str, Any] = filesystem.info(path)
    except FileNotFoundError:
        return None
    return int(found["size"]) if found["type"] == "file" else None


@_translated()
def folders(url: str) -> tuple[str, ...]:
    """Names of the folders right below ``url``, sorted; none where ``url`` does not exist."""
    filesystem, path = url_to_fs(url)
    filesystem.invalidate_cache()
    try:
        entries = filesystem.ls(path, detail=True)
    except FileNotFoundError:
        return ()
    return tuple(sorted(e["name"].rstrip("/").rsplit("/", 1)[-1] for e in entries if e["type"] == "directory"))


@_translated()
def remove(url: str) -> None:
    """A file, or a folder with all that is in it. Removing what is gone is not an error."""
    filesystem, path = url_to_fs(url)
    try:
        filesystem.rm(path, recursive=True)
    except FileNotFoundError:
        return
