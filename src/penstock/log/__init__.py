"""The append-only log under every topic, and the cursors of the channels that read it."""
