"""Starter jobs and recipes for ``bamboo init``, the job that ``bamboo demo`` runs, what goes to other machines."""

from pathlib import Path

_HERE = Path(__file__).parent

DEMO_JOB = _HERE / "jobs" / "demo.yaml"
MINIMAL_JOB = _HERE / "jobs" / "minimal.yaml"
JOB = _HERE / "jobs" / "job.yaml"
AWS_JOB = _HERE / "jobs" / "aws.yaml"
RECIPE = _HERE / "recipes" / "recipe.py"
AGENT_UNIT = _HERE / "bamboo-agent.service"
AWS_POLICY = _HERE / "aws-policy.json"
"""What Bamboo has to be allowed in an AWS account, and no more."""
CRON_START = _HERE / "cron-start.sh"
CRON_SERVICE = _HERE / "bamboo-cron.service"
CRON_TIMER = _HERE / "bamboo-cron.timer"
