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

    That is up, train and down in one. Everything is given back however the run ends; the exit code is 1 if it failed or
    was stopped by `bamboo down`, 4 if it was stopped at a limit of its job (`max_cost_usd`, `max_hours`, `deadline`).
    With --json the last line of standard output is one JSON object about the run. SIGTERM and SIGHUP stop the run with
    a checkpoint and give everything back. Ctrl-C detaches: the run goes on, and so does the bill, until `bamboo down`.

    \b
    Examples (for cron there is `bamboo cron`):
      bamboo run job.yaml
      bamboo run job.yaml --yes --json | tail -n 1
      bamboo run job.yaml --yes --cluster second --set steps=500
      bamboo run job.yaml --resume latest

    See also: bamboo up, bamboo train, bamboo down, bamboo cron, docs/tutorial.md.
    """
    from bamboo_cli import output, resuming, training
    from bamboo_cli.job_file import load_job, read_text
    from bamboo_cli.views.summary import summary as view
    from bamboo_cli.whole_run import run_and_give_back

    loaded = load_job(job, settings or ())
    resumes = None if resume is None else resuming.choose(loaded, cluster or loaded.name, resume)
    ended = run_and_give_back(loaded, read_text(job), cluster, resumes, yes=yes)
    if ended.run_id is None:
        if json:
            output.json_line({"run_id": None, "state": "stopped", "reason": "a signal came before the run had begun"})
        ended.check()
        return
    found = training.summary_of(ended.path, ended.run_id)
    if json:
        output.json_line(found)
    else:
        output.result(view(found))
        output.line(f"\nNothing is left running ({ended.down.detail}).")
    ended.check()
    training.check_done(found, ended.path, job)
