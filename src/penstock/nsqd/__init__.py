"""The nsqd daemon: the broker behind TCP and HTTP."""
