"""Opening ``state.db``, and its transactions.

WAL, so that commands read while the coordinator writes; ``BEGIN IMMEDIATE`` for every write, so that a transaction
that has begun does not fail for want of a lock; ``synchronous=FULL``, since an agent forgets a message once it is
acknowledged. Errors of SQLite leave this file as ``StateError``.
"""

import os
import secrets
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from json import JSONDecodeError
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import ValidationError
from sqlalchemy import URL, Connection, Engine, create_engine, event, insert, select
from sqlalchemy.exc import DBAPIError

from bamboo_cli.coordinator import schema
from bamboo_cli.errors import StateError

STATE_FILE = "state.db"
LOCK_TIMEOUT_S = 10.0
"""How long a command waits for whoever writes."""


class ClusterState(StrEnum):
    UP = "up"
    CLOSING = "closing"
    """``down`` was asked for; instances are being given back."""
    CLOSED = "closed"


class RequestKind(StrEnum):
    TRAIN = "train"
    """Payload: ``{"job_text", "job", "recipe_sha256", "resumes"}``; the last two may be left out. Outcome: run id."""
    STOP_RUN = "stop_run"
    """Payload: ``{"run_id"}``."""
    PREEMPT = "preempt"
    """Payload: ``{"node_id", "notice_s"}``, ``notice_s`` null for none at all."""
    DOWN = "down"
    """Payload: ``{}``. Outcome: what was given back."""


class RequestState(StrEnum):
    PENDING = "pending"
    DONE = "done"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutcome:
    state: RequestState
    outcome: str
    """One sentence, or the id that was asked for. Empty while pending."""


def state_path(cluster_dir: Path) -> Path:
    return cluster_dir / STATE_FILE


def create_cluster(
    cluster_dir: Path, *, name: str, cloud: str, job_text: str, job: dict[str, Any], wanted_nodes: int
) -> str:
    """Make the folder and its ``state.db`` for a new cluster; returns the cluster id.

    Only for this user's eyes: the file holds the cluster's secret. Raises StateError when there is one already.
    """
    path = state_path(cluster_dir)
    if path.exists():
        raise StateError(
            f"{cluster_dir} already holds a cluster", next_step="Use another --cluster name, or `bamboo down`."
        )
    unfinished = path.with_suffix(f".new-{secrets.token_hex(3)}")
    with _translated(path):
        cluster_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(unfinished, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600))
        with closing(sqlite3.connect(unfinished)) as raw:
            raw.execute("PRAGMA journal_mode = WAL")  # kept by the file
    cluster_id = f"{name}-{secrets.token_hex(3)}"
    engine = _engine(unfinished, writable=True)
    with writing(engine) as connection:
        schema.create_schema(connection)
        connection.execute(
            insert(schema.cluster).values(
                only=1,
                name=name,
                cluster_id=cluster_id,
                cloud=cloud,
                job_text=job_text,
                job=job,
                wanted_nodes=wanted_nodes,
                secret=secrets.token_urlsafe(32),
                created_at=time.time(),
            )
        )
    engine.dispose()
    with _translated(path):
        try:
            os.link(unfinished, path)  # unlike a rename, it never takes the place of one that another command made
        except FileExistsError:
            raise StateError(
                f"{cluster_dir} already holds a cluster: another command has just made it",
                next_step="`bamboo status` shows it.",
            ) from None
        finally:
            unfinished.unlink()
    return cluster_id


def open_for_writing(path: Path, lock_timeout_s: float = LOCK_TIMEOUT_S) -> Engine:
    """For the coordinator, and for requests. Migrates an older file.

    Raises StateError when the file is missing, corrupt, foreign, or written by a newer Bamboo.
    """
    engine = _open_checked(path, writable=True, lock_timeout_s=lock_timeout_s)
    with writing(engine) as connection:
        schema.migrate(connection)
    return engine


def open_for_reading(path: Path) -> Engine:
    """For commands; works whether or not a coordinator is there. Raises StateError as ``open_for_writing``."""
    return _open_checked(path, writable=False)


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """One write transaction: all of it or nothing. Raises StateError when SQLite cannot (full disk, lock, damage)."""
    with _translated(Path(str(engine.url.database))), engine.begin() as connection:
        yield connection


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """One consistent view of the file."""
    with _translated(Path(str(engine.url.database))), engine.begin() as connection:
        yield connection


def make_request(path: Path, kind: RequestKind, payload: dict[str, Any]) -> int:
    """Ask something of the coordinator, now or when there is one again; returns the request's id."""
    engine = open_for_writing(path)
    with writing(engine) as connection:
        request_id = connection.execute(
            insert(schema.requests)
            .values(kind=kind, payload=payload, state=RequestState.PENDING, made_at=time.time())
            .returning(schema.requests.c.request_id)
        ).scalar_one()
    engine.dispose()
    return int(request_id)


def request_outcome(path: Path, request_id: int) -> RequestOutcome:
    """Raises StateError for a request that was never made."""
    engine = open_for_reading(path)
    with reading(engine) as connection:
        row = connection.execute(
            select(schema.requests.c.state, schema.requests.c.outcome).where(schema.requests.c.request_id == request_id)
        ).one_or_none()
    engine.dispose()
    if row is None:
        raise StateError(f"{path} has no request {request_id}")
    return RequestOutcome(state=RequestState(row.state), outcome=row.outcome)


def _engine(path: Path, *, writable: bool, lock_timeout_s: float = LOCK_TIMEOUT_S) -> Engine:
    # mode=rw: never make a file by looking for one. Readers need it too: with WAL they share its index file.
    mode = "mode=ro&immutable=1" if not writable and _is_frozen(path) else "mode=rw"
    uri = f"file:{quote(path.absolute().as_posix())}?{mode}"
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        creator=lambda: sqlite3.connect(
            uri, uri=True, timeout=lock_timeout_s, isolation_level=None, check_same_thread=False
        ),
    )

    @event.listens_for(engine, "connect")
    def configure(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("PRAGMA foreign_keys = ON")
        if writable:
            connection.execute("PRAGMA synchronous = FULL")
        else:
            connection.execute("PRAGMA query_only = ON")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writable else "BEGIN")

    return engine


def _is_frozen(path: Path) -> bool:
    """In a folder where nothing can be made, an index file neither; and whole: no write is left beside it. A backup, or
    a disk that is mounted to be read."""
    return not os.access(path.parent, os.W_OK) and not path.with_name(f"{path.name}-wal").exists()


def _open_checked(path: Path, *, writable: bool, lock_timeout_s: float = LOCK_TIMEOUT_S) -> Engine:
    if not path.exists():
        raise StateError(f"there is no cluster in {path.parent}", next_step="Start one with `bamboo up`.")
    engine = _engine(path, writable=writable, lock_timeout_s=lock_timeout_s)
    with _translated(path), reading(engine) as connection:
        application_id = connection.exec_driver_sql("PRAGMA application_id").scalar_one()
        version = int(connection.exec_driver_sql("PRAGMA user_version").scalar_one())
    if application_id != schema.APPLICATION_ID:
        raise StateError(
            f"{path} was not written by Bamboo",
            next_step="Nothing was changed. Move the file away, or choose another BAMBOO_HOME or --cluster.",
        )
    if version > schema.schema_version():
        raise StateError(
            f"{path} was written by a newer Bamboo (format {version}; this one knows {schema.schema_version()})",
            next_step="Upgrade with `pip install -U bamboo-train`.",
        )
    return engine


@contextmanager
def understood(path: Path) -> Iterator[None]:
    """Around the decoding of rows: one that does not fit its type, or that is damaged, raises StateError."""
    try:
        yield
    except (UnicodeDecodeError, JSONDecodeError) as error:
        raise _damaged(path, str(error)) from error
    except ValidationError as error:
        place = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise StateError(
            f"{path} holds what this Bamboo does not understand ({error.title}: {place}); another version wrote it",
            next_step="Nothing was changed. Use that version, or give everything back with `bamboo down`, which needs "
            "only the cluster's tag, and move the folder away.",
        ) from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if wrong := _what_is_wrong(path):  # else it is a bug of ours
            raise _damaged(path, wrong) from error
        raise


def _what_is_wrong(path: Path) -> str:
    """As SQLite sees it, which looks through all of the file; empty: nothing."""
    engine = _engine(path, writable=False)
    try:
        with reading(engine) as connection:
            said = str(connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar_one())
    finally:
        engine.dispose()
    return "" if said == "ok" else said


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        raise _state_error(path, str(error.orig)) from error
    except (sqlite3.Error, OSError) as error:
        raise _state_error(path, str(error)) from error


def _state_error(path: Path, detail: str) -> StateError:
    lowered = detail.lower()
    if any(sign in lowered for sign in ("not a database", "malformed", "could not decode")):
        return _damaged(path, detail)
    if "locked" in lowered or "busy" in lowered:
        return StateError(f"{path} is in use ({detail})", next_step="Try again; one coordinator at a time may own it.")
    if "full" in lowered or "no space" in lowered or "disk i/o" in lowered:
        return StateError(f"cannot write {path} ({detail})", next_step="Free some disk space; nothing was lost.")
    return StateError(f"cannot use {path} ({detail})", next_step="Check that the folder exists and belongs to you.")


def _damaged(path: Path, detail: str) -> StateError:
    return StateError(
        f"{path} is damaged ({detail})",
        next_step="Nothing was changed. Instances may still be rented: `bamboo down` sweeps them by tag.",
    )
