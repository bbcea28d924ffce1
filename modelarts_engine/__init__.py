"""The runner: a thin command over the collection's playbooks."""
