"""Shapes and the distances between them, with derivatives: nearest points, signed distances and normals."""
