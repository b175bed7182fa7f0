"""``bamboo cron list``"""

from bamboo_cli.commands import options


def command(json: options.Json = False) -> None:
    """Show the jobs on a schedule.

    When each is next, how its last night went, where its log is. Exits with 0 whatever is wrong with an entry; that is
    shown beside it.

    \b
    Examples:
      bamboo cron list
      bamboo cron list --json

    See also: bamboo cron add, bamboo status, docs/cron.md.
    """
    from bamboo_cli import output, paths
    from bamboo_cli.cron.shown import show_all
    from bamboo_cli.views.cron import entry as view

    found = show_all()
    if json:
        output.json_result(found)
        return
    for number, shown in enumerate(found):
        if number:
            output.line("")
        output.result(view(shown))
    if not found:
        output.note(f'no job is on a schedule in {paths.cron_dir()}; `bamboo cron add "0 2 * * *" JOB` puts one on')
