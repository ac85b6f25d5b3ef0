"""The choice of a backend for steps, and everything built of steps: rollouts, adaptive steps, minimal coordinates, smoothing."""
