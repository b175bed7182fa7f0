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

    By run, zone and node. Works with the coordinator dead, and after `bamboo down`; --cluster also takes the id of an
    earlier cluster of the same name.

    \b
    Example:
      bamboo cost --json
    """
    import time

    from bamboo_cli import output, records
    from bamboo_cli.bills import read_bill
    from bamboo_cli.views import bill as view

    path = records.state_file(cluster)
    found = read_bill(path, now=time.time())
    if json:
        output.json_result(found)
    else:
        output.result(view.bill(found))
        if path.stem == "state" and (earlier := records.put_aside(path)):
            output.note(f"Earlier clusters of this name, for --cluster: {', '.join(earlier)}")
