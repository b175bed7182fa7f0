"""``bamboo cron night``: what the script of an entry starts. Not for people, who have ``run-now``."""

from typing import Annotated

import typer


def command(
    entry: Annotated[str, typer.Argument(metavar="ID")],
    anew: Annotated[bool, typer.Option("--anew")] = False,
    check: Annotated[bool, typer.Option("--check", help="Only try what can be tried.")] = False,
) -> None:
    """One night of an entry, in the environment that its script names."""
    from bamboo_cli.cron import entries

    one = entries.read(entry)
    if check:
        from bamboo_cli.cron.checking import check as check_entry

        check_entry(one)
        return
    from bamboo_cli.cron.night import run_night

    raise typer.Exit(run_night(one, anew=anew).exit_code or 0)
