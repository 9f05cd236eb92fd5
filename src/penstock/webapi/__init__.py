"""What the HTTP APIs of the daemons share."""
