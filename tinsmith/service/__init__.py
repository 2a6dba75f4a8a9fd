"""The Tinker-compatible service."""
