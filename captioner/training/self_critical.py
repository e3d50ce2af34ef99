"""Self-critical training: captions of the model's own, worth what CIDEr-D says of them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from captioner.decoding import Decoding, sample, search, speakable
from captioner.errors import UsageError
from captioner.evaluation.consensus import Consensus
from captioner.models.annotations import Annotations
from captioner.models.decoder import Decoded, Decoder
from captioner.text import END, PAD, START, UNK
from captioner.trace import Hypothesis
from captioner.training.objectives import Lesson, Loss, Objective, check_gradient
from captioner.training.said import said_words

BaselineName = Literal["greedy", "others"]
SourceName = Literal["samples", "beam"]


class SelfCritical(Objective):
    """``−(r(wˢ) − b) Σ log p(wˢ)`` for captions wˢ of the model's own; r = CIDEr-D.

    After Rennie et al. 2017 (arXiv 1612.00563). For fine-tuning a model that likelihood has trained:
    start from it with ``init_from``, with a small learning rate. Rewards are computed over ids, the end
    token a word like others, with document frequencies from the training captions. Without dropout
    what is drawn and what is learned from are one distribution. Hard attention is the exception:
    it says its captions as at test time, and learns from them by drawing, or trying, places.

    Args:
        samples: captions learned from of each picture.
        source: where they come from. ``beam``: found by beam search, as in Anderson et al. 2018 (arXiv
            1707.07998, §3.3): not an estimate of anything's gradient, but captions like those that the
            model will write, and on Flickr8k by far the better teachers; ``samples``: drawn word by
            word from the model's probabilities, as in the paper.
        baseline: b. ``greedy``: the reward of the greedy caption, as in the paper; ``others``: the mean
            of a picture's other samples (Luo 2020, arXiv 2003.09971), which costs no search.
        max_length: most words of a caption.
        no_repeat: of the beam and of the greedy caption, as of ``Decoding``: a model that is kept from
            repeating itself when it writes need not spend its training on that.
        dropout: whether captions are found and learned from with the model's dropout; the masks of the
            decoder are others each time. No gradient of anything then, but few photos last longer. No
            words are left out of what is learned from.

    Raises:
        UsageError: no samples, one sample without others, or ``no_repeat`` of captions that are drawn.
    """

    needs_weights = False

    def __init__(
        self,
        samples: int = 5,
        baseline: BaselineName = "others",
        max_length: int = 20,
        source: SourceName = "beam",
        no_repeat: int = 0,
        dropout: bool = False,
    ) -> None:
        super().__init__()
        if samples < 1 or (baseline == "others" and samples < 2):
            raise UsageError(
                f"SelfCritical needs 1 sample or more, with the baseline others 2, got {samples}"
            )
        if no_repeat and source == "samples":
            raise UsageError(
                f"no_repeat={no_repeat} is for captions that a beam finds, and source: samples draws "
                "them: choose source: beam, or leave no_repeat at 0"
            )
        self.dropout = dropout
        self.samples = samples
        self.baseline = baseline
        self.max_length = max_length
        self.source = source
        self.decoding = Decoding(samples, max_length, no_repeat=no_repeat)
        self._consensus: Consensus | None = None

    def check(self, decoder: Decoder) -> None:
        """Rewards are of words, not of places."""
        check_gradient(decoder, "SelfCritical", "give")

    def begin(self, captions: Sequence[Sequence[Sequence[int]]]) -> None:
        """Counts in how many pictures' captions every n-gram is."""
        self._consensus = Consensus([[c[1:] for c in of_picture] for of_picture in captions])

    @torch.no_grad()
    def lesson(
        self, decoder: Decoder, annotations: Annotations, tokens: Int[Tensor, "B R T"]
    ) -> Lesson:
        """Captions of now, with their reward less the baseline; ``tokens`` are the references.

        Measure ``reward``: the mean CIDEr-D of the captions, ``baseline`` that of the greedy ones.
        """
        if self.source == "beam":
            drawn = self._found(decoder, annotations)
        else:
            drawn = sample(decoder, annotations, self.samples, self.max_length)
        real = (
            (tokens != PAD)[..., 1:].any(-1).any(-1)
        )  # (B,), False for what stands in for no picture
        drawn = drawn.where(real[:, None, None] | (drawn == START), PAD)
        # The longest first, as decoders like it.
        order = (drawn != PAD).sum(-1).argsort(1, descending=True)
        drawn = drawn.gather(1, order.unsqueeze(-1).expand_as(drawn))
        candidates = [_captions(rows) for rows in drawn.tolist()]
        if self.baseline == "greedy":
            greedy = search(decoder, annotations, replace(self.decoding, beam_size=1))
            for rows, [hypothesis] in zip(candidates, greedy, strict=True):
                rows.append(self._words(hypothesis))
        assert self._consensus is not None
        rewards = torch.tensor(
            [
                self._consensus(rows, [r for r in _captions(references) if r])
                for rows, references in zip(candidates, tokens.tolist(), strict=True)
            ],
            device=drawn.device,
        )
        own, greedy_reward = rewards.tensor_split([self.samples], 1)
        measures = {"reward": self.average(own.mean(1), real)}
        if self.baseline == "greedy":
            measures["baseline"] = self.average(greedy_reward.mean(1), real)
            return Lesson(drawn, own - greedy_reward, measures)
        advantages = (own - own.mean(1, keepdim=True)) * self.samples / (self.samples - 1)
        return Lesson(drawn, advantages, measures)

    def _found(self, decoder: Decoder, annotations: Annotations) -> Int[Tensor, "B S T"]:
        """The captions of a beam, as ``sample`` returns captions."""
        found = search(decoder, annotations, self.decoding)
        rows = torch.full((len(found), self.samples, self.max_length + 2), PAD)
        for b, hypotheses in enumerate(found):
            for s in range(self.samples):
                # A beam of few words may hold fewer captions: then the best stands for the missing.
                words = self._words(hypotheses[s] if s < len(hypotheses) else hypotheses[0])
                rows[b, s, : len(words) + 1] = torch.tensor([START, *words])
        return rows[..., : int((rows != PAD).sum(-1).max())].to(annotations.vectors.device)

    def _words(self, hypothesis: Hypothesis) -> list[int]:
        """Its ids, its end included where it came to one."""
        ended = len(hypothesis.tokens) < self.max_length
        return [*hypothesis.tokens, *([END] if ended else [])]

    def forward(
        self,
        decoded: Decoded,
        targets: Int[Tensor, "B R T"],
        rewards: Float[Tensor, "B R"] | None = None,
        masks: Float[Tensor, "B S T L"] | None = None,  # noqa: ARG002
    ) -> Loss:
        """Term ``policy``; outside training ``likelihood``. Measures: ``nll`` in nats per word of the
        targets, while training ``advantage_variance`` and ``length`` in words."""
        there = targets != PAD
        words = self.number(there)
        spoken = targets
        if rewards is not None:
            first = torch.zeros_like(there)
            first[..., 0] = True
            # Where there is no word, any that may be written will do.
            spoken = targets.where(there, UNK + 1)
            decoded = replace(decoded, said=speakable(decoded.said, decoded.at(first)))
        said = said_words(decoded, spoken).exact.where(there, 0.0)
        measures = {"nll": -said.detach().sum() / words}
        if rewards is None:
            return Loss(measures["nll"], {"likelihood": measures["nll"]}, measures)
        policy = -(rewards.unsqueeze(-1) * said).sum() / words
        captions = there.any(-1)
        spread = (rewards - self.average(rewards, captions)) ** 2
        measures |= {
            "advantage_variance": self.average(spread, captions),
            "length": self.average((there & (targets != END)).sum(-1).float(), captions),
        }
        return Loss(policy, {"policy": policy}, measures)


def _captions(rows: Sequence[Sequence[int]]) -> list[list[int]]:
    """The words of each row, its end included."""
    return [[token for token in row if token not in (PAD, START)] for row in rows]
