"""Photos: image files, their geometry and their paths."""
