"""Whether a job fits into its own limits, before anything is rented. Pure."""

from datetime import datetime

from bamboo_cli import output
from bamboo_cli.config import JobConfig
from bamboo_cli.errors import UsageError

LEAST_S = 60.0
"""What clouds bill at least of an instance (EC2, GCE)."""


def check_budget(job: JobConfig, usd_per_hour: float, *, now: float) -> str:
    """``usd_per_hour``: of all nodes. What there is to say of a limit of money, or nothing. Raises UsageError for what
    cannot fit."""
    if job.deadline is not None and job.deadline.timestamp() <= now:
        when = datetime.fromtimestamp(job.deadline.timestamp()).isoformat(" ", "minutes")
        raise UsageError(
            f"the job's `deadline` was {when}, this machine's time", next_step="Give a later one, or none."
        )
    if job.max_cost_usd is None or usd_per_hour <= 0:
        return ""
    lasts_s = job.max_cost_usd / usd_per_hour * 3600.0
    nodes, price = output.plural(job.num_nodes, "node"), output.usd(usd_per_hour)
    if lasts_s < LEAST_S:
        raise UsageError(
            f"`max_cost_usd` {job.max_cost_usd:g} pays {nodes} at {price} an hour for {lasts_s:.0f} s, and a minute is "
            "the least that is billed",
            next_step="Allow more, or take fewer or cheaper nodes; `bamboo plan` shows what they cost.",
        )
    return f"`max_cost_usd` {job.max_cost_usd:g} pays {nodes} for about {output.seconds(lasts_s)} at that price"
