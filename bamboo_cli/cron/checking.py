"""What is tried when an entry is added, by the script and in the environment that nights will have."""

from bamboo_cli import output, paths
from bamboo_cli.config import JobConfig
from bamboo_cli.cron.entries import Entry
from bamboo_cli.cron.environment import enter, load_job_of
from bamboo_cli.errors import CloudError, CredentialsError
from bamboo_cli.storage_check import check_storage


def check(entry: Entry) -> None:
    """Rents nothing. Raises BambooError: a night would fail as well."""
    enter(entry)
    job = load_job_of(entry)
    if job.cloud == "aws":
        _check_aws(job)
    check_storage(job)


def _check_aws(job: JobConfig) -> None:
    """Raises CredentialsError. A network that is down now may be up by night."""
    from bamboo_cli import jobs
    from bamboo_cli.providers.aws import AwsProvider
    from bamboo_cli.providers.aws_cloud import operations

    provider = AwsProvider(paths.clusters_dir(), jobs.aws_settings(job))
    try:
        provider.calls.ask(operations.WHO_AM_I, job.on_aws.regions[0])
    except CredentialsError:
        raise
    except CloudError as error:
        output.note(f"whether AWS will know the credentials could not be asked: {error.message}")
