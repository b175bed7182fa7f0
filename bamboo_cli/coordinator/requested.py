"""What the user may ask of the coordinator. A part of the vocabulary of ``events`` that is stored too: who only reads
the state file needs no more of it.
"""

from dataclasses import dataclass

from bamboo_trainer.plan import NodeId

from bamboo_cli.coordinator.settings import RunSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRun:
    """Finished when accepted. Refused while another run goes on."""

    spec: RunSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRun:
    """Finished when the run has ended: at the next step boundary."""

    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Take the node out at the next step boundary and give it back. Finished when it has ended."""

    node_id: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseCluster:
    """End the run, stop the workers, give all nodes back. Finished when all have ended."""


Request = StartRun | StopRun | Drain | CloseCluster
