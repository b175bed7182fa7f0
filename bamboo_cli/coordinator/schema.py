"""The tables of ``state.db`` and how an older file becomes a newer one.

One file per cluster. The coordinator writes it; commands read it and write nothing but ``requests``. Times are seconds
since the epoch, money is whole micro-dollars, JSON columns hold what the pure parts made.
"""

import struct
from collections.abc import Callable, Sequence

from sqlalchemy import JSON, Boolean, Column, Connection, Float, Index, Integer, LargeBinary, MetaData, Table, Text

APPLICATION_ID = 0x62616D62
"""``bamb`` in SQLite's header: a file without it is not ours."""

metadata = MetaData()

cluster = Table(
    "cluster",
    metadata,
    Column("only", Integer, primary_key=True, comment="Always 1: a file describes one cluster."),
    Column("name", Text, nullable=False),
    Column("cluster_id", Text, nullable=False),
    Column("cloud", Text, nullable=False),
    Column("job_text", Text, nullable=False),
    Column("job", JSON, nullable=False),
    Column("wanted_nodes", Integer, nullable=False),
    Column("secret", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("port", Integer),
    Column("coordinator_pid", Integer),
    Column("heartbeat_at", Float),
)

machine = Table(
    "machine",
    metadata,
    Column("name", Text, primary_key=True),
    Column("body", Text, nullable=False, comment="JSON of a value of coordinator.entities."),
    comment="What the machine knows, one row per entity; what it loads when the coordinator starts again.",
)

beats = Table(
    "beats",
    metadata,
    Column("node_id", Text, primary_key=True),
    Column("last_beat_at", Float, nullable=False),
    comment="For people only; written about once a second.",
)

plans = Table(
    "plans",
    metadata,
    Column("generation", Integer, primary_key=True, autoincrement=False),
    Column("run_id", Text, nullable=False),
    Column("plan", JSON, nullable=False),
    Column("reason", Text, nullable=False),
    Column("made_at", Float, nullable=False),
)

steps = Table(
    "steps",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("step", Integer, primary_key=True, autoincrement=False),
    Column("generation", Integer, nullable=False),
    Column("loss", Float, comment="NULL: not a number."),
    Column("gradient_norm", Float, comment="NULL: not a number."),
    Column("learning_rate", Float, nullable=False),
    Column("step_s", Float, nullable=False),
    Column("num_samples", Integer, nullable=False),
    Column("num_tokens", Integer, nullable=False),
    Column("committed_at", Float, nullable=False),
    Column("first_sample", Integer, comment="NULL, as the two below: told to a Bamboo that did not keep it."),
    Column("losses", LargeBinary, comment="Per microbatch, as ``pack`` has it."),
    Column("square_norms", LargeBinary, comment="Per reduction unit, as ``pack`` has it."),
)

events = Table(
    "events",
    metadata,
    Column("event_id", Integer, primary_key=True),
    Column("at", Float, nullable=False),
    Column("kind", Text, nullable=False),
    Column("node_id", Text),
    Column("run_id", Text),
    Column("step", Integer),
    Column("text", Text, nullable=False),
    Column("numbers", JSON, nullable=False),
    comment="The story.",
)

requests = Table(
    "requests",
    metadata,
    Column("request_id", Integer, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("payload", JSON, nullable=False),
    Column("state", Text, nullable=False),
    Column("outcome", Text, nullable=False, default=""),
    Column("made_at", Float, nullable=False),
    Column("answered_at", Float),
    Index("requests_by_state", "state"),
    comment="What commands ask of the coordinator.",
)

instances = Table(
    "instances",
    metadata,
    Column("token", Text, primary_key=True, comment="Idempotency token: written before the cloud is asked."),
    Column("node_id", Text, nullable=False),
    Column("instance_type", Text, nullable=False),
    Column("zone", Text, nullable=False),
    Column("intended_at", Float, nullable=False),
    Column("instance_id", Text, comment="NULL: nothing is known to have come of it."),
    Column("address", Text),
    Column("launched_at", Float),
    Column("ended_at", Float),
    Column("end_reason", Text, nullable=False, default=""),
    Column("is_spot", Boolean, nullable=False, default=True, server_default="1", comment="Else paid on demand."),
)

prices = Table(
    "prices",
    metadata,
    Column("zone", Text, primary_key=True),
    Column("instance_type", Text, primary_key=True),
    Column("from_at", Float, primary_key=True),
    Column("spot_microusd_per_hour", Integer, nullable=False),
    Column("on_demand_microusd_per_hour", Integer, nullable=False),
    Column("price_source", Text, nullable=False),
    comment="A row whenever a price changed. Charges follow from instances, prices and runs: bamboo_cli.costs.ledger.",
)

pages = Table(
    "pages",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("worker_id", Text, primary_key=True),
    Column("step", Integer, primary_key=True, autoincrement=False),
    Column("generation", Integer, primary_key=True, autoincrement=False, comment="A step may be tried again."),
    Column("began_at", Float, nullable=False),
    Column("around_change", Boolean, nullable=False, comment="Kept longer than others."),
    Column("page", Text, nullable=False, comment="JSON of a control.Recorded."),
    Index("pages_by_age", "run_id", "around_change", "began_at"),
    comment="Of the workers' flight recorders.",
)

Migration = Callable[[Connection], None]


def pack(values: Sequence[float]) -> bytes:
    """Float64, little-endian: exact, NaN and all, eight bytes a number."""
    return struct.pack(f"<{len(values)}d", *values)


def unpack(packed: bytes) -> tuple[float, ...]:
    """Raises ValueError for what ``pack`` did not make."""
    if len(packed) % 8:
        raise ValueError(f"{len(packed)} bytes are no whole number of float64")
    return struct.unpack(f"<{len(packed) // 8}d", packed)


def _add_pages(connection: Connection) -> None:
    connection.exec_driver_sql(
        "CREATE TABLE pages (run_id TEXT NOT NULL, worker_id TEXT NOT NULL, step INTEGER NOT NULL, "
        "generation INTEGER NOT NULL, began_at FLOAT NOT NULL, around_change BOOLEAN NOT NULL, page TEXT NOT NULL, "
        "PRIMARY KEY (run_id, worker_id, step, generation))"
    )
    connection.exec_driver_sql("CREATE INDEX pages_by_age ON pages (run_id, around_change, began_at)")


def _keep_fingerprints(connection: Connection) -> None:
    for column in ("first_sample INTEGER", "losses BLOB", "square_norms BLOB"):
        connection.exec_driver_sql(f"ALTER TABLE steps ADD COLUMN {column}")


def _buy_on_demand(connection: Connection) -> None:
    connection.exec_driver_sql("ALTER TABLE instances ADD COLUMN is_spot BOOLEAN NOT NULL DEFAULT 1")


MIGRATIONS: tuple[Migration, ...] = (_add_pages, _keep_fingerprints, _buy_on_demand)
"""``MIGRATIONS[i]`` makes a file of version i + 1 one of version i + 2. Never edit one that was released."""


def schema_version(migrations: tuple[Migration, ...] = MIGRATIONS) -> int:
    return 1 + len(migrations)


def create_schema(connection: Connection) -> None:
    """Everything, in an empty file."""
    metadata.create_all(connection)
    connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.exec_driver_sql(f"PRAGMA user_version = {schema_version()}")


def migrate(connection: Connection, migrations: tuple[Migration, ...] = MIGRATIONS) -> int:
    """Bring the file up to date within the caller's transaction; returns the version that it had."""
    found = int(connection.exec_driver_sql("PRAGMA user_version").scalar_one())
    for migration in migrations[found - 1 :]:
        migration(connection)
    if found < schema_version(migrations):
        connection.exec_driver_sql(f"PRAGMA user_version = {schema_version(migrations)}")
    return found
