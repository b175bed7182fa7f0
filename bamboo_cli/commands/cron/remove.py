"""``bamboo cron remove``"""

from typing import Annotated

import typer

from bamboo_cli import completion


def command(
    entry: Annotated[
        str,
        typer.Argument(
            help="The entry's id, or its job file.",
            metavar="ENTRY",
            show_default=False,
            autocompletion=completion.schedules,
        ),
    ],
) -> None:
    """Take a job off its schedule.

    Its logs go with it; checkpoints, stories and bills of its runs stay. A night that is on goes on to its end.

    \b
    Example:
      bamboo cron remove my-job

    See also: bamboo cron list, bamboo down, docs/cron.md.
    """
    from bamboo_cli import output
    from bamboo_cli.cron.removing import remove

    for removed in remove(entry):
        output.line(f"{removed.entry_id} is off its schedule")
        if removed.warning:
            output.note(removed.warning)
