"""``bamboo events``"""

from typing import Annotated

import typer

from bamboo_cli.commands import options


def command(
    cluster: options.Cluster = None,
    node: Annotated[str | None, typer.Option(help="Only lines about this node, such as n3, or that name it.")] = None,
    run: Annotated[str | None, typer.Option(help="Only the story of this run.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Only the newest so many.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep showing new ones until Ctrl-C.")] = False,
    json: Annotated[bool, typer.Option("--json", help="JSON; with --follow one object a line.")] = False,
) -> None:
    """Tell what happened, in order.

    Nodes that join, notices, losses, failovers, new plans, checkpoints. Those of an earlier cluster of the same name by
    --run or by its id.

    \b
    Example:
      bamboo events --node n3
    """
    from bamboo_cli import output, records
    from bamboo_cli.coordinator.reader import read_events
    from bamboo_cli.views import story as view

    path = records.state_file(cluster) if run is None else records.find_run(run, cluster)
    found = read_events(path, node=node, run=run, limit=limit)
    if not follow:
        if json:
            output.json_result(found)
        else:
            output.result(view.events(found), one_line_a_row=True)
        return
    from bamboo_cli.watching import follow_events

    follow_events(path, found, node=node, run=run, json=json)
