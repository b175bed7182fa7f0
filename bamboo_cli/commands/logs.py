"""``bamboo logs``"""

from typing import Annotated

import typer

from bamboo_cli.commands import options


def command(
    node: Annotated[str | None, typer.Argument(help="Only this node, such as n2.", metavar="NODE")] = None,
    cluster: options.Cluster = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="The last so many lines of each log.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep showing new ones until Ctrl-C.")] = False,
) -> None:
    """Show what the coordinator, the agents and the workers say.

    `bamboo events` tells the story; the logs have the details and the tracebacks.

    \b
    Example:
      bamboo logs n2 -f
    """
    import time

    from bamboo_cli import clusters, log_files, output
    from bamboo_cli.coordinator.reader import read_status

    path = clusters.state_file(cluster)

    def files() -> tuple[log_files.LogFile, ...]:
        return log_files.log_files(read_status(path, now=time.time()), path.parent, node)

    found = files()
    width = max((len(file.source) for file in found), default=0)
    for file in found:
        for text in log_files.last_lines(file, lines):
            output.line(f"{file.source.ljust(width)}  {text}")
    if not found:
        output.note("there are no logs yet")
    if follow:
        output.note("following; Ctrl-C ends it")
        log_files.follow(files, lambda source, text: output.line(f"{source.ljust(width)}  {text}"))
