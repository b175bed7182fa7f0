"""The node's daemon: preemption notices, worker processes, and one resumable link to the coordinator."""
