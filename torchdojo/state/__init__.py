"""The state of a mechanism: slices of z, tangent maps, minimal coordinates, rows that closed loops repeat."""
