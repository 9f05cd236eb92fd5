"""NSQ's tools, each apart from the command that runs it."""
