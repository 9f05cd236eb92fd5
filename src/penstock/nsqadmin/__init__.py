"""The nsqadmin daemon: the cluster in a browser, and NSQ's API for whoever scripts it."""
