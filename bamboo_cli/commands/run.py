"""``bamboo run``"""

from bamboo_cli.commands import options


def command(
    job: options.Job,
    settings: options.Settings = None,
    cluster: options.ClusterName = None,
    resume: options.Resume = None,
    yes: options.Yes = False,
    json: options.Json = False,
) -> None:
    """Rent, train, show the bill and give everything back.

    That is up, train and down in one. Everything is given back however the run ends; the exit code is 1 if it failed.
    With --json the last line of standard output is one JSON object about the run. Ctrl-C detaches: the run goes on,
    and so does the bill, until `bamboo down`.

    \b
    Example, for a script or cron:
      bamboo run job.yaml --yes --json | tail -n 1
    """
    from bamboo_cli import output, resuming, training
    from bamboo_cli.coordinator.store import state_path
    from bamboo_cli.job_file import load_job, read_text
    from bamboo_cli.renting import rent
    from bamboo_cli.teardown import bring_down
    from bamboo_cli.views.summary import summary as view

    loaded = load_job(job, settings or ())
    resumes = None if resume is None else resuming.choose(loaded, cluster or loaded.name, resume)
    path = state_path(rent(loaded, read_text(job), cluster, yes=yes, new=True))
    try:
        run_id = training.start_run(path, loaded, read_text(job), resumes)
        training.look_on(path, run_id)
    except training.DetachedError:
        raise
    except BaseException:
        bring_down(path.parent)
        raise
    bring_down(path.parent)
    found = training.summary_of(path, run_id)
    if json:
        output.json_line(found)
    else:
        output.result(view(found))
    training.check_done(found, path)
