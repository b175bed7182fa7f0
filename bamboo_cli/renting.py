"""From a job to nodes that are being rented: the price is agreed and the recipe tried, then the coordinator acts."""

from pathlib import Path

from bamboo_cli import clusters, output, paths
from bamboo_cli.config import JobConfig
from bamboo_cli.errors import StateError
from bamboo_cli.preview import preview
from bamboo_cli.recipe_check import check_recipe


def rent(job: JobConfig, job_text: str, cluster: str | None, *, yes: bool, new: bool = False) -> Path:
    """The folder of the cluster, whose coordinator now runs. ``new``: refuse one that is up already.

    Raises StateError; UsageError (recipe, not confirmed) before anything is rented.
    """
    name = cluster or job.name
    is_up = _is_up(name, new=new)
    if not is_up:
        price = preview(job).spot_usd_per_hour
        output.confirm(
            f"Rent {output.plural(job.num_nodes, 'node')} on {job.cloud} for {output.usd(price)} an hour?", yes=yes
        )
        check_recipe(job)
        is_up = _is_up(name, new=new)  # another command may have been faster meanwhile
    cluster_dir = clusters.open_or_create(job, job_text, cluster)
    try:
        started = clusters.ensure_coordinator(cluster_dir)
    except KeyboardInterrupt:
        output.note(f"Nodes may be rented already; `bamboo down --cluster {name}` gives everything back.")
        raise
    if started and is_up:
        output.note("the coordinator was not running; it was started again")
    return cluster_dir


def _is_up(name: str, *, new: bool) -> bool:
    found = clusters.is_up(paths.cluster_dir(name))
    if found and new:
        raise StateError(
            f"cluster {name} is up already",
            next_step="Train on it with `bamboo train`, end it with `bamboo down`, or name another with --cluster.",
        )
    return found
