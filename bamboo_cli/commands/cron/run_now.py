"""``bamboo cron run-now``"""

from typing import Annotated

import typer

from bamboo_cli import completion
from bamboo_cli.commands import options


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
    anew: Annotated[bool, typer.Option("--anew", help="Begin at step 0, rather than go on.")] = False,
    json: options.Json = False,
) -> None:
    """Start a night now, exactly as cron would: same script, same environment.

    Prints what cron would mail, and ends with the night's exit code. Ctrl-C stops the run with a checkpoint and gives
    everything back. With --json the last line of standard output is one JSON object about the night.

    \b
    Example:
      bamboo cron run-now my-job

    See also: bamboo cron list, bamboo cron add, bamboo run, docs/cron.md.
    """
    from bamboo_cli import output
    from bamboo_cli.cron import nights
    from bamboo_cli.cron.removing import found
    from bamboo_cli.cron.starting import start_and_wait

    (one,) = found(entry, only_one=True)
    output.note(f"a night of {one.entry_id} begins; follow it with: tail -F '{one.log}'")
    code = start_and_wait(one, ["--anew"] if anew else [])
    if json:
        output.json_line(nights.newest(one))
    raise typer.Exit(code)
