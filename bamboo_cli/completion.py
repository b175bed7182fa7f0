"""What the shell completes, from the state files of this machine. What cannot be read offers nothing, without a word.

State files are read with sqlite3 alone: SQLAlchemy takes a third of a second to load, at each press of a key.
"""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer

JOB_SUFFIXES = (".yaml", ".yml")
MAX_FILES = 200
"""Of a folder: looked at no further, should it be a huge one."""
LOCK_TIMEOUT_S = 0.2
LOSSES = ("notice", "kill", "kill-in-step", "freeze", "freeze-node", "cut")
CLOUDS = ("aws",)
"""Those that `bamboo check` knows."""
PERIODS = ("today", "yesterday", "7d", "30d")
GONE = ("lost", "released", "ended")
"""States of nodes that cannot be taken any more."""
PLAIN = "/._-~+@%,"
"""Besides letters and digits: what no shell reads as anything else. Other names are left to the shell itself."""


def cluster_names(incomplete: str) -> list[str]:
    return _matching((path.parent.name for path in _state_files("*/state.db")), incomplete)


def cluster_ids(incomplete: str) -> list[str]:
    return _matching((str(identity.get("cluster_id", "")) for identity in _identities()), incomplete)


def present_nodes(ctx: typer.Context, incomplete: str) -> list[str]:
    return _matching((name for name, state in _nodes(ctx) if state not in GONE), incomplete)


def all_nodes(ctx: typer.Context, incomplete: str) -> list[str]:
    return _matching((name for name, _ in _nodes(ctx)), incomplete)


def lost_nodes(ctx: typer.Context, incomplete: str) -> list[str]:
    gone = (name for name, state in _nodes(ctx) if state in GONE)
    return [*_matching(("all", "latest"), incomplete), *_matching(gone, incomplete)]


def runs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Of the cluster, earlier ones of its name included; of all where none is named."""
    found = (name for path in _asked(ctx, "*.db") for name, _ in _rows(path, "run/"))
    return _matching(found, incomplete)


def resumable_runs(ctx: typer.Context, incomplete: str) -> list[str]:
    return [*_matching(("latest",), incomplete), *runs(ctx, incomplete)]


def schedules(incomplete: str) -> list[str]:
    """Ids of the entries of `bamboo cron`."""
    from bamboo_cli import paths

    return _matching((path.parent.name for path in sorted(paths.cron_dir().glob("*/entry.json"))), incomplete)


def job_files(incomplete: str) -> list[str]:
    """Those in the folder that is typed so far, and in the folders in it; nothing: the shell completes any file."""
    folder, _, _ = incomplete.rpartition("/")
    typed = incomplete[: len(folder) + 1] if "/" in incomplete else ""
    here = Path(typed or ".").expanduser()
    return sorted(typed + name for name in _job_files_in(here) if (typed + name).startswith(incomplete))


def losses(incomplete: str) -> list[str]:
    """The last of a list with commas."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{how}" for how in LOSSES if how.startswith(last) and how not in before.split(",")]


def clouds(incomplete: str) -> list[str]:
    return _matching(CLOUDS, incomplete)


def periods(incomplete: str) -> list[str]:
    return _matching(PERIODS, incomplete)


def instance_types(incomplete: str) -> list[str]:
    from bamboo_cli.providers.aws_cloud import catalogue

    return _matching(catalogue.instance_types(), incomplete)


def regions(incomplete: str) -> list[str]:
    """Those whose prices ship with Bamboo, and those that clusters of this machine have rented in."""
    from bamboo_cli.providers.aws_cloud import catalogue

    rented = (region for identity in _identities() for region in identity.get("regions") or ())
    return _matching((*catalogue.REGIONS, *rented), incomplete)


def settings(incomplete: str) -> list[str]:
    """``KEY=``, with the dots of its section."""
    from bamboo_cli.config import JobConfig
    from bamboo_cli.job_mistakes import leaf_keys

    return _matching((".".join(key) + "=" for key in leaf_keys(JobConfig)), incomplete)


# --- where it is read --------------------------------------------------------------------------------------------


def _matching(found: Iterable[str], incomplete: str) -> list[str]:
    return sorted({name for name in found if name and name.startswith(incomplete)}, key=_by_number)


def _by_number(name: str) -> tuple[str, int]:
    """n2 before n10."""
    letters = name.rstrip("0123456789")
    return letters, int(name[len(letters) :] or -1)


def _state_files(pattern: str) -> list[Path]:
    """The one that was written last comes first."""
    from bamboo_cli import paths

    try:
        return sorted(paths.clusters_dir().glob(pattern), key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        return []


def _asked(ctx: typer.Context, pattern: str) -> list[Path]:
    """State files of the cluster that is named on the line, by name or id; else of all."""
    cluster = ctx.params.get("cluster")
    if not isinstance(cluster, str):
        return _state_files(f"*/{pattern}")
    return [path for path in _state_files("*/*.db") if cluster in (path.parent.name, path.stem) and path.match(pattern)]


def _nodes(ctx: typer.Context) -> Iterator[tuple[str, str]]:
    """Id and state of those of the cluster that is named, else of the one that was used last."""
    for path in _asked(ctx, "state.db")[:1]:
        for name, body in _rows(path, "node/"):
            yield name, _state_of(body)


def _state_of(body: str) -> str:
    try:
        return str(json.loads(body)["state"])
    except (ValueError, TypeError, KeyError):
        return ""


def _rows(path: Path, kind: str) -> list[tuple[str, str]]:
    """What the coordinator keeps of one kind, by id."""
    import sqlite3
    from contextlib import closing
    from urllib.parse import quote

    uri = f"file:{quote(path.absolute().as_posix())}?mode=rw"
    try:
        with closing(sqlite3.connect(uri, uri=True, timeout=LOCK_TIMEOUT_S)) as connection:
            connection.execute("PRAGMA query_only = ON")
            found = connection.execute("SELECT name, body FROM machine WHERE name GLOB ?", (f"{kind}*",)).fetchall()
    except sqlite3.Error:
        return []
    return [(str(name).removeprefix(kind), str(body)) for name, body in found]


def _identities() -> Iterator[dict[str, Any]]:
    from bamboo_cli import paths

    for path in sorted(paths.clusters_dir().glob("*/cluster.json")):
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(found, dict):
            yield found


def _job_files_in(folder: Path) -> Iterator[str]:
    for entry in _entries(folder):
        if not entry.name.startswith(".") and _is_plain(entry.name):
            if entry.name.endswith(JOB_SUFFIXES):
                yield entry.name
            elif entry.is_dir():
                names = (file.name for file in _entries(Path(entry.path)) if file.name.endswith(JOB_SUFFIXES))
                yield from (f"{entry.name}/{name}" for name in names if _is_plain(name))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    from itertools import islice

    try:
        with os.scandir(folder) as entries:
            return list(islice(entries, MAX_FILES))
    except OSError:
        return []


def _is_plain(name: str) -> bool:
    return all(letter.isalnum() or letter in PLAIN for letter in name)
