"""Giving everything back, and proving it. The cloud's list counts, not ours."""

import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from bamboo_cli import clusters, output
from bamboo_cli.errors import BambooError, SignalledError, StateError, UsageError
from bamboo_cli.providers.aws_cloud.calls import Calls
from bamboo_cli.providers.aws_cloud.regions import all_regions as all_regions_of
from bamboo_cli.providers.base import Provider
from bamboo_cli.providers.choose import provider_of_cloud
from bamboo_cli.signals import Terminated
from bamboo_cli.sweeping import end_instances, prove_nothing_left, require_credentials

END_DEADLINE_S = 30.0
STOP_DEADLINE_S = 60.0
POLL_S = 0.2
ATTEMPTS = 3
CLUSTER_ID = r"[a-z][a-z0-9-]*-[0-9a-f]{6}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Down:
    """How it went. Nothing is left, or LeftBehindError would have been raised."""

    cluster_id: str
    by: str
    """``coordinator``, or ``sweep`` when none could be had."""
    detail: str


def is_down(cluster_dir: Path) -> bool:
    """Whether its books are closed and the cloud, asked now, has nothing of it: `down` has nothing to end."""
    from bamboo_cli.coordinator.store import ClusterState, state_path

    try:
        if clusters.read_state(state_path(cluster_dir)) is not ClusterState.CLOSED:
            return False
        identity = clusters.read_identity(cluster_dir)
        return not _provider(identity, cluster_dir).left_behind(identity.cluster_id)
    except BambooError:
        return False  # `down` tells what hinders it


def end_what_is_left(cluster_dir: Path) -> None:
    """Before another cluster takes the place of one that is closed: one that closed itself (``aws.idle_after_min``), or
    whose `down` was killed at its end, still has its security group and key pair. Raises as ``bring_down``."""
    from bamboo_cli.coordinator.store import ClusterState, state_path

    path = state_path(cluster_dir)
    if not path.exists() or clusters.read_state(path) is not ClusterState.CLOSED:
        return
    if clusters.read_identity(cluster_dir).cloud == "aws" and not is_down(cluster_dir):
        output.note(f"ending what is left of the cluster {cluster_dir.name} before it")
        bring_down(cluster_dir)


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
    all_regions: bool = False,
    obeyed: tuple[type[BaseException], ...] = (KeyboardInterrupt, Terminated),
) -> Down:
    """``bring_down``, after ``before``. A signal meanwhile is ``obeyed``, but not in silence: raises SignalledError
    with what is left and how to end it; LeftBehindError.
    """
    try:
        before()
        return bring_down(cluster_dir, all_regions=all_regions)
    except obeyed as signalled:
        raise SignalledError(
            f"interrupted while everything was being given back; {_left_now(cluster_dir)}",
            next_step=f"End it with `bamboo down --cluster {cluster_dir.name}`.",
            exit_code=signalled.exit_code if isinstance(signalled, Terminated) else 130,
        ) from None


def _left_now(cluster_dir: Path) -> str:
    try:
        identity = clusters.read_identity(cluster_dir)
        left = _provider(identity, cluster_dir).left_behind(identity.cluster_id)
    except BambooError as error:
        return f"what is left is not known ({error.message})"
    return f"{output.plural(len(left), 'thing')} still there, which may cost money ({'; '.join(left)})"


def bring_down(cluster_dir: Path, *, all_regions: bool = False) -> Down:
    """End the run, give back all instances, end the coordinator, and prove that nothing is left.

    A coordinator that died is started once more, so that it closes the books; if that fails (a damaged state file, say)
    the instances are swept by the cluster's mark. Raises CredentialsError when the cloud does not know us, before
    anything is done; LeftBehindError with what is still there. ``all_regions``: look in all, not only in the job's.
    """
    identity = clusters.read_identity(cluster_dir)
    if all_regions and identity.cloud == "aws":
        identity = replace(identity, regions=all_regions_of(Calls(identity.profile)))
    provider = _provider(identity, cluster_dir)
    require_credentials(provider, identity.cluster_id, str(cluster_dir))
    detail = ""
    try:
        detail, by = _ask_coordinator(cluster_dir, provider), "coordinator"
    except BambooError as error:
        output.note(f"the coordinator could not close the cluster ({error.message}); sweeping it from here")
        _end_coordinator(cluster_dir)
        by = "sweep"
    _await_end_of_coordinator(cluster_dir)
    swept = end_instances(provider, identity.cluster_id)  # also what came to light when the books were closed
    trouble = swept.trouble
    if by == "sweep":
        detail = f"{output.plural(swept.num_ended, 'instance')} ended"
    elif swept.num_ended:
        detail = f"{detail}; {output.plural(swept.num_ended, 'instance')} that nobody knew of ended too"
    prove_nothing_left(provider, identity.cluster_id, trouble)
    if _is_still(identity, cluster_dir):
        provider.retire()  # the local cloud's daemon, unless another cluster has instances
    return Down(cluster_id=identity.cluster_id, by=by, detail=detail)


def _is_still(identity: clusters.Identity, cluster_dir: Path) -> bool:
    """The next cluster of that name may have moved in meanwhile, with keys of its own."""
    try:
        return clusters.read_identity(cluster_dir).cluster_id == identity.cluster_id
    except StateError:
        return True


def sweep_by_id(cluster_id: str, profile: str | None) -> Down:
    """A cluster of AWS whose record is lost, by its tag alone, in all regions. Raises as ``bring_down``."""
    if not re.fullmatch(CLUSTER_ID, cluster_id):
        raise UsageError(
            f"{cluster_id!r} cannot be the id of a cluster",
            next_step="It is the whole tag `bamboo:cluster`, such as demo-1a2b3c: with wildcards others would end too.",
        )
    provider = provider_of_cloud("aws", regions=all_regions_of(Calls(profile)), profile=profile)
    swept = end_instances(provider, cluster_id)
    prove_nothing_left(provider, cluster_id, swept.trouble)
    return Down(cluster_id=cluster_id, by="sweep", detail=f"{output.plural(swept.num_ended, 'instance')} ended")


def _provider(identity: clusters.Identity, cluster_dir: Path) -> Provider:
    return provider_of_cloud(identity.cloud, cluster_dir, regions=identity.regions, profile=identity.profile)


def _ask_coordinator(cluster_dir: Path, provider: Provider) -> str:
    """One that dies meanwhile is started again: only it can close the books. Raises BambooError."""
    from bamboo_cli.coordinator import lock

    for _ in range(ATTEMPTS - 1):
        try:
            return _ask_once(cluster_dir, provider)
        except StateError:
            if lock.is_locked(cluster_dir):
                raise
    return _ask_once(cluster_dir, provider)


def _ask_once(cluster_dir: Path, provider: Provider) -> str:
    from bamboo_cli.coordinator.reader import read_refusal
    from bamboo_cli.coordinator.store import ClusterState, RequestKind, state_path

    path = state_path(cluster_dir)
    if clusters.read_state(path) is ClusterState.CLOSED:
        return "it was down already"
    return clusters.ask(
        path,
        RequestKind.DOWN,
        {},
        what="all nodes to be given back",
        deadline_s=max(clusters.ANSWER_DEADLINE_S, provider.ends_within_s),
        hopeless=lambda: read_refusal(path),
    )


def _end_coordinator(cluster_dir: Path) -> None:
    """One that does not answer would go on renting."""
    from bamboo_cli.coordinator import lock

    pid = lock.owner(cluster_dir)
    if pid is None:
        return
    output.note(f"ending the coordinator, process {pid}")
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):  # it has just ended by itself
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
