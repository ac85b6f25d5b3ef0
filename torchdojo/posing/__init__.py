"""Where bodies are before the first step: named poses, placement on the ground, loops that are closed."""
