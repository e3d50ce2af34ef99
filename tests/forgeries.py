"""Forged model folders and checkpoints, generated from the schema of ``config.json`` and from a seed.

``python forgeries.py MODEL CHECKPOINT FOLDER COUNT`` loads each in a process of its own, with limits of
time and memory, captions a photo with what could be loaded, and prints a JSON line for each.
"""

import copy
import json
import math
import os
import pickle
import random
import resource
import shutil
import signal
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from captioner import load
from captioner.errors import CaptionerError
from captioner.models import registry
from captioner.store import checkpoint, schema

SECONDS, BYTES = 60, 1 << 30  # limits of a case, above the start
VALUES = [
    *(None, True, False, "", "text", "x" * 100_000, "\x1b[2Jred", "\u202e", [], {}, [1] * 9, [{}]),
    *(-1, 0, 1, 1.5, 4096, 10**5, 10**9, 10**30, 1e-9, 1e308, -1e5, math.nan, math.inf, -math.inf),
]
FILES = ("config.json", "vocab.json", "model.safetensors", "README.md")
SECRET = "the secret of another folder"


def values(field: schema.Field | schema.Number) -> list[Any]:
    """Values for a field: of every type, and on both sides of its limits."""
    if not isinstance(field, schema.Number):
        return VALUES
    low, high = field.low, field.high
    return [*VALUES, low, high, low - 1, high + 1, (low + high) / 3]


def sections(fields: dict, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The path and the schema of every field of a section."""
    for name, field in fields.items():
        if isinstance(field, dict):
            yield (*path, name), schema.BOOLEAN
            yield from sections(field, (*path, name))
        else:
            yield (*path, name), field


def part_paths(tree: dict, path: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The kind and the path of a part and of the parts inside it."""
    yield path[-1], path
    for name, value in tree.get("init_args", {}).items():
        if isinstance(value, dict):
            yield from part_paths(value, (*path, "init_args", name))


def changes(config: dict) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Paths in a configuration and the values to put there."""
    for path, field in [*sections(schema.CONFIG), (("model",), schema.BOOLEAN)]:
        yield from ((path, value) for value in values(field))
    attention = {"class_path": "Attention", "init_args": {"score": {"class_path": "Additive"}}}
    attention["init_args"]["distribution"] = {"class_path": "Soft"}
    tree = copy.deepcopy(config["model"])
    tree["decoder"]["init_args"]["attention"] = attention
    for part in ("encoder", "neck", "decoder"):
        for kind, path in part_paths(tree[part], ("model", part)):
            yield from ((path, value) for value in VALUES)
            yield from (((*path, "class_path"), value) for value in [*VALUES, "os.system"])
            for name in registry.names(kind):
                for option, parameter in registry.arguments(registry.find(kind, name)).items():
                    field = schema.option(option, parameter.annotation) or schema.BOOLEAN
                    for value in values(field):
                        yield path, {"class_path": name, "init_args": {option: value}}


def with_value(config: dict, path: tuple[str, ...], value: Any) -> dict:
    """A copy of a configuration with another value at a path; a part keeps its other options."""
    changed = copy.deepcopy(config)
    node = changed
    for name in path[:-1]:
        node = node.setdefault(name, {"class_path": name.title()} if name != "init_args" else {})
    old = node.get(path[-1])
    if isinstance(value, dict) and isinstance(old, dict) and "init_args" in value:
        same = old.get("class_path") == value["class_path"]
        value = {**value, "init_args": {**(old["init_args"] if same else {}), **value["init_args"]}}
    node[path[-1]] = value
    return changed


def forge_file(rng: random.Random, file: Path) -> str:
    """Replace a file by something else, or damage it; return what was done."""
    data, kind = file.read_bytes(), rng.choice(("link", "special", "size", "flip", "cut", "insert"))
    at = rng.randrange(len(data))
    noise = (rng.randbytes(9), b"[" * 9999, b'"\\u202e\\u001b[2J",', b"9" * 6000, b"[],")
    if kind == "link":
        file.unlink()
        (file.parent / "secret").write_text(SECRET)
        targets = ("/dev/zero", "/dev/urandom", "/dev/stdin", "nowhere", file.name, "secret", ".")
        file.symlink_to(rng.choice((*targets, file.parent / "secret", "../../../etc/hostname")))
    elif kind == "special":
        file.unlink()
        rng.choice((os.mkfifo, os.mkdir))(file)
    elif kind == "size":
        file.write_bytes(data[: rng.choice((0, 8, len(data)))])
        os.truncate(file, rng.choice((0, 1, 10**6, 7 * 10**6, 10**8, 10**10)))
    elif kind == "flip":
        file.write_bytes(data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :])
    else:
        file.write_bytes(data[:at] + (rng.choice(noise) + data[at:] if kind == "insert" else b""))
    return f"{kind} {file.name}"


class Call:
    """Pickled as the call of a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def hostile_values() -> list[Any]:
    """What a pickle can hold: calls, and lists that share or contain themselves."""
    shared: list = []
    for _ in range(60):
        shared = [shared, shared]
    tree: dict = {"class_path": "Attention", "init_args": {}}
    for _ in range(60):
        tree = {"class_path": "Attention", "init_args": {"attention": tree, "score": tree}}
    cyclic: list = []
    cyclic.append(cyclic)
    calls = [
        Call(os.system, "touch canary"),
        Call(bytearray, 10**11),
        Call(torch.FloatTensor, 10**11),
        Call(str.encode, "ü" * 200_000, "punycode"),
        Call(eval, "9**9**9"),
    ]
    return [shared, tree, cyclic, *calls, {1: 2}, b"bytes", {1, 2}, 1j, 10**5000, *VALUES]


def forge_checkpoint(rng: random.Random, content: dict, file: Path) -> str:
    """Write a checkpoint with a hostile value, or with a damaged pickle; return what was done."""
    changed = copy.deepcopy(content)
    parts = changed["hyper_parameters"]
    keys = [(changed, key) for key in changed] + [(parts, key) for key in parts]
    tree, key = rng.choice(keys)
    which = rng.randrange(len(hostile_values()))
    if rng.random() < 0.7:
        tree[key] = hostile_values()[which]
    torch.save(changed, file)
    if tree[key] is content.get(key) or rng.random() < 0.3:
        with zipfile.ZipFile(file) as archive:
            entries = {entry: archive.read(entry) for entry in archive.namelist()}
        [name] = [name for name in entries if name.endswith("data.pkl")]
        data = bytearray(entries[name])
        for _ in range(rng.choice((1, 5, 50))):
            data[rng.randrange(len(data))] = rng.choice((*pickle.BUILD, rng.randrange(256)))
        entries[name] = bytes(data)
        with zipfile.ZipFile(file, "w", rng.choice((0, 0, 8))) as archive:
            for entry, stored in entries.items():
                archive.writestr(entry, stored)
    return f"{key} #{which}"


def forge(
    model: Path, stored: Path, folder: Path, count: int, seed: int
) -> Iterator[tuple[str, Path]]:
    """Write ``count`` forged folders and checkpoints, one after the other: what, and where."""
    rng = random.Random(seed)
    config = json.loads((model / "config.json").read_text())
    content = torch.load(stored, weights_only=True)
    configs = list(changes(config))
    rng.shuffle(configs)
    for number in range(count):
        target = folder / f"{number}"
        if number % 5 == 4:
            target = target.with_suffix(".ckpt")
            what = forge_checkpoint(rng, content, target)
        elif number % 5 == 3:
            shutil.copytree(model, target)
            what = forge_file(rng, target / rng.choice(FILES))
        else:
            shutil.copytree(model, target)
            path, value = configs[number % len(configs)]
            (target / "config.json").write_text(json.dumps(with_value(config, path, value)))
            what = f"{'.'.join(path)} = {value!r:.60}"
        yield what, target


def attempt(source: Path, photo: Path) -> str:
    """Load a model, caption a photo and read the card; return how it went."""
    try:
        model = load(source, "cpu")
        card = checkpoint.read_card(source)
        if card is not None and SECRET in card:
            return "leaked a secret"
        caption = model.caption(photo)
        return "captioned" if caption.text.isprintable() else f"raw text {caption.text!r}"
    except CaptionerError as error:
        one_line = str(error).isprintable() and len(str(error)) < 1000
        return "refused" if one_line else f"raw message {str(error)!r:.300}"
    except BaseException as error:
        return f"crashed: {type(error).__name__}: {error}"[:300]


def limited(source: Path, photo: Path) -> dict[str, Any]:
    """``attempt`` in a child process, which is killed when it exceeds a limit."""
    began, reader, writer = time.monotonic(), *os.pipe()
    if (child := os.fork()) == 0:
        signal.alarm(SECONDS)
        resource.setrlimit(resource.RLIMIT_AS, (64 * BYTES, 64 * BYTES))  # libraries reserve much
        os.write(writer, attempt(source, photo).encode(errors="replace")[:4000])
        os._exit(0)
    os.close(writer)
    start = resident(child)  # less than the parent's: mapped files are not counted yet
    _, status, usage = os.wait4(child, 0)
    outcome = os.read(reader, 4000).decode() or f"died of {status}"
    os.close(reader)
    used = usage.ru_maxrss * 1024 - start
    outcome = "too much memory" if used > BYTES else outcome
    return {"outcome": outcome, "seconds": time.monotonic() - began, "bytes": used}


def resident(process: int) -> int:
    """The memory of a process in bytes; 0 if it has ended."""
    try:
        pages = Path(f"/proc/{process}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * resource.getpagesize()


def main() -> None:
    """See the module's docstring."""
    model, stored, folder = map(Path, sys.argv[1:4])
    torch.set_num_threads(1)  # a child of a process with more threads would wait for them
    photo = folder / "photo.png"
    Image.effect_noise((80, 60), 90).convert("RGB").save(photo)
    load(model, "cpu").caption(photo)
    load(stored, "cpu")
    for what, source in forge(model, stored, folder, int(sys.argv[4]), seed=7):
        print(json.dumps({"what": what, **limited(source, photo)}), flush=True)
        shutil.rmtree(source) if source.is_dir() else source.unlink()


if __name__ == "__main__":
    main()
