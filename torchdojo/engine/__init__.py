"""Which backend takes a step, and what is built of steps: rollouts, adaptive steps, minimal coordinates, smoothing."""
