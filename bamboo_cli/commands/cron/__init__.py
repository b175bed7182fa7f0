"""``bamboo cron``: jobs on a schedule."""

import typer

from bamboo_cli.commands.cron import add, list, night, remove, run_now
from bamboo_cli.help_end import help_end

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="""Train a job on a schedule, night after night.

    Each night goes on from the newest checkpoint, gives everything back, and tells how it went. Started by cron, or by
    a timer of systemd.

    \b
    Example:
      bamboo cron add "0 2 * * *" job.yaml --set max_hours=5
      bamboo cron list

    See also: bamboo run, docs/cron.md.
    """,
)
for _name, _command in {"add": add, "list": list, "remove": remove, "run-now": run_now}.items():
    app.command(_name, epilog=help_end(_command.command))(_command.command)
app.command("night", hidden=True)(night.command)
