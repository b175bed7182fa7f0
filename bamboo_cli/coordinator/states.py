"""The life of a node and of a run: their states and the only moves between them. Any other move is a bug and raises."""

from collections.abc import Mapping
from enum import StrEnum


class NodeState(StrEnum):
    INTENDED = "intended"
    """Stored before the cloud is asked; also while it has no capacity."""
    BOOTING = "booting"
    """Rented; its agent has not joined."""
    JOINED = "joined"
    """Its agent is here; no worker is prepared."""
    STANDBY = "standby"
    """Its worker is ready, and has no part in a plan."""
    ACTIVE = "active"
    """Its worker is a member of the plan."""
    DRAINING = "draining"
    """Going, by notice or request; still works until a plan without it is in force."""
    LOST = "lost"
    """Declared lost. May come back, as a standby."""
    RELEASED = "released"
    """Given back; the cloud has not confirmed it."""
    ENDED = "ended"


class NodeReason(StrEnum):
    """Why the node is where it is."""

    NONE = ""
    CAPACITY = "no capacity"
    QUOTA = "quota"
    CREDENTIALS = "credentials refused"
    REFUSED = "the request is refused"
    CLOUD = "the cloud failed"
    NOTICED = "noticed"
    DRAINED = "drain requested"
    SILENT = "its lease ran out"
    CUT_OFF = "its link and its peers' links broke"
    INSTANCE_GONE = "the cloud says that it is gone"
    PREEMPTED = "preempted"
    FAILED = "it ended by itself"
    NOT_PREPARED = "it could not be made a node"
    NEVER_JOINED = "its agent never joined"
    NEVER_CAME_BACK = "it never came back"
    RETURNED = "came back"
    NOT_WANTED = "not wanted any more"
    CLOSED = "the cluster is closed"


class WorkerState(StrEnum):
    """Of the worker process on a node, which has no table of its own: it only ever goes down this list, or is lost."""

    STARTING = "starting"
    READY = "ready"
    PREPARING = "preparing"
    PREPARED = "prepared"
    """For the run at hand: a plan may name it."""


class RunState(StrEnum):
    STARTING = "starting"
    """Waits for its nodes."""
    PROFILING = "profiling"
    """One worker measures the layers."""
    PREPARING = "preparing"
    """The others import the recipe."""
    ADOPTING = "adopting"
    """A boundary plan is out; some members still fetch layers."""
    RUNNING = "running"
    QUIESCING = "quiescing"
    """Its members stop at the next step boundary."""
    HALTING = "halting"
    """Its members were told to stop at once and to report what they hold."""
    WAITING = "waiting"
    """Too few nodes; nobody runs."""
    FINISHING = "finishing"
    """All steps are committed; the last checkpoint and the model are being written."""
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"


class RunReason(StrEnum):
    """Why the run ended as it did."""

    NONE = ""
    RECIPE = "recipe"
    LOSS_NOT_FINITE = "loss not finite"
    CHECKPOINT_UNREADABLE = "checkpoint unreadable"
    CHECKPOINT_UNWRITABLE = "checkpoint unwritable"
    DEVICE = "no such device"
    OUT_OF_MEMORY = "out of memory"
    WORKER_CRASHES = "worker crashes"
    NO_NODES = "no nodes"
    BUG = "bug"
    REQUESTED = "stop requested"
    BUDGET = "budget"
    CLOSED = "cluster closed"


class PauseKind(StrEnum):
    QUIESCE = "quiesce"
    HALT = "halt"


_N, _R = NodeState, RunState
_GONE = (_N.LOST, _N.RELEASED, _N.ENDED)
_OVER = (_R.FAILED, _R.STOPPED)

NODE_MOVES: Mapping[NodeState, tuple[NodeState, ...]] = {
    _N.INTENDED: (_N.BOOTING, _N.JOINED, _N.RELEASED, _N.ENDED),
    _N.BOOTING: (_N.JOINED, _N.RELEASED, _N.ENDED),
    _N.JOINED: (_N.STANDBY, _N.DRAINING, *_GONE),
    _N.STANDBY: (_N.ACTIVE, _N.JOINED, _N.DRAINING, *_GONE),
    _N.ACTIVE: (_N.STANDBY, _N.JOINED, _N.DRAINING, *_GONE),
    _N.DRAINING: _GONE,
    _N.LOST: (_N.JOINED, _N.RELEASED, _N.ENDED),
    _N.RELEASED: (_N.ENDED,),
    _N.ENDED: (),
}

RUN_MOVES: Mapping[RunState, tuple[RunState, ...]] = {
    _R.STARTING: (_R.PROFILING, *_OVER),
    _R.PROFILING: (_R.STARTING, _R.PREPARING, *_OVER),
    _R.PREPARING: (_R.ADOPTING, _R.WAITING, *_OVER),
    _R.ADOPTING: (_R.RUNNING, _R.HALTING, *_OVER),
    _R.RUNNING: (_R.QUIESCING, _R.HALTING, _R.FINISHING, *_OVER),
    _R.QUIESCING: (_R.ADOPTING, _R.HALTING, _R.WAITING, _R.FINISHING, *_OVER),
    _R.HALTING: (_R.ADOPTING, _R.WAITING, *_OVER),
    _R.WAITING: (_R.ADOPTING, *_OVER),
    _R.FINISHING: (_R.HALTING, _R.DONE, *_OVER),
    _R.DONE: (),
    _R.FAILED: (),
    _R.STOPPED: (),
}

WANTED = frozenset({_N.INTENDED, _N.BOOTING, _N.JOINED, _N.STANDBY, _N.ACTIVE})
"""States that count towards the wanted number of nodes."""
LEASED = frozenset({_N.JOINED, _N.STANDBY, _N.ACTIVE, _N.DRAINING})
"""States in which the agent must be heard of."""
ENDED = frozenset({_R.DONE, _R.FAILED, _R.STOPPED})
UNDER_PLAN = frozenset({_R.ADOPTING, _R.RUNNING, _R.QUIESCING, _R.HALTING, _R.FINISHING})
"""States in which workers may be running under ``Run.plan``."""


class IllegalMove(Exception):
    """A bug in the coordinator. Carries the story so far."""
