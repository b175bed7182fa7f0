"""``bamboo status``"""

from typing import Annotated

import typer

from bamboo_cli.commands import options


def command(
    cluster: options.Cluster = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Keep showing it until Ctrl-C.")] = False,
    json: options.Json = False,
) -> None:
    """Show the nodes and their stages, the run and the money.

    Works with the coordinator dead: it reads the state file.

    \b
    Example:
      bamboo status --watch
    """
    import time

    from bamboo_cli import clusters, output
    from bamboo_cli.coordinator.reader import read_status
    from bamboo_cli.views import cluster as view

    path = clusters.state_file(cluster)
    now = time.time()
    if json:
        output.json_result(read_status(path, now=now))
    elif watch:
        from bamboo_cli.watching import watch_cluster

        watch_cluster(path)
    else:
        output.result(view.status(read_status(path, now=now), now))
