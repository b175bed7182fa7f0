"""``bamboo down``"""

from typing import Annotated

import typer

from bamboo_cli import completion
from bamboo_cli.commands import options


def command(
    cluster: options.Cluster = None,
    now: Annotated[bool, typer.Option("--now", help="Do not wait for a checkpoint.")] = False,
    all_regions: Annotated[
        bool, typer.Option("--all-regions", help="AWS: look in every region, not only in those of the job.")
    ] = False,
    cluster_id: Annotated[
        str | None,
        typer.Option(
            "--cluster-id",
            metavar="ID",
            help="AWS: whatever carries this tag, where the cluster's record is lost.",
            autocompletion=completion.cluster_ids,
        ),
    ] = None,
    yes: options.Yes = False,
    json: options.Json = False,
) -> None:
    """Give everything back, and prove that nothing is left.

    A run that is on saves a checkpoint and ends; its checkpoints, the story and the bill stay, and `bamboo run JOB
    --resume RUN` goes on from there. Exits with 1 and a list if anything could not be ended. AWS is searched by the
    cluster's tag, whatever the record says. Of a cluster that is down already, it only proves so, and asks nothing.

    \b
    Examples:
      bamboo down --yes
      bamboo down --cluster my-job --now --all-regions
      bamboo down --cluster-id my-job-3f2a1c

    See also: bamboo up, bamboo cost, bamboo check, docs/aws.md.
    """
    import time

    from bamboo_cli import clusters, output
    from bamboo_cli.bills import read_bill
    from bamboo_cli.coordinator.reader import read_status
    from bamboo_cli.errors import StateError
    from bamboo_cli.teardown import give_back, is_down, stop_in_order, sweep_by_id
    from bamboo_cli.views.bill import total_line
    from bamboo_cli.views.cluster import end_lines

    if cluster_id is not None:
        output.confirm(f"End everything in your AWS account that is tagged with cluster {cluster_id}?", yes=yes)
        swept = sweep_by_id(cluster_id, profile=None)
        if json:
            output.json_result(swept)
        else:
            output.line(f"cluster {cluster_id}: nothing is left in any region: {swept.detail}")
        return
    path = clusters.state_file(cluster)
    if all_regions or not is_down(path.parent):
        output.confirm(f"End the run and give back all nodes of cluster {path.parent.name}?", yes=yes)
    before = (lambda: None) if now else (lambda: stop_in_order(path))
    down = give_back(path.parent, before=before, all_regions=all_regions)
    if json:
        output.json_result(down)
        return
    output.line(f"cluster {down.cluster_id} is down, nothing is left: {down.detail}")
    try:
        run = read_status(path, now=time.time()).run
        if run is not None and run.state == "stopped":
            output.line("; ".join((f"run {run.run_id} is stopped", *end_lines(run))))
        output.line(total_line(read_bill(path, now=time.time()).total))
    except StateError as error:
        output.note(f"the bill cannot be read: {error.message}")
