"""Programs of the host, each run in a process of its own."""
