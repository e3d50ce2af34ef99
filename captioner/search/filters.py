"""Which words may follow in a search: a list of filters, each of which rules out some words.

A filter sets the log-probabilities of words to -inf, in place. The first of ``tokens`` is ``<start>``.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from captioner.language.vocabulary import END, PAD, START, UNK
from captioner.search.options import Decoding

LogProbs = Float[Tensor, "B K V"]
Tokens = Int[Tensor, "B K t"]


def no_special_tokens(log_probs: LogProbs, tokens: Tokens, decoding: Decoding) -> None:  # noqa: ARG001
    """Rule out ``<pad>``, ``<start>`` and ``<unk>``, which are no words."""
    log_probs[..., [PAD, START, UNK]] = -torch.inf


def length(log_probs: LogProbs, tokens: Tokens, decoding: Decoding) -> None:
    """Rule out the end before ``min_length`` words, and every word after ``max_length``."""
    words = tokens.shape[-1] - 1
    if words < decoding.min_length:
        log_probs[..., END] = -torch.inf
    if words == decoding.max_length:
        log_probs[..., :END] = -torch.inf
        log_probs[..., END + 1 :] = -torch.inf


def no_repeated_run(log_probs: LogProbs, tokens: Tokens, decoding: Decoding) -> None:
    """Rule out words that would end a second occurrence of ``no_repeat`` words in a row."""
    run = decoding.no_repeat
    if run == 0 or tokens.shape[-1] < run:
        return
    runs = tokens.unfold(-1, run, 1)  # (B, K, t - run + 1, run)
    last = tokens[..., None, tokens.shape[-1] - run + 1 :]
    repeated = (runs[..., :-1] == last).all(-1)
    # A run that is not repeated rules out <pad>, which never follows.
    log_probs.scatter_(-1, runs[..., -1].where(repeated, PAD), -torch.inf)


FILTERS = (no_special_tokens, length, no_repeated_run)


def allowed_log_probs(logits: LogProbs, tokens: Tokens, decoding: Decoding) -> LogProbs:
    """Compute log-probabilities of the next word; -inf for words that a filter rules out."""
    log_probs = logits.float().log_softmax(-1)
    for rule_out in FILTERS:
        rule_out(log_probs, tokens, decoding)
    return log_probs
