"""Distances between shapes, with derivatives: which points are nearest, how far apart they are, and in which direction."""
