"""Numbers that say how good a caption is."""
