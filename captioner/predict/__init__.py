"""Use a model: captions, explanations, confidence."""
