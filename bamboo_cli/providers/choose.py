"""From a job to the provider of its cloud."""

from bamboo_cli import jobs, paths
from bamboo_cli.config import JobConfig
from bamboo_cli.providers.base import Provider
from bamboo_cli.providers.local import LocalProvider


def provider_of(job: JobConfig) -> Provider:
    """Nothing is asked of the cloud yet."""
    return LocalProvider(paths.local_cloud_dir(), jobs.local_config(job))
