"""Search: how a decoder's probabilities become a caption."""
