"""Topics, channels and their subscribers, pure: commands and the time in, batches of frames out."""
