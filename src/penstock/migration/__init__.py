"""Taking over what NSQ's own nsqd has left on disk."""
