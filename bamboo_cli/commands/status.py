"""``bamboo status``"""

from typing import Annotated

import typer

from bamboo_cli.commands import options


def command(
    cluster: options.Cluster = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Keep showing it until Ctrl-C.")] = False,
    nodes: Annotated[bool, typer.Option("--nodes", help="A line for every node, however many there are.")] = False,
    json: options.Json = False,
) -> None:
    """Show the run, the pipelines, the nodes and the money.

    Works with the coordinator dead: it reads the state file. --watch is one screen that fits any terminal; where
    standard output is no terminal, it is a line now and then, and the events.

    \b
    Examples:
      bamboo status
      bamboo status --watch --cluster my-job
      bamboo status --json

    See also: bamboo events, bamboo logs, bamboo cost, docs/terminal.md.
    """
    import time

    from bamboo_cli import clusters, output
    from bamboo_cli.coordinator.reader import read_status
    from bamboo_cli.views import cluster as view

    path = clusters.state_file(cluster)
    now = time.time()
    if json:
        output.json_result(view.brief(read_status(path, now=now)))
    elif watch:
        from bamboo_cli.watching import watch_cluster

        watch_cluster(path)
    else:
        output.result(view.status(read_status(path, now=now), now, every_node=nodes), one_line_a_row=True)
