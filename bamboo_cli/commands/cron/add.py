"""``bamboo cron add``"""

from pathlib import Path
from typing import Annotated

import typer

from bamboo_cli.commands import options


def command(
    schedule: Annotated[
        str,
        typer.Argument(
            help='Minute, hour, day of the month, month, day of the week, in quotes: "0 2 * * *"; or @daily.',
            metavar="SCHEDULE",
            show_default=False,
        ),
    ],
    job: options.Job,
    settings: options.Settings = None,
    cluster: options.ClusterName = None,
    entry_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Of the entry; by default the job's name.")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env",
            metavar="NAME[=VALUE]",
            help="A variable that nights have; its value of now is kept where only you can read it. Repeatable.",
        ),
    ] = None,
    env_file: Annotated[
        Path | None,
        typer.Option("--env-file", metavar="FILE", help="Variables, a NAME=VALUE a line; read every night."),
    ] = None,
    notify: Annotated[
        list[str] | None,
        typer.Option(
            "--notify",
            metavar="TARGET",
            help="Who is told when a night fails: a web address (gets JSON), or a command. Repeatable.",
        ),
    ] = None,
    test_notify: Annotated[bool, typer.Option("--test-notify", help="Tell them now, to see that it works.")] = False,
    anew: Annotated[bool, typer.Option("--anew", help="Begin at step 0 every night, rather than go on.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print (and so mail) nothing of nights that go well.")] = False,
    systemd: Annotated[bool, typer.Option("--systemd", help="By a timer of systemd instead of cron.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="In place of the entry with that id.")] = False,
    json: options.Json = False,
) -> None:
    """Train a job every night, or whenever the schedule says.

    A night goes on from the newest checkpoint, until all steps are done. It has no environment but what is named here;
    what would fail for want of it is refused now. Nothing is rented yet: `bamboo cron run-now` tries it.

    \b
    Examples:
      bamboo cron add "0 2 * * *" job.yaml --set max_hours=5 --notify 'mail -s bamboo me@example.org'
      bamboo cron add @daily job.yaml --id nightly --env AWS_PROFILE=training --env-file secrets.env --systemd

    See also: bamboo cron run-now, bamboo cron list, bamboo run, docs/cron.md.
    """
    from bamboo_cli import output, paths
    from bamboo_cli.cron import adding, entries, environment, notifying
    from bamboo_cli.cron.schedule import parse
    from bamboo_cli.cron.shown import show
    from bamboo_cli.errors import BambooError
    from bamboo_cli.job_file import load_job
    from bamboo_cli.views.cron import entry as view

    timed = parse(schedule)
    path = adding.absolute(job)
    variables = adding.variables(env or ())
    file = None if env_file is None else adding.absolute(env_file)
    taken = dict(variables) | (environment.read_file(Path(file)) if file is not None else {})
    loaded = load_job(Path(path), settings or (), taken)
    entry = entries.Entry(
        entry_id=entry_id or loaded.name,
        schedule=timed.text,
        starter=entries.Starter.SYSTEMD if systemd else entries.Starter.CRON,
        job=path,
        cluster=cluster or loaded.name,
        settings=tuple(settings or ()),
        environment=variables,
        env_file=file,
        notify=tuple(notify or ()),
        anew=anew,
        quiet=quiet,
    )
    paths.cluster_dir(entry.cluster)  # refuses what cannot be a name
    for target in entry.notify:
        notifying.check(target)
    if test_notify:
        news = notifying.trial(entry.entry_id, path)
        for target in entry.notify:
            if (why := notifying.notify(target, news)) is not None:
                raise BambooError(f"{notifying.shown(target)} could not be notified: {why}; nothing was added")
    adding.add(entry, loaded, replaced=replace)
    shown = show(entry)
    if json:
        output.json_result(shown)
    else:
        output.result(view(shown))
    for text in adding.advice(entry, loaded):
        output.note(text)
    output.note(f"Try it with `bamboo cron run-now {entry.entry_id}`, which does exactly what cron would do.")
