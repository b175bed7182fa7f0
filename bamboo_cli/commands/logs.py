"""``bamboo logs``"""

from typing import Annotated

import typer

from bamboo_cli import completion
from bamboo_cli.commands import options


def command(
    nodes: Annotated[
        list[str] | None,
        typer.Argument(help="Only these nodes, such as n2 n5.", metavar="NODE...", autocompletion=completion.all_nodes),
    ] = None,
    cluster: options.Cluster = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="The last so many lines of each log.")] = 20,
    grep: Annotated[
        str | None,
        typer.Option("--grep", "-g", metavar="PATTERN", help="Only lines that have this regular expression in them."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep showing new ones until Ctrl-C.")] = False,
) -> None:
    """Show what the coordinator, the agents and the workers say, in the order of time.

    Each line begins with who says it. Small letters in a pattern also find capital ones. `bamboo events` tells the
    story; the logs have the details and the tracebacks.

    \b
    Examples:
      bamboo logs n2 -f
      bamboo logs --grep "error|traceback" -n 100
      bamboo logs n2 n5 --lines 200 --cluster my-job

    See also: bamboo events, bamboo status, docs/terminal.md, docs/troubleshooting.md.
    """
    from bamboo_cli import clusters, log_files, output
    from bamboo_cli.coordinator.reader import read_instances
    from bamboo_cli.views.log_lines import LogLines

    path = clusters.state_file(cluster)
    wanted = log_files.search(grep) if grep is not None else None

    def files() -> tuple[log_files.LogFile, ...]:
        return log_files.log_files(read_instances(path), path.parent, nodes or ())

    found = files()
    show = LogLines(max((len(file.source) for file in found), default=0), wanted).show
    for source, text in log_files.last_lines(found, lines, wanted):
        show(source, text)
    if not found:
        output.note("there are no logs yet")
    if follow:
        output.note("following; Ctrl-C ends it")
        log_files.follow(files, show, wanted)
