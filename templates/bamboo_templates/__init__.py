"""Starter jobs and recipes that ``bamboo init`` copies, the job that ``bamboo demo`` runs, the agent's systemd unit."""

from pathlib import Path

_HERE = Path(__file__).parent

DEMO_JOB = _HERE / "jobs" / "demo.yaml"
MINIMAL_JOB = _HERE / "jobs" / "minimal.yaml"
JOB = _HERE / "jobs" / "job.yaml"
RECIPE = _HERE / "recipes" / "recipe.py"
AGENT_UNIT = _HERE / "bamboo-agent.service"
