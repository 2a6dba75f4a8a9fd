"""The run directory: what a trainer writes and every view reads."""
