"""Maximum likelihood."""

from typing import Any

from captioner.language.vocabulary import PAD
from captioner.models.decoder import Decoded
from captioner.training.objective import Loss, Masks, Objective, Rewards, Tokens


class Likelihood(Objective):
    """Maximum likelihood with doubly stochastic attention (Xu et al. 2015, eq. 14).

    Minimises ``−log p(y | a)``, the mean over all words, plus the terms of ``Objective``. The paper does
    not say whether its terms are sums or means; means make λ independent of the caption length, the
    batch size and the grid.
    """

    def __init__(
        self, doubly_stochastic: float = 0.5, label_smoothing: float = 0.1, **options: Any
    ) -> None:
        super().__init__(doubly_stochastic, label_smoothing, **options)

    def forward(
        self, decoded: Decoded, words: Tokens, rewards: Rewards = None, masks: Masks = None
    ) -> Loss:
        """Return the terms ``likelihood``, ``doubly_stochastic`` and ``supervision``.

        The measure ``nll`` is the unsmoothed negative log-likelihood in nats per word.
        """
        valid = words != PAD  # (B, R, T)
        count = self.normaliser(valid)
        exact, smoothed = self.token_log_probs(decoded, words)
        terms = {"likelihood": -smoothed.sum() / count}
        terms |= self.attention_terms(decoded, valid, masks)
        return Loss(terms, {"nll": -exact.detach().sum() / count})
