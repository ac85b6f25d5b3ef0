"""URDF, standard and in the dialect of the original Dojo: `load` builds, `description` places, `parse` checks and reads the XML."""
