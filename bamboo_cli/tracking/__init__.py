"""Experiment trackers: what is on record of a run, carried over to where people compare runs. See docs/trackers.md."""
