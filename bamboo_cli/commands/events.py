"""``bamboo events``"""

from typing import Annotated

import typer

from bamboo_cli import completion
from bamboo_cli.commands import options


def command(
    cluster: options.Cluster = None,
    node: Annotated[
        str | None,
        typer.Option(
            metavar="NODE",
            help="Only lines about this node, such as n3, or that name it, and what its loss led to.",
            autocompletion=completion.all_nodes,
        ),
    ] = None,
    run: Annotated[
        str | None, typer.Option(metavar="RUN", help="Only the story of this run.", autocompletion=completion.runs)
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            metavar="NODE",
            help="The loss of this node step by step, with times; or `latest`, or `all`.",
            autocompletion=completion.lost_nodes,
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Only the newest so many.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep showing new ones until Ctrl-C.")] = False,
    json: Annotated[bool, typer.Option("--json", help="JSON; with --follow one object a line.")] = False,
) -> None:
    """Tell what happened, in order.

    Nodes that join, notices, losses, failovers, new plans, checkpoints. Those of an earlier cluster of the same name by
    --run or by its id. --loss tells one preemption from its first sign until all is whole again, with the commits
    around it; where the newest cluster had none, it names the run that did.

    \b
    Examples:
      bamboo events --node n3
      bamboo events --loss latest
      bamboo events -n 20 --follow
      bamboo events --run my-job-3f2a1c-1 --cluster my-job

    See also: bamboo logs, bamboo trace, docs/terminal.md, docs/coordinator.md.
    """
    from bamboo_cli import output, records, stories
    from bamboo_cli.coordinator.reader import read_events
    from bamboo_cli.errors import UsageError
    from bamboo_cli.views import story as view

    path = records.state_file(cluster) if run is None else records.find_run(run, cluster)
    if loss is not None:
        if follow or node is not None:
            raise UsageError("--loss goes with neither --follow nor --node", next_step="It names its node itself.")
        told = stories.read_losses(path, loss, run)
        if json:
            output.json_result(told)
        else:
            output.result(view.losses(told), one_line_a_row=True)
        if not told and (elsewhere := stories.earlier_loss(path, loss, run)):
            output.note(elsewhere)
        return
    if not follow:
        found = read_events(path, run=run, limit=limit) if node is None else stories.read_node(path, node, run, limit)
        if json:
            output.json_result(found)
        else:
            output.result(view.events(found), one_line_a_row=True)
        return
    from bamboo_cli.watching import follow_events

    found = read_events(path, node=node, run=run, limit=limit)
    follow_events(path, found, node=node, run=run, json=json)
