"""Jobs on a schedule. An entry is a job with its schedule; a night is one start of an entry. docs/cron.md."""
