"""From files on disk to batches: records, readers, generated scenes, annotation cache."""
