"""Self-critical training: the model's own captions, rewarded by CIDEr-D."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from captioner import limits
from captioner.evaluation.cider import CiderD
from captioner.language.vocabulary import END, PAD, START
from captioner.models.annotations import Annotations
from captioner.models.decoder import Decoded, Decoder
from captioner.models.distributions import Sampling, hard_attention
from captioner.search.beam import search
from captioner.search.hypotheses import Hypothesis
from captioner.search.options import Decoding
from captioner.search.sampling import mask_special_tokens, sample
from captioner.training.objective import Loss, Masks, Objective, Rewards, Rollout, Tokens


class SelfCritical(Objective):
    """``−(r(wˢ) − b) Σ log p(wˢ)`` for captions wˢ that the model generates; r is CIDEr-D.

    The method of Rennie et al. 2017 (arXiv 1612.00563) fine-tunes a model trained by likelihood: give
    ``init_from`` and a small learning rate. ``<end>`` counts as a word of CIDEr-D, and document
    frequencies come from the training captions.

    Args:
        samples: captions per image.
        source: ``beam``: the captions of a beam search (Anderson et al. 2018, arXiv 1707.07998, §3.3),
            which trains far better on Flickr8k, although it does not estimate the gradient of the
            expected reward. ``samples``: captions sampled word by word, as in the paper.
        baseline: b. ``greedy``: the reward of the greedy caption, as in the paper; ``others``: the mean
            reward of an image's other captions (Luo 2020, arXiv 2003.09971), which needs no search.
        max_length: maximum number of words in a caption.
        no_repeat: as in ``Decoding``, for the beam and the greedy caption; not for ``samples``.
        dropout: whether the model generates and learns with dropout. The two use different dropout
            masks, which biases the gradient but delays overfitting on small data sets.
    """

    _cider: CiderD  # set in ``setup``

    def __init__(
        self,
        samples: int = 5,
        baseline: Literal["greedy", "others"] = "others",
        max_length: int = 20,
        source: Literal["samples", "beam"] = "beam",
        no_repeat: int = 0,
        dropout: bool = False,
    ) -> None:
        super().__init__()
        limits.check("samples", samples, limits.Number(2 if baseline == "others" else 1))
        self.samples, self.source, self.baseline = samples, source, baseline
        self.max_length, self.dropout = max_length, dropout
        self.decoding = Decoding(samples, max_length, no_repeat=no_repeat)

    def setup(self, captions: Sequence[Sequence[Sequence[int]]]) -> None:
        """Count the document frequencies of all n-grams."""
        self._cider = CiderD([[c[1:] for c in references] for references in captions])

    @torch.no_grad()
    def rollout(self, decoder: Decoder, annotations: Annotations, tokens: Tokens) -> Rollout:
        """Generate captions and compare them with the references ``tokens``.

        Measures: ``reward``, the mean CIDEr-D of the captions; with ``baseline: greedy`` also
        ``baseline``, the mean CIDEr-D of the greedy captions.
        """
        hard = hard_attention(decoder)
        sampling = Sampling(mode=hard[0].test_time) if hard else None  # also in training mode
        if self.source == "beam":
            generated = self._padded(search(decoder, annotations, self.decoding, sampling))
        else:
            generated = sample(decoder, annotations, self.samples, self.max_length, sampling)
        generated = generated.to(tokens.device)
        valid = (tokens != PAD)[..., 1:].flatten(1).any(1)  # (B,), False for stand-in images
        generated = generated.where(valid[:, None, None] | (generated == START), PAD)
        # Decoding is faster if the longest captions come first.
        order = (generated != PAD).sum(-1).argsort(1, descending=True)
        generated = generated.gather(1, order.unsqueeze(-1).expand_as(generated))

        references = [[words for words in _words(rows) if words] for rows in tokens.tolist()]
        captions = map(_words, generated.tolist())
        rewards = tokens.new_tensor(list(map(self._cider, captions, references)), dtype=torch.float)
        measures = {"reward": self.mean(rewards.mean(1), valid)}
        if self.baseline == "greedy":
            greedy = search(decoder, annotations, replace(self.decoding, beam_size=1), sampling)
            best = [[self._with_end(hypothesis)] for [hypothesis] in greedy]
            baseline = rewards.new_tensor(list(map(self._cider, best, references)))
            measures["baseline"] = self.mean(baseline.squeeze(1), valid)
        else:
            baseline = (rewards.sum(1, keepdim=True) - rewards) / (self.samples - 1)
        return Rollout(generated, rewards - baseline, measures)

    def _padded(self, beams: list[list[Hypothesis]]) -> Int[Tensor, "B S T"]:
        """Return the captions of a beam search in the format of ``sample``."""
        rows = []
        for hypotheses in beams:
            missing = self.samples - len(hypotheses)  # with a tiny vocabulary: repeat the best one
            for hypothesis in hypotheses + missing * hypotheses[:1]:
                rows.append(torch.tensor([START, *self._with_end(hypothesis)]))
        padded = pad_sequence(rows, batch_first=True, padding_value=PAD)
        return padded.view(len(beams), self.samples, -1)

    def _with_end(self, hypothesis: Hypothesis) -> list[int]:
        """Return the ids of a hypothesis, with ``<end>`` unless it was cut at the maximum length."""
        cut = len(hypothesis.tokens) == self.max_length
        return hypothesis.tokens if cut else [*hypothesis.tokens, END]

    def forward(
        self, decoded: Decoded, words: Tokens, rewards: Rewards = None, masks: Masks = None
    ) -> Loss:
        """Return the term ``policy``.

        Measures: ``nll`` in nats per word, ``advantage_variance`` and ``length``.
        """
        assert rewards is not None
        valid = words != PAD
        # Generation excludes special tokens, and <end> as the first word.
        first = torch.zeros_like(valid)
        first[..., 0] = True
        logits = mask_special_tokens(decoded.packed_logits, decoded.pack(first))
        allowed = replace(decoded, packed_logits=logits)
        log_probs, _ = self.token_log_probs(allowed, words)
        count = self.normaliser(valid)
        policy = -(rewards.unsqueeze(-1) * log_probs).sum() / count
        captions = valid.any(-1)
        variance = (rewards - self.mean(rewards, captions)) ** 2
        measures = {
            "nll": -log_probs.detach().sum() / count,
            "advantage_variance": self.mean(variance, captions),
            "length": self.mean((valid & (words != END)).sum(-1).float(), captions),
        }
        return Loss({"policy": policy}, measures)


def _words(rows: Sequence[Sequence[int]]) -> list[list[int]]:
    """Remove ``<pad>`` and ``<start>`` from every row."""
    return [[token for token in row if token not in (PAD, START)] for row in rows]
