"""What a machine's security groups let in, as far as the network of machines can tell it apart."""

import ipaddress
from typing import Any

from tests.aws.machine import Admitted

SSH_PORT = 22


def admitted(groups: list[Any], callers: tuple[str, str]) -> Admitted:
    """``groups``: moto's. ``callers``: our own addresses, as seen from a public and from a private address."""
    rules = [rule for group in groups for rule in group.ingress_rules]
    public, private = (any(_lets_in(rule, caller) for rule in rules) for caller in callers)
    return Admitted(public=public, private=private, peers=any(_is_for_peers(rule) for rule in rules))


def _lets_in(rule: Any, caller: str) -> bool:
    network = rule.ip_range.get("CidrIp")
    if network is None or ipaddress.ip_address(caller) not in ipaddress.ip_network(network):
        return False
    return rule.ip_protocol == "-1" or (rule.ip_protocol == "tcp" and rule.from_port <= SSH_PORT <= rule.to_port)


def _is_for_peers(rule: Any) -> bool:
    """Workers listen on ports of their own choice: all of them have to be open."""
    all_ports = rule.ip_protocol == "-1" or (
        rule.ip_protocol == "tcp" and rule.from_port <= 1024 < 65535 <= rule.to_port
    )
    return bool(rule.source_group) and all_ports
