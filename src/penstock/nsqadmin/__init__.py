"""The nsqadmin daemon: a web console for the cluster, and the HTTP API of NSQ's nsqadmin."""
