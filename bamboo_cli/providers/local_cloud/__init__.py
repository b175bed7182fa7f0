"""The local cloud: a daemon that rents out groups of processes on this machine as if they were spot instances."""
