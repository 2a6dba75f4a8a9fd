"""The trainer: problems in, rollouts, updates and records out."""
