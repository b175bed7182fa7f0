"""What commands ask of the coordinator, from the ``requests`` table to what it means."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bamboo_trainer.plan import NodeId
from pydantic import TypeAdapter
from sqlalchemy import Connection, select

from bamboo_cli import jobs
from bamboo_cli.config import JobConfig
from bamboo_cli.coordinator import schema
from bamboo_cli.coordinator.events import CloseCluster, Request, StartRun, StopRun
from bamboo_cli.coordinator.settings import Resumes
from bamboo_cli.coordinator.store import RequestKind, RequestState
from bamboo_cli.errors import UsageError

_RESUMES: TypeAdapter[Resumes | None] = TypeAdapter(Resumes | None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    request_id: int
    kind: str
    """A ``RequestKind``, unless a newer ``bamboo`` has asked."""
    payload: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preempt:
    """Not for the machine, which hears of it from the cloud as of any other preemption."""

    node_id: NodeId
    notice_s: float | None


def pending(connection: Connection) -> tuple[Asked, ...]:
    """Without an answer yet, oldest first."""
    table = schema.requests
    query = select(table).where(table.c.state == RequestState.PENDING).order_by(table.c.request_id)
    return tuple(
        Asked(request_id=row.request_id, kind=row.kind, payload=row.payload) for row in connection.execute(query)
    )


def run_id_of(cluster_id: str, request_id: int) -> str:
    """The same whenever the request is read, so that a run that was asked for once starts once."""
    return f"{cluster_id}-{request_id}"


def understand(asked: Asked, cluster_id: str, cluster_dir: Path) -> Request | Preempt:
    """Raises UsageError for what no ``bamboo`` of this version would have written."""
    try:
        match RequestKind(asked.kind):
            case RequestKind.TRAIN:
                run_id = run_id_of(cluster_id, asked.request_id)
                url = (cluster_dir / "checkpoints" / run_id).absolute().as_uri()
                job = JobConfig.model_validate(asked.payload["job"])
                digest = str(asked.payload.get("recipe_sha256", ""))
                source = str(asked.payload.get("recipe_source", ""))
                resumes = _RESUMES.validate_python(asked.payload.get("resumes"))
                return StartRun(spec=replace(jobs.run_spec(job, run_id, url, digest, source), resumes=resumes))
            case RequestKind.STOP_RUN:
                return StopRun(run_id=str(asked.payload["run_id"]))
            case RequestKind.PREEMPT:
                return Preempt(node_id=NodeId(asked.payload["node_id"]), notice_s=asked.payload["notice_s"])
            case RequestKind.DOWN:
                return CloseCluster()
    except (KeyError, ValueError) as error:  # pydantic's ValidationError is one
        raise UsageError(f"the coordinator does not understand this {asked.kind} request: {error}") from error
