"""Deciding whether an answer is right."""
