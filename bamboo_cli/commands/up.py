"""``bamboo up``"""

from bamboo_cli.commands import options


def command(
    job: options.Job,
    settings: options.Settings = None,
    cluster: options.ClusterName = None,
    yes: options.Yes = False,
    json: options.Json = False,
) -> None:
    """Rent the nodes of a job and start its coordinator.

    The coordinator stays behind as a daemon. On a cluster that is up already it only starts the coordinator again,
    should that have died; nodes that live are taken up again and training goes on.

    \b
    Example:
      bamboo up job.yaml --yes
    """
    from bamboo_cli import output
    from bamboo_cli.coordinator.store import state_path
    from bamboo_cli.job_file import load_job, read_text
    from bamboo_cli.renting import await_rented, rent

    loaded = load_job(job, settings or ())
    cluster_dir = rent(loaded, read_text(job), cluster, yes=yes)
    status = await_rented(state_path(cluster_dir))
    if json:
        output.json_result(status)
        return
    output.line(f"cluster {status.name} is up with {output.plural(status.wanted_nodes, 'node')}")
    output.note(f"Train with `bamboo train {job}`; give everything back with `bamboo down --cluster {status.name}`.")
