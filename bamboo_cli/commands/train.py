"""``bamboo train``"""

from bamboo_cli.commands import options


def command(
    job: options.Job,
    settings: options.Settings = None,
    cluster: options.ClusterName = None,
    resume: options.Resume = None,
    json: options.Json = False,
) -> None:
    """Train on a cluster that is up, and look on.

    Ctrl-C detaches: the run goes on, and the same command again looks on again, as does `bamboo status --watch`. Where
    standard output is no terminal there is one line a step. Nothing is given back in the end: that
    does `bamboo down`, which stops the run with a checkpoint (exit code 1). Exit code 4: the run was stopped at a limit
    of its job.

    \b
    Examples:
      bamboo train job.yaml
      bamboo train job.yaml --set steps=500 --json
      bamboo train job.yaml --cluster second --resume latest

    See also: bamboo up, bamboo status, bamboo down, docs/checkpoints.md.
    """
    from bamboo_cli import clusters, output, resuming, training
    from bamboo_cli.job_file import load_job, read_text
    from bamboo_cli.recipe_check import check_recipe
    from bamboo_cli.storage_check import check_storage
    from bamboo_cli.tracker_check import check_trackers
    from bamboo_cli.views.summary import summary as view

    loaded = load_job(job, settings or ())
    path = clusters.state_file(cluster or loaded.name)
    clusters.require_up(path)
    run_id = training.run_to_join(path, loaded, resume)
    if run_id is None:
        resumes = None if resume is None else resuming.choose(loaded, path.parent.name, resume)
        check_trackers(loaded)
        check_storage(loaded)
        check_recipe(loaded)
        run_id = training.start_run(path, loaded, read_text(job), resumes)
    else:
        output.note(f"run {run_id} of this job goes on already; looking on")
    found = training.look_on(path, run_id)
    if json:
        output.json_line(found)
    else:
        output.result(view(found))
    if not found.stopped_by_down:
        training.tell_what_stays(path)
    training.check_done(found, path, job)
