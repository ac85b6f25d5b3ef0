"""The solver finds the point of the central path at which the step's equations hold."""
