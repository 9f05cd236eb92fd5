"""The command-line tools, one module each."""
