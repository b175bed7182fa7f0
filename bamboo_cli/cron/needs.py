"""What a job needs of the environment that a shell has and cron has not. Pure: names of variables, never values."""

from collections.abc import Iterable, Mapping

from bamboo_cli.config import JobConfig
from bamboo_cli.errors import UsageError
from bamboo_cli.job_mistakes import leaf_keys

STORES = {
    ("s3:", "s3a:"): ("AWS_",),
    ("gs:", "gcs:"): ("GOOGLE_", "GCLOUD_", "CLOUDSDK_"),
    ("abfs:", "abfss:", "az:", "adl:"): ("AZURE_",),
}
"""Variables by their first letters, that the store of such an address is opened with."""
OVERRULED_BY_A_PROFILE = frozenset(
    ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
)
TEMPORARY = "AWS_SESSION_TOKEN"
ON_THE_WAY = frozenset(
    name
    for upper in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")
    for name in (upper, upper.lower())
) | {
    "AWS_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "PYTHONPATH",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "TZ",
}
"""May matter to any job."""


def check(job: JobConfig, shell: Mapping[str, str], taken: Iterable[str], copied: Iterable[str]) -> None:
    """``taken``: names of variables that nights will have; ``copied``: those of them whose value of now is kept.

    Raises UsageError when credentials would be missing, or be another account's.
    """
    if TEMPORARY in copied:
        raise UsageError(
            f"{TEMPORARY} is of temporary credentials, which will have run out by the time cron starts the job",
            next_step="Name a profile that renews itself (`aws.profile`), or write keys that last into an --env-file.",
        )
    missing = sorted(credentials_of(job, shell) - set(taken))
    if missing:
        raise UsageError(
            f"cron would not have {', '.join(missing)}, which this shell has and the job's credentials depend on",
            next_step=f"Name them: --env {missing[0]} keeps the value of now where only you can read it, --env-file "
            "FILE is read every night; or `unset` them, and name an `aws.profile` in the job file.",
        )


def credentials_of(job: JobConfig, shell: Mapping[str, str]) -> set[str]:
    """Variables of the shell that decide who the job is to its cloud and to the store of its checkpoints."""
    url = job.checkpoint.url or ""
    firsts = {first for schemes, names in STORES.items() if url.startswith(schemes) for first in names}
    found = {name for name in shell if name.startswith(tuple(firsts))} if firsts else set()
    if job.cloud == "aws":
        overruled = OVERRULED_BY_A_PROFILE if job.on_aws.profile else frozenset()
        found |= {name for name in shell if name.startswith("AWS_")} - overruled
    return found - ON_THE_WAY


def left_behind(shell: Mapping[str, str], taken: Iterable[str]) -> tuple[str, ...]:
    """What else may matter, and nights will not have: keys of the job, proxies, certificates."""
    keys = {"BAMBOO_" + "__".join(key).upper() for key in leaf_keys(JobConfig)}
    return tuple(sorted((set(shell) & (keys | ON_THE_WAY)) - set(taken)))
