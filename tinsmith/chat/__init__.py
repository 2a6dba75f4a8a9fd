"""Messages and the tokens they become."""
