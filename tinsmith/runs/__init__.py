"""Finding, starting and stopping runs; reads records, never the trainer."""
