"""``bamboo cost``"""

from typing import Annotated

import typer

from bamboo_cli.commands import options


def command(
    cluster: options.Cluster = None,
    json: Annotated[
        bool, typer.Option("--json", help="JSON instead of text; money in millionths of a dollar.")
    ] = False,
) -> None:
    """Show what it cost, beside the on-demand price.

    By run, zone and node. Works with the coordinator dead, and after `bamboo down`.

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
