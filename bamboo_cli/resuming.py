"""Which checkpoint a new run goes on from, and whether it may: its bits must be those of one undisturbed run."""

import re
from collections.abc import Callable, Iterator
from typing import TypeVar

from bamboo_trainer import storage
from bamboo_trainer.manifest import CheckpointError, Manifest, Origin, complete_steps, read_manifest

from bamboo_cli import jobs, paths, records
from bamboo_cli.config import JobConfig
from bamboo_cli.coordinator.archive import origin_of
from bamboo_cli.coordinator.reader import read_runs
from bamboo_cli.coordinator.settings import Resumes
from bamboo_cli.errors import StateError, UsageError
from bamboo_cli.recipe_file import recipe_digest
from bamboo_cli.training import LATEST

T = TypeVar("T")


def choose(job: JobConfig, cluster: str, asked: str) -> Resumes:
    """The newest complete checkpoint of the run ``asked``, or of the newest run that has one (``latest``).

    Raises StateError when there is none or the run goes on, UsageError when the job may not go on from it.
    """
    if asked == LATEST:
        found = _or_state_error(lambda: _latest(job, cluster))
        if found is None:
            raise StateError(
                f"no run of cluster {cluster} has a complete checkpoint",
                next_step="Without --resume it begins at step 0.",
            )
    else:
        found = _or_state_error(lambda: _of_run(job, cluster, asked))
    url, manifest = found
    check(job, manifest)
    return Resumes(run_id=manifest.run_id, step=manifest.step, url=url)


def newest(job: JobConfig, cluster: str) -> Manifest | None:
    """Of the newest complete checkpoint of the newest run that has one; whether the job may go on from it, is not
    asked. Raises StateError."""
    found = _or_state_error(lambda: _latest(job, cluster))
    return None if found is None else found[1]


def _or_state_error(look: Callable[[], T]) -> T:
    try:
        return look()
    except (OSError, CheckpointError) as error:
        raise StateError(f"the checkpoints to go on from cannot be read: {error}") from error


def check(job: JobConfig, manifest: Manifest) -> None:
    """Raises UsageError with all that differs, and when no step is left to do."""
    check_same(job, manifest)
    run = f"run {manifest.run_id}"
    if job.steps <= manifest.step + 1:
        raise UsageError(
            f"{run} has done {manifest.step + 1} steps, and the job asks for {job.steps}",
            next_step="Ask for more, such as --set steps=" + str(2 * (manifest.step + 1)) + ".",
        )


def check_same(job: JobConfig, manifest: Manifest) -> None:
    """Raises UsageError with all that differs, of what the bits depend on."""
    run = f"run {manifest.run_id}"
    if manifest.origin is None:
        raise UsageError(
            f"{run} cannot be gone on with: an older Bamboo wrote its checkpoint, and not what it was trained with"
        )
    other = list(_differences(job, manifest.seed, manifest.origin))
    if other:
        raise UsageError(
            f"{run} cannot be gone on with by this job: {'; '.join(other)}",
            next_step="Give it the values of then, which the bits depend on; or begin anew, without --resume.",
        )


def _differences(job: JobConfig, seed: int, then: Origin) -> Iterator[str]:
    now = origin_of(jobs.run_spec(job, "", "", recipe_digest(job.recipe)))
    if now.recipe.partition(":")[2] != then.recipe.partition(":")[2]:
        yield f"its recipe was {then.recipe}, not {now.recipe}"
    elif now.recipe_sha256 != then.recipe_sha256:
        changed = now.recipe == then.recipe
        yield f"the recipe {now.recipe} has changed since" if changed else f"its recipe was {then.recipe}"
    pairs = (
        ("recipe_options", then.recipe_options, now.recipe_options),
        ("seed", seed, job.seed),
        ("global_batch_size", then.num_microbatches * then.microbatch_size, job.global_batch_size),
        ("microbatch_size", then.microbatch_size, now.microbatch_size),
    )
    for key, old, new in pairs:
        if old != new:
            yield f"{key} was {old}, not {new}"


def _of_run(job: JobConfig, cluster: str, run_id: str) -> tuple[str, Manifest]:
    """Its state file may be gone: then it is looked for where this job, or one without ``checkpoint.url``, has them."""
    places = [storage.join(base, run_id) for base in _bases(job, cluster)]
    try:
        run = next(run for run in read_runs(records.find_run(run_id, None)) if run.run_id == run_id)
    except StateError as error:
        known = f"{error.message}; "
    else:
        if run.ended_at is None:
            raise StateError(
                f"run {run_id} goes on, as far as is known",
                next_step="Look on with `bamboo status --watch`, or end it with `bamboo down`.",
            )
        known = ""
        places.insert(0, str(run.spec["checkpoint_url"]))
    for url in dict.fromkeys(places):
        found = _newest(url, run_id)
        if found is not None:
            return url, found
    raise StateError(
        f"{known}there is no complete checkpoint of run {run_id} in {' or '.join(dict.fromkeys(places))}",
        next_step="`--resume latest` takes the newest run that has one; without --resume a run begins at step 0.",
    )


def _latest(job: JobConfig, cluster: str) -> tuple[str, Manifest] | None:
    """By the state files; without one that helps, by the folders of checkpoints that bear the cluster's name."""
    for run in records.all_runs(cluster):
        url = str(run.spec["checkpoint_url"])
        found = None if run.ended_at is None else _newest(url, run.run_id)
        if found is not None:
            return url, found
    by_age = []
    for base in _bases(job, cluster):
        for run_id in storage.folders(base):
            if re.fullmatch(rf"{re.escape(cluster)}-[0-9a-f]{{6}}-\d+", run_id):
                found = _newest(storage.join(base, run_id), run_id)
                by_age += [(found.created_at, storage.join(base, run_id), found)] if found is not None else []
    if not by_age:
        return None
    _, url, manifest = max(by_age, key=lambda entry: entry[:2])
    return url, manifest


def _bases(job: JobConfig, cluster: str) -> list[str]:
    """Folders that hold a folder of checkpoints for each run."""
    own = (paths.cluster_dir(cluster) / "checkpoints").absolute().as_uri()
    return [own] if job.checkpoint.url is None else [job.checkpoint.url, own]


def _newest(url: str, run_id: str) -> Manifest | None:
    steps = complete_steps(url, run_id)
    return read_manifest(url, steps[0], run_id) if steps else None
