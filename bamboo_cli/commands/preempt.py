"""``bamboo preempt``"""

from typing import Annotated

import typer

from bamboo_cli import completion
from bamboo_cli.commands import options


def command(
    node: Annotated[
        str,
        typer.Argument(help="The node to take, such as n2.", metavar="NODE", autocompletion=completion.present_nodes),
    ],
    no_notice: Annotated[bool, typer.Option("--no-notice", help="At once, without warning.")] = False,
    cluster: options.Cluster = None,
    yes: options.Yes = False,
) -> None:
    """Take a node away, as the cloud would.

    After a notice, or at once. The run goes on; what happens is told by `bamboo events`. A new node is rented in its
    place unless the job file says `local.replace: false`. On AWS a notice takes `aws.fault_injection_role`.

    \b
    Examples:
      bamboo preempt n2
      bamboo preempt n2 --no-notice --yes
      bamboo preempt n2 --cluster my-job

    See also: bamboo events, bamboo drill, docs/local-cloud.md.
    """
    import time

    from bamboo_cli import clusters, output
    from bamboo_cli.config import JobConfig
    from bamboo_cli.coordinator.reader import read_status
    from bamboo_cli.coordinator.store import RequestKind
    from bamboo_cli.errors import UsageError
    from bamboo_cli.jobs import notice_s as notice_s_of
    from bamboo_cli.views.cluster import present

    path = clusters.state_file(cluster)
    clusters.require_up(path)
    status = read_status(path, now=time.time())
    there = [found.node_id for found in present(status)]
    if node not in there:
        raise UsageError(f"there is no node {node}", next_step=f"There are: {', '.join(there) or 'none'}.")
    notice_s = None if no_notice else notice_s_of(JobConfig.model_validate(status.job))
    how = "at once" if notice_s is None else f"in {output.seconds(notice_s)}"
    output.confirm(f"Take {node} away {how}?", yes=yes)
    clusters.ask(path, RequestKind.PREEMPT, {"node_id": node, "notice_s": notice_s}, what=f"the cloud to take {node}")
    output.line(f"{node} is taken {how}; `bamboo events --node {node}` tells what follows")
