"""Sockets: listeners, TLS, connection limits, the HTTP server and client."""
