"""tinsmith: reinforcement learning for language-model agents, on your own machine."""

__version__ = "0.1.0"
