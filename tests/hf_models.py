"""Tiny models of every family that ``hf:`` takes, with random weights, saved with their processors."""

from functools import partial
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import pytest
import torch

try:
    import transformers
except ImportError:
    pytest.skip("TRANSFORMERS MISSING: pip install 'captioner[hf]'", allow_module_level=True)
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from captioner.data.shapes import Scene, scene

WORDS = [
    *("a", "the", "dog", "cat", "zeb", "##ra", "red", "blue", "green", "circle", "square"),
    *("thing", "yellow", "orange", "purple", "pink"),
    *("triangle", "run", "##ning", "on", "left", "right"),
    *(mark + letter for mark in ("", "##") for letter in ascii_lowercase[1:]),
]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[DEC]"]
TEXT: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip
VISION = TEXT | {"image_size": 32, "patch_size": 8, "initializer_range": 0.02}  # a grid of 4 × 4
CROP = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
SQUARE = {"size": {"height": 32, "width": 32}}
IMAGE = ["<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"]


def word_pieces() -> PreTrainedTokenizerFast:
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *WORDS])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]",
        sep_token="[SEP]", mask_token="[MASK]",
    )  # fmt: skip


def byte_pairs(extra: list[str]) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer whose longest pieces are a few words."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [("Ġ", "d"), ("o", "g"), ("Ġd", "og"), ("Ġ", "a"), ("r", "u"), ("ru", "n")]
    tokens = ["<end>", *letters, *map("".join, pairs)]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<end>", eos_token="<end>", pad_token="<end>"
    )
    wrapped.add_special_tokens({"additional_special_tokens": extra})
    return wrapped


def blip(side: int = 32) -> tuple[Any, Any]:
    text = TEXT | {
        "vocab_size": len(SPECIAL) + len(WORDS), "encoder_hidden_size": 32, "bos_token_id": 5,
        "eos_token_id": 2, "sep_token_id": 3, "pad_token_id": 0, "max_position_embeddings": 64,
    }  # fmt: skip
    vision = VISION | {"image_size": side}
    config = transformers.BlipConfig(text_config=text, vision_config=vision, projection_dim=16)
    image = transformers.BlipImageProcessor(size={"height": side, "width": side})
    processor = transformers.BlipProcessor(image, word_pieces())
    return transformers.BlipForConditionalGeneration(config), processor


def vision_encoder_decoder() -> tuple[Any, Any]:
    tokenizer = byte_pairs([])
    encoder = transformers.ViTConfig(**VISION)
    decoder = transformers.GPT2Config(
        vocab_size=len(tokenizer), n_positions=64, n_embd=24, n_layer=2, n_head=3,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    config.decoder_start_token_id = config.pad_token_id = config.eos_token_id = 0
    model = transformers.VisionEncoderDecoderModel(config)
    settings = model.generation_config
    settings.decoder_start_token_id = settings.pad_token_id = settings.eos_token_id = 0
    return model, (transformers.ViTImageProcessor(**SQUARE), tokenizer)


def git() -> tuple[Any, Any]:
    config = transformers.GitConfig(
        vision_config=VISION, vocab_size=len(SPECIAL) + len(WORDS), bos_token_id=2, eos_token_id=3,
        pad_token_id=0, max_position_embeddings=64, **TEXT,
    )  # fmt: skip
    processor = transformers.GitProcessor(transformers.CLIPImageProcessor(**CROP), word_pieces())
    return transformers.GitForCausalLM(config), processor


def llava() -> tuple[Any, Any]:
    tokenizer = byte_pairs(["<image>"])
    text = transformers.LlamaConfig(
        vocab_size=len(tokenizer), bos_token_id=0, eos_token_id=0, pad_token_id=0, **TEXT
    )
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**VISION), text_config=text,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
    )  # fmt: skip
    processor = transformers.LlavaProcessor(
        transformers.CLIPImageProcessor(**CROP), tokenizer, patch_size=8,
        vision_feature_select_strategy="default", num_additional_image_tokens=1,
    )  # fmt: skip
    return transformers.LlavaForConditionalGeneration(config), processor


def of_tiles(family: str) -> tuple[Any, Any]:
    """Idefics3, and SmolVLM, which has classes of its own."""
    tokenizer = byte_pairs(IMAGE)
    text = transformers.LlamaConfig(
        vocab_size=len(tokenizer), bos_token_id=0, eos_token_id=0, pad_token_id=0, **TEXT
    )
    config = getattr(transformers, f"{family}Config")(
        vision_config=VISION | {"image_size": 64}, text_config=text, scale_factor=2, pad_token_id=0,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"), tie_word_embeddings=False,
    )  # fmt: skip
    image = getattr(transformers, f"{family}ImageProcessor")(
        size={"longest_edge": 128}, max_image_size={"longest_edge": 64}
    )
    videos = {}
    if family == "SmolVLM":
        videos = {"video_processor": transformers.SmolVLMVideoProcessor()}
    processor = getattr(transformers, f"{family}Processor")(
        image, tokenizer, image_seq_len=16, **videos
    )
    return getattr(transformers, f"{family}ForConditionalGeneration")(config), processor


FAMILIES = {
    "blip": blip, "vision-encoder-decoder": vision_encoder_decoder, "git": git, "llava": llava,
    "idefics3": partial(of_tiles, "Idefics3"), "smolvlm": partial(of_tiles, "SmolVLM"),
}  # fmt: skip


def save(name: str, folder: Path) -> Path:
    """Save a model whose random weights are large enough that its attention is not even."""
    torch.manual_seed(1)
    model, processor = FAMILIES[name]()
    for key, values in model.named_parameters():
        if values.ndim > 1 and "embed" not in key:
            values.data.normal_(0, 1.5 / values.shape[-1] ** 0.5)
    model.save_pretrained(folder)
    for part in processor if isinstance(processor, tuple) else (processor,):
        part.save_pretrained(folder)
    return folder


def colour_caption(shown: Scene) -> str:
    return f"a {shown.objects[0].colour} thing"


def trained_blip(folder: Path, steps: int = 400) -> Path:
    """Save a BLIP that was trained to name the colour of the one object of a generated scene."""
    torch.manual_seed(0)
    model, processor = blip(side=64)
    scenes = [scene(0, index, image_size=64, max_objects=1) for index in range(600)]
    pixels = processor.image_processor([shown.image for shown in scenes], return_tensors="pt")
    pixels, tokenizer = pixels.pixel_values, processor.tokenizer
    texts = tokenizer([colour_caption(shown) for shown in scenes], add_special_tokens=False)
    ids = torch.tensor([[5, *words, 3] for words in texts.input_ids])
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for _ in range(steps):
        rows = torch.randint(len(ids), (16,))
        states = model.vision_model(pixels[rows]).last_hidden_state
        logits = model.text_decoder(ids[rows, :-1], encoder_hidden_states=states).logits
        torch.nn.functional.cross_entropy(logits.mT, ids[rows, 1:]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder
