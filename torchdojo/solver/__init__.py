"""The interior-point method that finds the step on the central path."""
