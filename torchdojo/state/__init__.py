"""The state of a mechanism: slices of z, tangent maps, minimal coordinates, closed loops."""
