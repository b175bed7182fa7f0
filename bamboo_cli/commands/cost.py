"""``bamboo cost``"""

from typing import Annotated

import typer


def command(
    cluster: Annotated[str | None, typer.Option(help="Name of the cluster, if several are up.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document; money in millionths of a dollar.")] = False,
) -> None:
    """Show what the cluster has cost, by run, zone and node, beside the on-demand price.

    Works with the coordinator dead, and after `bamboo down`.

    \b
    Example:
      bamboo cost --json
    """
    import time

    from bamboo_cli import clusters, output
    from bamboo_cli.bills import read_bill
    from bamboo_cli.views import bill as view

    found = read_bill(clusters.state_file(cluster), now=time.time())
    if json:
        output.json_result(found)
    else:
        output.result(view.bill(found))
