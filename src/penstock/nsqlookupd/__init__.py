"""The nsqlookupd daemon: which nsqd has which topics and channels."""
