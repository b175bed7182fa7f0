"""The pipeline trainer: what runs on the accelerators, and the pure planning code that decides what runs there."""
