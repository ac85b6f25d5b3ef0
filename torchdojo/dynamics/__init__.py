"""The discrete equations of motion: integrator, residual and its derivatives, energy and momentum."""
