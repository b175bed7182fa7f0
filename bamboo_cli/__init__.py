"""Everything that decides and talks to clouds: the ``bamboo`` command and the coordinator. Never imports torch."""
