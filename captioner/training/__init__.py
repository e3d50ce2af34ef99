"""How a captioner learns: objectives and the Lightning task that applies them."""
