"""What security groups let in, as rules of nftables on the bridge that all machines hang on.

Who may not begin a connection gets no answer, as on EC2. Only beginnings are looked at: whoever was let in is answered.
https://wiki.nftables.org/wiki-nftables/index.php/Bridge_filtering
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

ALL_PORTS = (0, 65535)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    sources: tuple[str, ...]
    """Addresses or blocks of them."""
    ports: tuple[int, int]
    """First and last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """One machine's."""

    addresses: tuple[str, ...]
    rules: tuple[Rule, ...]


def rules_of(groups: Sequence[Any], members: Sequence[Any]) -> tuple[Rule, ...]:
    """``groups``: moto's, of one instance; ``members``: moto's instances that live. A rule that names a group means
    its members."""
    found = []
    for rule in (rule for group in groups for rule in group.ingress_rules):
        ports = _ports(rule)
        if ports is None:
            continue
        named = (rule.source_group or {}).get("GroupId")
        sources = [m.private_ip for m in members if named in [group.id for group in m.security_groups]] if named else []
        if block := (rule.ip_range or {}).get("CidrIp"):
            sources.append(block)
        if sources:
            found.append(Rule(sources=tuple(sources), ports=ports))
    return tuple(found)


def ruleset(table: str, gates: Sequence[Gate]) -> str:
    """For ``nft -f -``: in place of what the table held before, at once."""
    chains = [f"chain to_{n} {{\n{_accepts(gate)}drop\n}}\n" for n, gate in enumerate(gates)]
    ways = [f"ip daddr {{ {', '.join(gate.addresses)} }} jump to_{n}\n" for n, gate in enumerate(gates)]
    begins = "ether type ip ip protocol tcp tcp flags & (syn | ack) == syn jump begun\n"
    hooks = [
        f"chain {h} {{ type filter hook {h} priority 0; policy accept;\n{begins}}}\n" for h in ("forward", "output")
    ]
    whole = f"{''.join(chains)}chain begun {{\n{''.join(ways)}}}\n{''.join(hooks)}"
    return f"add table bridge {table}\ndelete table bridge {table}\ntable bridge {table} {{\n{whole}}}\n"


def _accepts(gate: Gate) -> str:
    return "".join(
        f"ip saddr {{ {', '.join(rule.sources)} }} tcp dport {rule.ports[0]}-{rule.ports[1]} accept\n"
        for rule in gate.rules
    )


def _ports(rule: Any) -> tuple[int, int] | None:
    """None: it is not about TCP."""
    if rule.ip_protocol == "-1":
        return ALL_PORTS
    return (int(rule.from_port), int(rule.to_port)) if rule.ip_protocol == "tcp" else None
