"""Supervised training on conversations: a warm start before reinforcement learning."""
