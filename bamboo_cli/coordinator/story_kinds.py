"""Kinds of lines of the story, as they are stored."""

from enum import StrEnum


class StoryKind(StrEnum):
    """What a line of the story is about."""

    COORDINATOR = "coordinator"
    NODE = "node"
    WORKER = "worker"
    NOTICE = "notice"
    HINT = "hint"
    LOSS = "loss"
    PREEMPTION = "preemption"
    FAILOVER = "failover"
    RECONFIGURATION = "reconfiguration"
    RESTORE = "restore"
    WAIT = "wait"
    RUN = "run"
    CHECKPOINT = "checkpoint"
    DIGEST = "digest"
    DRILL = "drill"
    HANDOVER = "handover"
    BUDGET = "budget"
    CAPACITY = "capacity"
    CLOUD = "cloud"
    REFUSAL = "refusal"
    REQUEST = "request"
    TRACKER = "tracker"
