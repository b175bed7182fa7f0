"""Where to ask for the next node: what each zone did to us lately, and which region the cluster lives in. Pure."""

import re
from collections import Counter
from dataclasses import replace

from bamboo_cli.coordinator.board import Board
from bamboo_cli.coordinator.entities import ZoneMemory
from bamboo_cli.coordinator.states import WANTED, NodeReason

SHORT_MEMORY_S = 120.0
"""A zone without capacity is asked last for so long."""
TAKEN_MEMORY_S = 600.0
"""A zone that took a node from us is asked late for so long."""
QUOTA_MEMORY_S = 600.0
"""A region whose quota was used up is asked last for so long: what is given back counts for some minutes more."""


def region_of(zone: str) -> str:
    """``us-east-1`` of ``us-east-1a``; zones that are named otherwise are all in one region without a name."""
    found = re.fullmatch(r"(.+-\d+)[a-z]", zone)
    return found.group(1) if found else ""


def remember(board: Board, zone: str, *, short: bool = False, took: bool = False, hinted: bool = False) -> None:
    memory = _memories(board).get(zone, ZoneMemory(zone=zone))
    if short:
        memory = replace(memory, short_at=board.now)
    if took:
        memory = replace(memory, took_at=board.now)
    if hinted:
        memory = replace(memory, hinted_at=board.now)
    _keep(board, memory)


def remember_quota(board: Board, zone: str) -> None:
    """Of all zones of the region: the quota is the region's."""
    for other in board.config.zones:
        if region_of(other) == region_of(zone):
            _keep(board, replace(_memories(board).get(other, ZoneMemory(zone=other)), quota_at=board.now))


def choose_zone(board: Board) -> str:
    """Zones with capacity first, then those that took nothing lately, then those without a hint that they may, then
    those with the fewest of our nodes."""
    ours = _ours(board)
    memories = _memories(board)

    def rank(zone: str) -> tuple[bool, bool, bool, bool, int]:
        memory = memories.get(zone, ZoneMemory(zone=zone))
        took = _lately(board, memory.took_at, TAKEN_MEMORY_S)
        hinted = _lately(board, memory.hinted_at, TAKEN_MEMORY_S)
        return is_stopped(board, zone), is_short(board, zone), took, hinted, ours[zone]

    return min(candidates(board), key=rank)


def candidates(board: Board, *, settled: bool = False) -> tuple[str, ...]:
    """The zones of the region in which nodes of the cluster live, since workers talk over private addresses; while
    none does, of the first region that may have one. ``settled``: nodes that are only asked for do not live yet.
    """
    zones = board.config.zones
    regions = tuple(dict.fromkeys(region_of(zone) for zone in zones))
    ours = Counter(region_of(zone) for zone in _ours(board, settled=settled).elements())
    lived_in = [region for region in regions if ours[region]]
    usable = [region_of(zone) for zone in zones if is_usable(board, zone)]
    home = max(lived_in, key=lambda region: ours[region]) if lived_in else (*usable, *regions)[0]
    return tuple(zone for zone in zones if region_of(zone) == home)


def is_usable(board: Board, zone: str) -> bool:
    return not is_short(board, zone) and not is_stopped(board, zone)


def is_short(board: Board, zone: str) -> bool:
    memory = _memories(board).get(zone)
    return memory is not None and _lately(board, memory.short_at, SHORT_MEMORY_S)


def is_stopped(board: Board, zone: str) -> bool:
    memory = _memories(board).get(zone)
    return memory is not None and _lately(board, memory.quota_at, QUOTA_MEMORY_S)


def _ours(board: Board, *, settled: bool = False) -> Counter[str]:
    """Zones of nodes that are there, or asked for, or of which it is not known whether they are there."""
    wanted = [node for node in board.nodes.values() if node.state in WANTED]
    unsure = [node for node in wanted if not node.instance_id and (node.asked or node.reason is NodeReason.CLOUD)]
    return Counter(node.zone for node in wanted if node.instance_id or (node in unsure and not settled))


def _memories(board: Board) -> dict[str, ZoneMemory]:
    return {memory.zone: memory for memory in board.cluster.zones}


def _keep(board: Board, memory: ZoneMemory) -> None:
    board.cluster = replace(board.cluster, zones=tuple((_memories(board) | {memory.zone: memory}).values()))


def _lately(board: Board, at: float | None, memory_s: float) -> bool:
    return at is not None and board.now - at < memory_s
