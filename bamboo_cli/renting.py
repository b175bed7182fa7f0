"""From a job to nodes that are being rented: the price is agreed and the recipe tried, then the coordinator acts."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

from bamboo_cli import clusters, coming_up, output, paths
from bamboo_cli.aws_quota import quota_warnings
from bamboo_cli.budget_check import check_budget
from bamboo_cli.config import JobConfig
from bamboo_cli.errors import DetachedError, SignalledError, StateError
from bamboo_cli.market import market_of, settle, too_dear
from bamboo_cli.preview import preview, storage_warnings
from bamboo_cli.recipe_check import check_recipe, missing_packages
from bamboo_cli.signals import Terminated
from bamboo_cli.storage_check import check_storage
from bamboo_cli.teardown import end_what_is_left
from bamboo_cli.tracker_check import check_trackers

if TYPE_CHECKING:
    from bamboo_cli.coordinator.status import ClusterStatus


def rent(job: JobConfig, job_text: str, cluster: str | None, *, yes: bool, new: bool = False) -> Path:
    """The folder of the cluster, whose coordinator now runs. ``new``: refuse one that is up already.

    Raises StateError, LeftBehindError; UsageError (recipe, not confirmed), BastionError before anything is rented.
    """
    name = cluster or job.name
    try:
        is_up, job = _agree(job, name, yes=yes, new=new)
    except (KeyboardInterrupt, Terminated) as signalled:
        code = signalled.exit_code if isinstance(signalled, Terminated) else 130
        raise SignalledError("interrupted; nothing was rented", exit_code=code) from None
    if is_up and (said := otherwise(job, name)):
        output.note(said)
    end_what_is_left(paths.cluster_dir(name))
    cluster_dir = clusters.open_or_create(job, job_text, cluster)
    try:
        started = clusters.ensure_coordinator(cluster_dir)
    except KeyboardInterrupt:
        raise _may_be_rented(name) from None
    if started and is_up:
        output.note("the coordinator was not running; it was started again")
    return cluster_dir


def await_rented(path: Path) -> "ClusterStatus":
    """``coming_up.await_nodes``. Raises DetachedError after Ctrl-C (the nodes go on booting), StateError."""
    try:
        return coming_up.await_nodes(path)
    except KeyboardInterrupt:
        raise _may_be_rented(path.parent.name) from None


def costing(status: "ClusterStatus", now: float) -> str:
    """What goes on until somebody ends it."""
    if not status.microusd_per_hour:
        return ""
    said = f", which cost {output.usd(status.microusd_per_hour / 1e6)} an hour until they are given back"
    if status.gives_back_at is None:
        return said
    return f"{said}, which happens by itself after {output.seconds(max(0.0, status.gives_back_at - now))} without a run"


def _may_be_rented(name: str) -> DetachedError:
    return DetachedError(
        f"interrupted; the nodes of cluster {name} go on booting, and cost money",
        next_step=f"Look with `bamboo status --cluster {name}`; "
        f"give everything back with `bamboo down --cluster {name}`.",
    )


def _agree(job: JobConfig, name: str, *, yes: bool, new: bool) -> tuple[bool, JobConfig]:
    """Whether the cluster is up, and the job with its zones. A cluster that is not is agreed on, and the job tried,
    before anything is rented."""
    is_up = _is_up(name, new=new)
    if not is_up:
        market = market_of(job)
        price = preview(job, market=market).spot_usd_per_hour
        if said := check_budget(job, price, now=time.time()):
            output.note(said)
        check_bastion(job)
        if said := too_dear(job, market):
            output.note(f"{said}; nodes are rented when a price has fallen")
        for said in (*storage_warnings(job), *quota_warnings(job)):
            output.note(said)
        output.confirm(
            f"Rent {output.plural(job.num_nodes, 'node')} on {job.cloud} for {output.usd(price)} an hour?", yes=yes
        )
        job = settle(job, market)
        check_trackers(job)
        check_storage(job)
        missing = [] if job.cloud == "local" else missing_packages()
        if missing:  # nodes have their own
            output.note(f"the recipe was not tried: {', '.join(missing)} is not installed on this machine")
        else:
            check_recipe(job)
        is_up = _is_up(name, new=new)  # another command may have been faster meanwhile
    return is_up, job


def otherwise(job: JobConfig, name: str) -> str:
    """What the job says of nodes that the cluster, which is up, was not made with; empty: nothing."""
    from bamboo_cli.coordinator.reader import read_status
    from bamboo_cli.coordinator.store import state_path

    status = read_status(state_path(paths.cluster_dir(name)), now=time.time())
    made, asked = settle(JobConfig.model_validate(status.job), ()), settle(job, ())  # zones were settled on when made
    keys = [f"`{key}`" for key in ("cloud", "local", "aws") if getattr(asked, key) != getattr(made, key)]
    if asked.num_nodes != status.wanted_nodes:
        keys.append(output.plural(asked.num_nodes, "node"))
    if not keys:
        return ""
    return (
        f"cluster {name} is up already with {output.plural(status.wanted_nodes, 'node')}, and stays as it was made; "
        f"what this job says otherwise ({', '.join(keys)}) counts from the next `bamboo up` after `bamboo down`"
    )


def check_bastion(job: JobConfig) -> None:
    """Machines that nobody can get to are not worth their money. Raises BastionError."""
    if job.cloud == "aws" and job.on_aws.bastion is not None:
        from bamboo_cli.remote import bastion

        bastion.connect(job.on_aws.bastion).close()


def _is_up(name: str, *, new: bool) -> bool:
    found = clusters.is_up(paths.cluster_dir(name))
    if found and new:
        raise StateError(
            f"cluster {name} is up already",
            next_step="Train on it with `bamboo train`, end it with `bamboo down`, or name another with --cluster.",
        )
    return found
