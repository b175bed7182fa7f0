"""Giving everything back, and proving it. The cloud's list counts, not ours."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bamboo_cli import clusters, output
from bamboo_cli.errors import BambooError, LeftBehindError, SignalledError, StateError
from bamboo_cli.providers.base import InstanceState, Provider
from bamboo_cli.providers.choose import provider_of_cloud
from bamboo_cli.signals import Terminated

SWEEP_DEADLINE_S = 120.0
END_DEADLINE_S = 30.0
STOP_DEADLINE_S = 60.0
POLL_S = 0.2
ATTEMPTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Down:
    """How it went. Nothing is left, or LeftBehindError would have been raised."""

    cluster_id: str
    by: str
    """``coordinator``, or ``sweep`` when none could be had."""
    detail: str


def stop_in_order(path: Path) -> None:
    """A run that is on saves a checkpoint at a step boundary and stops. Whatever hinders it is told, and no more."""
    from bamboo_cli.coordinator.reader import read_active_spec
    from bamboo_cli.coordinator.store import RequestKind

    try:
        spec = read_active_spec(path)
        if spec is not None:
            what = "the run to save a checkpoint and stop (`--now` does not wait for it)"
            clusters.ask(path, RequestKind.STOP_RUN, {"run_id": spec.run_id}, what=what, deadline_s=STOP_DEADLINE_S)
    except BambooError as error:
        output.note(
            f"the run did not stop in good order ({error.message}); the newest checkpoint is what is left of it"
        )


def give_back(
    cluster_dir: Path,
    *,
    before: Callable[[], None] = lambda: None,
    obeyed: tuple[type[BaseException], ...] = (KeyboardInterrupt, Terminated),
) -> Down:
    """``bring_down``, after ``before``. A signal meanwhile is ``obeyed``, but not in silence: raises SignalledError
    with what is left and how to end it; LeftBehindError.
    """
    try:
        before()
        return bring_down(cluster_dir)
    except obeyed as signalled:
        raise SignalledError(
            f"interrupted while everything was being given back; {_left_now(cluster_dir)}",
            next_step=f"End it with `bamboo down --cluster {cluster_dir.name}`.",
            exit_code=signalled.exit_code if isinstance(signalled, Terminated) else 130,
        ) from None


def _left_now(cluster_dir: Path) -> str:
    try:
        identity = clusters.read_identity(cluster_dir)
        left = provider_of_cloud(identity.cloud).left_behind(identity.cluster_id)
    except BambooError as error:
        return f"what is left is not known ({error.message})"
    return f"{output.plural(len(left), 'thing')} still there, which may cost money ({'; '.join(left)})"


def bring_down(cluster_dir: Path) -> Down:
    """End the run, give back all instances, end the coordinator, and prove that nothing is left.

    A coordinator that died is started once more, so that it closes the books; if that fails (a damaged state file, say)
    the instances are swept by the cluster's mark. Raises LeftBehindError with what is still there.
    """
    identity = clusters.read_identity(cluster_dir)
    provider = provider_of_cloud(identity.cloud)
    try:
        detail, by = _ask_coordinator(cluster_dir), "coordinator"
    except BambooError as error:
        output.note(f"the coordinator could not close the cluster ({error.message}); sweeping it from here")
        _end_coordinator(cluster_dir)
        detail, by = _sweep(provider, identity.cluster_id), "sweep"
    _await_end_of_coordinator(cluster_dir)
    left = _await_nothing_left(provider, identity.cluster_id)
    if left:
        raise LeftBehindError(
            f"{len(left)} things of cluster {identity.cluster_id} are still there:\n  " + "\n  ".join(left),
            next_step="Try `bamboo down` again; if that does not help, end them by hand.",
        )
    provider.retire()  # the local cloud's daemon, unless another cluster has instances
    return Down(cluster_id=identity.cluster_id, by=by, detail=detail)


def _ask_coordinator(cluster_dir: Path) -> str:
    """One that dies meanwhile is started again: only it can close the books. Raises BambooError."""
    from bamboo_cli.coordinator import lock

    for _ in range(ATTEMPTS - 1):
        try:
            return _ask_once(cluster_dir)
        except StateError:
            if lock.is_locked(cluster_dir):
                raise
    return _ask_once(cluster_dir)


def _ask_once(cluster_dir: Path) -> str:
    from bamboo_cli.coordinator.store import ClusterState, RequestKind, state_path

    path = state_path(cluster_dir)
    if clusters.read_state(path) is ClusterState.CLOSED:
        return "it was down already"
    return clusters.ask(path, RequestKind.DOWN, {}, what="all nodes to be given back")


def _sweep(provider: Provider, cluster_id: str) -> str:
    """Terminate whatever carries the mark, until the cloud lists nothing alive. Raises CloudError."""
    ended: set[str] = set()
    deadline = time.monotonic() + SWEEP_DEADLINE_S
    with output.waiting("the cloud to end the instances") as saw:
        while time.monotonic() < deadline:
            alive = [i for i in provider.instances(cluster_id) if i.state is not InstanceState.TERMINATED]
            if not alive:
                break
            saw(f"{len(alive)} left")
            ended |= {instance.instance_id for instance in alive}
            provider.terminate(tuple(instance.instance_id for instance in alive))
            time.sleep(POLL_S)
    return f"{output.plural(len(ended), 'instance')} ended"


def _end_coordinator(cluster_dir: Path) -> None:
    """One that does not answer would go on renting."""
    from bamboo_cli.coordinator import lock

    pid = lock.owner(cluster_dir)
    if pid is None:
        return
    output.note(f"ending the coordinator, process {pid}")
    for number in (signal.SIGTERM, signal.SIGKILL):
        os.kill(pid, number)
        deadline = time.monotonic() + END_DEADLINE_S / 2
        while time.monotonic() < deadline:
            if not lock.is_locked(cluster_dir):
                return
            time.sleep(POLL_S)


def _await_end_of_coordinator(cluster_dir: Path) -> None:
    """Raises StateError when it stays."""
    from bamboo_cli.coordinator import lock

    deadline = time.monotonic() + END_DEADLINE_S
    while lock.is_locked(cluster_dir):
        if time.monotonic() > deadline:
            raise StateError(
                f"the coordinator (process {lock.owner(cluster_dir)}) of {cluster_dir} does not end",
                next_step="End it by hand, then try `bamboo down` again.",
            )
        time.sleep(POLL_S)


def _await_nothing_left(provider: Provider, cluster_id: str) -> tuple[str, ...]:
    """Ended processes may linger for a moment; what is still there after that counts."""
    deadline = time.monotonic() + END_DEADLINE_S
    while (left := provider.left_behind(cluster_id)) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return left
