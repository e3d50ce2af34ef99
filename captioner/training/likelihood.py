"""Maximum likelihood."""

from captioner.models.decoder import Decoded
from captioner.text import PAD
from captioner.training.objective import (
    Loss,
    Masks,
    Objective,
    Rewards,
    SupervisionLoss,
    Tokens,
    token_log_probs,
)


class Likelihood(Objective):
    """Maximum likelihood with doubly stochastic attention (Xu et al. 2015, eq. 14).

    Minimises ``−log p(y | a)``, the mean over all words, plus ``λ`` times the mean over captions and
    regions of ``(1 − Σ_t α_t,i)²``. The paper does not say whether its terms are sums or means; means
    make λ independent of the caption length, the batch size and the grid.

    Args:
        doubly_stochastic: λ; 0 omits the term.
        label_smoothing: probability mass spread over the whole vocabulary.
        supervision: λ of the supervision of attention, which needs object masks or ``data.entities``;
            0 omits the term.
        supervision_loss: ``cross_entropy`` asks attention to fill the mask (Liu et al. 2017); ``mass``
            asks it to stay inside, which suits boxes.
    """

    def __init__(
        self,
        doubly_stochastic: float = 0.5,
        label_smoothing: float = 0.1,
        supervision: float = 0.0,
        supervision_loss: SupervisionLoss = "cross_entropy",
    ) -> None:
        super().__init__()
        self.doubly_stochastic, self.supervision = doubly_stochastic, supervision
        self.supervision_loss = supervision_loss
        self.needs_weights = bool(doubly_stochastic or supervision)
        self.label_smoothing = label_smoothing

    def forward(
        self, decoded: Decoded, words: Tokens, rewards: Rewards = None, masks: Masks = None
    ) -> Loss:
        """Return the terms ``likelihood``, ``doubly_stochastic`` and ``supervision``.

        The measure ``nll`` is the unsmoothed negative log-likelihood in nats per word.
        """
        valid = words != PAD  # (B, R, T)
        count = self.count(valid)
        log_probs = token_log_probs(decoded, words, self.label_smoothing)
        terms = {"likelihood": -log_probs.smoothed.sum() / count}
        terms |= self.attention_terms(decoded, valid, masks)
        return Loss(terms, {"nll": -log_probs.exact.detach().sum() / count})
