"""Whether a run lost no work: its ledger, its files, and steps of it computed again. See docs/verify.md."""
