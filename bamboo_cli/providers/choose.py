"""From a job, or the name of a cloud, to its provider. Nothing is asked of the cloud yet."""

from bamboo_cli import jobs, paths
from bamboo_cli.config import JobConfig
from bamboo_cli.errors import StateError
from bamboo_cli.providers.base import Provider
from bamboo_cli.providers.local import LocalConfig, LocalProvider


def provider_of(job: JobConfig) -> Provider:
    return LocalProvider(paths.local_cloud_dir(), jobs.local_config(job))


def provider_of_cloud(cloud: str) -> Provider:
    """Enough to list and to terminate, not to rent. Raises StateError for a cloud that this Bamboo does not know."""
    if cloud != "local":
        raise StateError(f"this Bamboo knows no cloud {cloud}", next_step="Upgrade with `pip install -U bamboo-train`.")
    return LocalProvider(paths.local_cloud_dir(), LocalConfig(zones=()))
