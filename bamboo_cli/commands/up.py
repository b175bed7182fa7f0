"""``bamboo up``"""

import time
from typing import Annotated

import typer

from bamboo_cli.commands import options


def command(
    job: options.Job,
    settings: options.Settings = None,
    cluster: options.ClusterName = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="AWS: only show what would be asked, and whether it would be done."),
    ] = False,
    yes: options.Yes = False,
    json: options.Json = False,
) -> None:
    """Rent the nodes of a job and start its coordinator.

    The coordinator stays behind as a daemon. On a cluster that is up already it only starts the coordinator again,
    should that have died; nodes that live are taken up again and training goes on.
    Nodes cost money from now on, whether or not anything trains, until `bamboo down`.

    \b
    Examples:
      bamboo up job.yaml --dry-run
      bamboo up job.yaml --yes
      bamboo up job.yaml --cluster second --set nodes=6

    See also: bamboo train, bamboo down, bamboo check, docs/aws.md.
    """
    from bamboo_cli import output
    from bamboo_cli.aws_rehearsal import rehearse
    from bamboo_cli.coordinator.store import state_path
    from bamboo_cli.job_file import load_job, read_text
    from bamboo_cli.renting import await_rented, costing, rent
    from bamboo_cli.views.cloud import rehearsal

    loaded = load_job(job, settings or ())
    if dry_run:
        rehearsed = rehearse(loaded, cluster)
        if json:
            output.json_result(rehearsed)
        else:
            output.result(rehearsal(rehearsed))
        rehearsed.check()
        output.note(rehearsed.in_short)
        return
    cluster_dir = rent(loaded, read_text(job), cluster, yes=yes)
    status = await_rented(state_path(cluster_dir))
    if json:
        output.json_result(status)
        return
    cost = costing(status, time.time())
    output.line(f"cluster {status.name} is up with {output.plural(status.wanted_nodes, 'node')}{cost}")
    output.note(f"Train with `bamboo train {job}`; give everything back with `bamboo down --cluster {status.name}`.")
