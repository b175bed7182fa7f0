"""Storage that cannot be used says so with an OSError, whatever it is."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from bamboo_trainer import storage
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry


class Moody(MemoryFileSystem):  # type: ignore[misc]
    """Raises what no other store raises."""

    protocol = "moody"

    def ls(self, path: str, detail: bool = True, **kwargs: object) -> object:
        raise RuntimeError("not today")

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: object) -> None:
        raise RuntimeError("not today")


@pytest.fixture
def moody() -> Iterator[str]:
    fsspec.register_implementation("moody", Moody, clobber=True)
    yield "moody://bucket/run"
    _registry.pop("moody")


def test_errors_of_a_store_become_one_kind(moody: str) -> None:
    for use in (lambda: storage.folders(moody), lambda: storage.write_durably(f"{moody}/x", [b"x"])):
        with pytest.raises(storage.StorageError, match="RuntimeError: not today"):
            use()


@pytest.mark.parametrize("url", ["no-such-store://bucket/run", "s3://bucket/run"])
def test_a_store_that_is_not_there_is_an_error_of_storage(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        storage.known_implementations, "s3", {"class": "no_such_s3fs.S3FileSystem", "err": "Install no_such_s3fs"}
    )
    with pytest.raises(storage.StorageError):
        storage.folders(url)


def test_the_package_that_a_store_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(storage.known_implementations, "s3", {"class": "no_such_s3fs.S3FileSystem", "err": ""})
    assert storage.missing_package("s3://bucket/run") == "no_such_s3fs"
    assert storage.missing_package("/tmp/run") is None
    assert storage.missing_package("file:///tmp/run") is None


def test_trying_out_leaves_no_trace(tmp_path: Path, moody: str) -> None:
    storage.try_out(str(tmp_path / "a" / "b"))
    storage.try_out("memory://tried")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(storage.StorageError, match="not today"):
        storage.try_out(moody)


def test_a_folder_that_was_there_stays(tmp_path: Path) -> None:
    storage.try_out(str(tmp_path))
    assert tmp_path.exists()


@pytest.mark.parametrize("url", ["/etc/hostname/x", "/proc/nope"])
def test_a_place_that_cannot_be_written_is_found_out(url: str) -> None:
    with pytest.raises(OSError):
        storage.try_out(url)


def test_what_the_pieces_raise_is_not_the_stores() -> None:
    def pieces() -> Iterator[bytes]:
        yield b"half"
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more"):
        storage.write_durably("memory://whole/file", pieces())


KILLED = """
import os, signal, sys
from bamboo_trainer import storage
storage.write_durably(sys.argv[1], (os.kill(os.getpid(), signal.SIGKILL) or b"never" for _ in range(1)))
"""


def test_what_a_killed_writer_has_left_is_removed_and_what_one_still_writes_is_not(tmp_path: Path) -> None:
    target = tmp_path / "model [1].bin"
    subprocess.run([sys.executable, "-c", KILLED, str(target)], check=False)
    (left,) = tmp_path.iterdir()
    assert left.suffix == ".tmp"

    def pieces() -> Iterator[bytes]:
        storage.remove_unfinished(str(target))
        yield b"whole"

    storage.write_durably(str(target), pieces())

    assert [path.name for path in tmp_path.iterdir()] == [target.name] and target.read_bytes() == b"whole"
