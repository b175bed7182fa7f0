"""``bamboo status``"""

from typing import Annotated

import typer


def command(
    cluster: Annotated[str | None, typer.Option(help="Name of the cluster, if several are up.")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Keep showing it until Ctrl-C.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document instead of text.")] = False,
) -> None:
    """Show the cluster, its nodes and their stages, the run, and the money.

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
