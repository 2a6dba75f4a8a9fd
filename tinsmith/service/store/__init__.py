"""What survives the process: one SQLite file and the checkpoint directories beside it."""
