"""A model of transformers as an ``Adapter``.

Captions come from the library's ``generate``. Their log-probabilities and attention come from feeding
them to the model (teacher forcing), which gives the same weights as generation.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from itertools import pairwise
from threading import RLock
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from PIL import Image
from torch import Tensor
from transformers.utils import logging

from captioner.hf.cells import CellAttention, cross_attention, grid_cells, placement, self_attention
from captioner.hf.families import QUESTION, Family
from captioner.predict.adapter import Adapter, Reading
from captioner.predict.predictor import update_with_weights
from captioner.search.options import Decoding

ROWS = 32  # captions that are fed to the model together
WEIGHTS = 2**28  # attention weights that are computed together, 1 GB in float32


class HFAdapter(Adapter):
    """A model of transformers, in eval mode, with the attention implementation ``eager``.

    ``processor`` is for images, and for text if the family has a prompt.
    """

    def __init__(self, family: Family, model: Any, processor: Any, tokenizer: Any) -> None:
        self.family, self.model, self.tokenizer = family, model, tokenizer
        self._processor = processor
        self.device = str(model.device)
        self.mechanism = f"{type(model).__name__}: {family.title}"
        settings = model.generation_config
        length = settings.max_new_tokens or 0
        if not length and family.start and settings.max_length:
            length = settings.max_length - 1  # without the start
        self.decoding = Decoding(
            beam_size=settings.num_beams or 1,
            max_length=min(length or family.max_length, 200),
            length_penalty=1.0 if settings.length_penalty is None else settings.length_penalty,
            no_repeat=settings.no_repeat_ngram_size or 0,
        )
        ends = family.end(model)
        self._ends = list(ends) if isinstance(ends, list | tuple) else [ends]
        # The app's threads share the model, whose encoder is replaced for a while.
        self._lock = RLock()
        self._box = lru_cache(1024)(lambda size: placement(size, self._pixels))

    def generate(
        self, photos: Sequence[Image.Image], decoding: Decoding, attend: bool
    ) -> list[list[Reading]]:
        """Return the captions of each photo; as ``Adapter``."""
        inputs, count = self._inputs(photos), decoding.beam_size if attend else 1
        with self._lock:
            with self._recorded(len(photos)) as vision:
                tokens = self._generated(inputs, decoding, count)
            readings = iter(self._readings(photos, inputs, tokens, vision[-1], attend))
        return [[next(readings) for _ in range(count)] for _ in photos]

    def read(self, photo: Image.Image, text: str) -> Reading:
        """Return a given sentence; as ``Adapter``."""
        with self._lock:
            return self._readings([photo], self._inputs([photo]), [self._ids(text)], None, True)[0]

    @torch.inference_mode()
    def erase(
        self, photo: Image.Image, text: str, cells: Bool[np.ndarray, "P rows columns"]
    ) -> Float[np.ndarray, "P T"]:
        """Return log-probabilities without some cells: the mean of all cells replaces their vectors."""
        inputs, ids = self._inputs([photo]), self._ids(text)
        flat = torch.from_numpy(cells.reshape(len(cells), -1)).to(self.device)
        first = torch.zeros(len(cells), dtype=torch.long, device=self.device)  # all of one photo
        log_probs = []
        with self._lock:
            with self._recorded(1) as vision:
                self._decoded(inputs, first[:1], [ids], False)
            for part in torch.split(flat, ROWS):
                rows, captions = first[: len(part)], [ids] * len(part)
                with self._replayed(vision[-1], rows), self._erased(part):
                    output = self._decoded(inputs, rows, captions, False)
                log_probs += self._log_probs(output, captions)
        return np.array(log_probs)[:, :-1]

    def fingerprint(self) -> str:
        """Return a SHA-256 of the settings of model, ``generate`` and images, and of the weights."""
        parts = [self.model.config, self.model.generation_config, self._image_processor]
        text = json.dumps([part.to_dict() for part in parts], sort_keys=True, default=str)
        kept = json.loads(text, object_hook=_without_origin)
        digest = hashlib.sha256(json.dumps(kept).encode())
        update_with_weights(digest, self.model)
        return digest.hexdigest()

    @torch.inference_mode()
    def _generated(
        self, inputs: dict[str, Tensor], decoding: Decoding, count: int
    ) -> list[list[int]]:
        """Return the ids of ``count`` captions per photo, without the start, with the end if it came."""
        least = {"min_new_tokens": decoding.min_length} if decoding.min_length > 1 else {}
        with quiet():  # it warns of the inputs that its own examples give
            sequences = self.model.generate(
                **inputs,
                num_beams=decoding.beam_size,
                num_return_sequences=count,
                max_new_tokens=decoding.max_length,
                no_repeat_ngram_size=decoding.no_repeat,
                length_penalty=float(decoding.length_penalty),
                do_sample=False,
                **least,
            )
        prefix = inputs["input_ids"].shape[1] if "input_ids" in inputs else 1
        return [self._until_end(row) for row in sequences[:, prefix:].tolist()]

    def _until_end(self, ids: list[int]) -> list[int]:
        image = getattr(self.model.config, "image_token_id", None)
        if image in ids:  # there is no second image to read
            ids = [*ids[: ids.index(image)], self._ends[0]]
        return ids[: next((i for i, token in enumerate(ids, 1) if token in self._ends), len(ids))]

    def _ids(self, text: str) -> list[int]:
        """Return the ids of a sentence as they follow the prompt, with the end."""
        space = "" if self.family.start or self._prompt[-1:].isspace() else " "
        ids: list[int] = self.tokenizer(space + text, add_special_tokens=False)["input_ids"]
        return [*ids, self._ends[0]]

    @cached_property
    def _prompt(self) -> str:
        """The question of a chat model, with its image token."""
        content = [{"type": "image"}, {"type": "text", "text": QUESTION}]
        if self._processor.chat_template is None:
            return f"USER: {self._processor.image_token}\n{QUESTION} ASSISTANT:"
        chat = [{"role": "user", "content": content}]
        return str(self._processor.apply_chat_template(chat, add_generation_prompt=True))

    def _inputs(self, photos: Sequence[Image.Image]) -> dict[str, Tensor]:
        inputs = {name: part.to(self.device) for name, part in self._processed(photos).items()}
        return inputs | {"pixel_values": inputs["pixel_values"].to(self.model.dtype)}

    def _processed(self, photos: Sequence[Image.Image]) -> dict[str, Tensor]:
        """Return the inputs of the model: pixels, and a prompt if the family has one."""
        options: dict[str, Any] = {"return_tensors": "pt"}
        if self.family.start:
            return {"pixel_values": self._image_processor(list(photos), **options).pixel_values}
        if hasattr(self._image_processor, "do_image_splitting"):
            options["do_image_splitting"] = False  # one map of the whole photo
        nested, prompts = [[photo] for photo in photos], [self._prompt] * len(photos)
        inputs = self._processor(text=prompts, images=nested, **options)
        kept = ("pixel_values", "pixel_attention_mask", "input_ids", "attention_mask")
        return {name: inputs[name] for name in kept if name in inputs}

    @property
    def _image_processor(self) -> Any:
        return getattr(self._processor, "image_processor", self._processor)

    def _pixels(self, image: Image.Image) -> Float[np.ndarray, "3 height width"]:
        pixels = self._processed([image])["pixel_values"]
        return pixels.reshape(-1, *pixels.shape[-2:])[:3].double().numpy()

    def _rows(self, inputs: dict[str, Tensor]) -> int:
        """Return how many captions are computed together with their attention."""
        text = self.model.config.get_text_config(decoder=True)
        length = inputs["input_ids"].shape[1] if "input_ids" in inputs else 256  # with GIT's image
        weights = text.num_hidden_layers * text.num_attention_heads * length**2
        return int(min(max(WEIGHTS // weights, 1), ROWS))

    def _readings(
        self,
        photos: Sequence[Image.Image],
        inputs: dict[str, Tensor],
        tokens: Sequence[list[int]],
        vision: Any,
        attend: bool,
    ) -> list[Reading]:
        """Feed captions, equally many of each photo, to the model."""
        count = len(tokens) // len(photos)
        readings, size = [], self._rows(inputs) if attend else ROWS
        for rows in torch.split(torch.arange(len(tokens), device=self.device), size):
            captions, of = [tokens[row] for row in rows], rows // count
            with torch.inference_mode(), self._replayed(vision, of):
                output = self._decoded(inputs, of, captions, attend)
            log_probs = self._log_probs(output, captions)
            for row, ids in enumerate(captions):
                ended = len(ids) > 1 and ids[-1] in self._ends  # an empty caption is its end
                pieces = self._pieces(ids[:-1] if ended else ids)
                if not attend:
                    readings.append(Reading(pieces, log_probs[row]))
                    continue
                found, grid = self._attention(output, inputs, row, captions)
                cells, rollout = (
                    torch.unflatten(part[: len(pieces)], -1, grid).float().cpu().numpy()
                    for part in (found.cells, found.rollout)
                )
                box = self._box(photos[int(of[row])].size)
                readings.append(Reading(pieces, log_probs[row], cells, rollout, box))
        return readings

    def _decoded(
        self, inputs: dict[str, Tensor], rows: Tensor, captions: Sequence[list[int]], attend: bool
    ) -> Any:
        """Call the model on prefixes and captions, which are padded at the end."""
        given = {name: values[rows] for name, values in inputs.items() if name != "attention_mask"}
        longest = max(map(len, captions))
        padded = [[*ids, *[self._ends[0]] * (longest - len(ids))] for ids in captions]
        tokens = torch.tensor(padded, device=self.device)
        if self.family.start:
            prefix = tokens.new_full((len(tokens), 1), self.family.start(self.model))
        else:
            prefix = given.pop("input_ids")
        ids = torch.cat([prefix, tokens], 1)
        options = {"output_attentions": attend, "use_cache": False, "return_dict": True}
        return self.family.decode(self.model, input_ids=ids, **given, **options)

    def _log_probs(self, output: Any, captions: Sequence[list[int]]) -> list[list[float]]:
        longest = max(map(len, captions))
        log_probs = output.logits[:, -longest - 1 : -1].float().log_softmax(-1)
        return [log_probs[row, range(len(ids)), ids].tolist() for row, ids in enumerate(captions)]

    def _attention(
        self, output: Any, inputs: dict[str, Tensor], row: int, captions: Sequence[list[int]]
    ) -> tuple[CellAttention, tuple[int, int]]:
        """Return the attention of a row of the output, and the grid of its cells."""
        longest, size = max(map(len, captions)), inputs["pixel_values"].shape[-2:]
        past = [layer[row] for layer in output[self.family.past]]
        queries = slice(past[0].shape[-2] - longest - 1, past[0].shape[-2] - 1)
        if self.family.cross:
            cross = [layer[row] for layer in output[self.family.cross]]
            cells, grid = grid_cells(torch.arange(cross[0].shape[-1]), self.model.config, size)
            return cross_attention(cross, past, queries, cells.to(self.device)), grid
        if "input_ids" in inputs:
            image = torch.nonzero(inputs["input_ids"][0] == self.model.config.image_token_id)[:, 0]
        else:  # the image tokens come first
            image = torch.arange(past[0].shape[-1] - longest - 1)
        cells, grid = grid_cells(image, self.model.config, size)
        return self_attention(past, queries, cells.to(self.device)), grid

    def _pieces(self, ids: list[int]) -> list[str]:
        """Return the text of each token; together they are the caption."""
        options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        text = self.tokenizer.decode(ids, **options)
        ends = [0]
        for length in range(1, len(ids)):
            part = self.tokenizer.decode(ids[:length], **options)
            common = next((i for i, (a, b) in enumerate(zip(text, part)) if a != b), len(part))  # noqa: B905
            ends.append(max(ends[-1], min(common, len(text))))
        return [text[start:end] for start, end in pairwise([*ends, len(text)])]

    @contextmanager
    def _recorded(self, photos: int) -> Iterator[list[Any]]:
        """Yield a list that receives the encoder's output for each photo."""
        outputs: list[Any] = []

        def record(_module: Any, _inputs: Any, output: Any) -> None:
            # ``generate`` may repeat each photo for every hypothesis.
            outputs.append(_map(lambda values: values[:: len(values) // photos], output))

        hook = self.model.get_submodule(self.family.vision).register_forward_hook(record)
        try:
            yield outputs
        finally:
            hook.remove()

    @contextmanager
    def _replayed(self, output: Any, rows: Tensor) -> Iterator[None]:
        """Let the encoder return rows of an earlier output, if there is one, instead of computing it."""
        if output is None:
            yield
            return
        vision = self.model.get_submodule(self.family.vision)
        vision.forward = lambda *_, **__: _map(lambda values: values[rows], output)
        try:
            yield
        finally:
            del vision.forward  # that of the class is left

    @contextmanager
    def _erased(self, cells: Bool[Tensor, "P L"]) -> Iterator[None]:
        """Replace the vectors of cells by the mean over all cells."""

        def erase(_module: Any, _inputs: Any, output: Any) -> Any:
            vectors = output if isinstance(output, Tensor) else output.last_hidden_state
            image = vectors[:, -cells.shape[1] :]  # after class tokens
            erased = torch.where(cells.unsqueeze(-1), image.mean(1, keepdim=True), image)
            vectors = torch.cat([vectors[:, : -cells.shape[1]], erased], 1)
            if isinstance(output, Tensor):
                return vectors
            return type(output)(**{**output, "last_hidden_state": vectors})

        hook = self.model.get_submodule(self.family.features).register_forward_hook(erase)
        try:
            yield
        finally:
            hook.remove()


def _without_origin(settings: dict[str, Any]) -> dict[str, Any]:
    origin = ("_name_or_path", "name_or_path", "transformers_version")  # changes no caption
    return {name: value for name, value in settings.items() if name not in origin}


def _map(function: Any, output: Any) -> Any:
    """Apply a function to every tensor of an output of the library."""
    if isinstance(output, Tensor):
        return function(output)
    if isinstance(output, tuple | list):
        return type(output)(_map(function, part) for part in output)
    if isinstance(output, dict):
        return type(output)(**{name: _map(function, part) for name, part in output.items()})
    return output


@contextmanager
def quiet(bars: bool = True) -> Iterator[None]:
    """Print no warnings of transformers, and no progress bars unless ``bars``; restore both after."""
    level, shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if not bars:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()
