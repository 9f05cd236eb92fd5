"""The NSQ wire protocol, pure: bytes in, commands and frames out. No socket, no clock."""
