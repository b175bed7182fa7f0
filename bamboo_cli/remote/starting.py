"""The steps from a machine that can train to an agent that is linked, on every connection. Pure."""

import shlex
from string import Template

from bamboo_cli.remote.facts import Facts, agent_check
from bamboo_cli.remote.steps import PYTHON, Place, Step

AGENT_WORDS = "agent of node"
"""What it says first."""


def starting(facts: Facts, place: Place, config_text: str) -> tuple[Step, ...]:
    """On every connection: the agent is told where to go, started unless it runs, and comes over to this one."""
    steps = [_config(config_text)]
    if not facts.agent_runs:
        steps.append(_systemd_agent(facts, place) if facts.uses_systemd else _plain_agent(place))
    return (*steps, _link())


def _config(text: str) -> Step:
    """It holds the cluster's secret."""
    return Step(
        name="config",
        doing="writing the agent's file",
        script="umask 077 && cat > config.json.new && mv config.json.new config.json",
        timeout_s=60,
        text=text,
    )


def _plain_agent(place: Place) -> Step:
    """It may have been started since we looked, by an attempt whose connection broke: of two, one would be lost."""
    return Step(
        name="agent",
        doing="starting the agent",
        script=f"""
if {agent_check(place.unit)}; then exit 0; fi
begin=$(wc -c 2>/dev/null < agent.log || echo 0)
BAMBOO_NODE_CONFIG="$PWD/config.json" setsid {PYTHON} -m bamboo_agent >> agent.log 2>&1 < /dev/null &
echo $! > agent.pid
{_first_word('kill -0 "$(cat agent.pid)" 2>/dev/null')}
""",
        timeout_s=90,
        advice="Its log is agent.log in the node's folder.",
    )


def _systemd_agent(facts: Facts, place: Place) -> Step:
    from bamboo_templates import AGENT_UNIT

    unit, sudo = shlex.quote(place.unit), facts.sudo
    text = Template(AGENT_UNIT.read_text(encoding="utf-8")).substitute(
        node_id=place.node_id, cluster_id=place.cluster_id, user=facts.user, root=facts.root
    )
    return Step(
        name="agent",
        doing="starting the agent",
        script=f"""
begin=$(wc -c 2>/dev/null < agent.log || echo 0)
cat > agent.service
{sudo}install -m 0644 agent.service /etc/systemd/system/{unit}
{sudo}systemctl daemon-reload
{sudo}systemctl enable {unit}
{sudo}systemctl restart {unit}
{_first_word(f"systemctl is-active --quiet {unit}")}
""",
        timeout_s=90,
        text=text,
        advice=f"`systemctl status {place.unit}` on the machine says more; its log is agent.log in the node's folder.",
    )


def _first_word(alive: str) -> str:
    """It has read its file, and imported all that it needs."""
    return f"""
for _ in $(seq 120); do
    if tail -c +$((begin + 1)) agent.log 2>/dev/null | grep -q {shlex.quote(AGENT_WORDS)}; then exit 0; fi
    if ! {alive}; then break; fi
    sleep 0.5
done
echo "the agent did not start:"; tail -n 20 agent.log
exit 1
"""


def _link() -> Step:
    """An SSH session whose cable was cut lives on at the machine's end, and so does the agent's link in it."""
    return Step(
        name="link",
        doing="linking the agent",
        script="""
started() { awk '{print $22}' "/proc/$1/stat" 2>/dev/null; }
here=$$
while [ "$here" -gt 1 ]; do
    case "$(cat "/proc/$here/comm")" in sshd*) break;; esac
    here=$(awk '/^PPid:/ {print $2}' "/proc/$here/status")
done
before=$(cat session 2>/dev/null || true)
printf '%s %s\\n' "$here" "$(started "$here")" > session
set -- $before
if [ $# = 2 ] && [ "$1" != "$here" ] && [ "$(started "$1")" = "$2" ]; then kill "$1" || true; fi
""",
        timeout_s=60,
    )
