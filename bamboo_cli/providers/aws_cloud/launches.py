"""The requests for instances, as they were sent: stored before, so that a repeated one is the same to the last byte.

Also which regions were ever asked. One file a token, in ``launches/`` of the cluster's folder, for its owner only: a
request holds the instance's host key.
"""

import json
import os
import secrets
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from bamboo_cli.errors import StateError
from bamboo_cli.providers.aws_cloud.requests import Request

FOLDER = "launches"
REGION_MARK = ".region"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    region: str
    zone: str
    request: Request


def store(folder: Path, token: str, launch: Stored) -> None:
    """Raises StateError."""
    path = _path(folder, token)
    unfinished = path.with_name(f".{token}.new-{secrets.token_hex(3)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        (path.parent / f"{launch.region}{REGION_MARK}").touch(mode=0o600)
        with os.fdopen(os.open(unfinished, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            json.dump(asdict(launch), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except OSError as error:
        raise StateError(
            f"the request for an instance cannot be stored in {path}: {error}",
            next_step="Nothing was asked of AWS. Free some space, or make the folder yours.",
        ) from error


def load(folder: Path, token: str) -> Stored | None:
    """None: it was never stored, so never sent. Raises StateError."""
    path = _path(folder, token)
    try:
        return Stored(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise StateError(
            f"the stored request {path} cannot be read: {error}",
            next_step="Give everything back with `bamboo down`, which needs only the cluster's tag.",
        ) from error


def forget(folder: Path, token: str) -> None:
    """AWS said no, so nothing came of it."""
    _path(folder, token).unlink(missing_ok=True)


def regions(folder: Path) -> frozenset[str]:
    """In which an instance was ever asked for, also where none was to be had."""
    return frozenset(path.name.removesuffix(REGION_MARK) for path in (folder / FOLDER).glob(f"*{REGION_MARK}"))


def forget_all(folder: Path) -> None:
    shutil.rmtree(folder / FOLDER, ignore_errors=True)


def _path(folder: Path, token: str) -> Path:
    return folder / FOLDER / f"{token}.json"
