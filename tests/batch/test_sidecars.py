"""Captions beside and inside photos, read back by ExifTool and the reader of folders."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms, PngImagePlugin

import libraries
import tagged_photos
from captioner.batch import xmp
from captioner.batch.sidecars import Sidecars
from captioner.cli import caption_outputs as command
from captioner.cli.main import main
from captioner.data.readers import read
from captioner.errors import DataError
from layouts import picture

PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
TEXT = "a dog & <cat> „ünï“"
FOREIGN = """<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/"><!-- kept --><r:RDF
 xmlns:r="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><r:Description r:about="uuid:1"
 xmlns:xmp="http://ns.adobe.com/xap/1.0/" xmp:Rating="4"
 xmlns:d="http://purl.org/dc/elements/1.1/"><d:description><r:Alt><r:li
 xml:lang="x-default">old &amp; mine</r:li><r:li xml:lang="de">alt</r:li></r:Alt></d:description>
 <d:creator><r:Seq><r:li>Me &#10;too</r:li></r:Seq></d:creator></r:Description></r:RDF></x:xmpmeta>
<?xpacket end="w"?>"""
FORMATS = {".jpg": "JPEG", ".png": "PNG", ".webp": "WEBP", ".tif": "TIFF"}


def tags(file: Path) -> dict:
    """The tags of a file as ExifTool reads them, without those of its layout."""
    [found] = tagged_photos.tags(file).values()
    layout = ("File:ExifByteOrder", "IFD0:StripOffsets")
    return {name: value for name, value in found.items() if name not in layout}


def photo(file: Path, packet: str | None) -> Path:
    """Write a noisy photo with EXIF, and XMP, a colour profile or a comment where they fit."""
    noise = np.random.default_rng(0).integers(0, 256, (31, 47, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif.update({0x010E: "OLYMPUS", 0x010F: "Maker", 0x0112: 6})
    exif.get_ifd(0x8769)[0x927C] = b"maker note \0\1\2"
    kind = FORMATS[file.suffix]
    options = {"exif": exif, "icc_profile": PROFILE}
    if kind == "PNG":
        options["pnginfo"] = PngImagePlugin.PngInfo()
        options["pnginfo"].add_text("Comment", "a note")
        if packet:
            options["pnginfo"].add_itxt("XML:com.adobe.xmp", packet)
    elif packet and kind != "TIFF":
        options["xmp"] = packet.encode()
    Image.fromarray(noise).save(file, kind, **options)
    return file


def captions(tags: dict) -> dict:
    names = ("XMP-dc:Description", "XMP-dc:Description-de", "XMP-iptcCore:AltTextAccessibility")
    return {name: tags.pop(name) for name in names if name in tags}


def expected(old: dict) -> dict:
    """The captions after ``TEXT`` has replaced some."""
    return old | {"XMP-dc:Description": TEXT, "XMP-iptcCore:AltTextAccessibility": TEXT}


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("packet", [None, FOREIGN])
def test_embedding_changes_nothing_but_the_caption(suffix, packet, tmp_path):
    file = photo(tmp_path / f"a{suffix}", packet)
    file.chmod(0o640)
    os.utime(file, (1e9, 1e9))
    before, pixels = tags(file), np.asarray(Image.open(file))
    old = captions(before)
    assert Sidecars("embed", "overwrite").write(file, TEXT)
    after = tags(file)
    assert len(old) == (2 if packet and suffix != ".tif" else 0)
    assert captions(after) == expected(old)
    assert after == before
    assert np.array_equal(np.asarray(Image.open(file)), pixels)
    assert (file.stat().st_mode & 0o777, file.stat().st_mtime) == (0o640, 1e9)
    content = file.read_bytes()
    assert not Sidecars("embed", "overwrite").write(file, TEXT)
    assert file.read_bytes() == content


@pytest.mark.parametrize("empty", ["<dc:description/>", "<dc:description></dc:description>"])
def test_an_empty_property_is_replaced_alone(empty):
    parts = xmp._EMPTY.decode().partition("</rdf:RDF>")
    inside = f'<rdf:Description xmlns:dc="http://purl.org/dc/elements/1.1/">{empty}<dc:title/>'
    packet = f"{parts[0]}{inside}</rdf:Description>{parts[1]}{parts[2]}".encode()
    edited = xmp.with_caption(packet, TEXT)
    assert b"<dc:title/></rdf:Description>" in edited
    assert xmp.caption_of(edited) == TEXT


@pytest.mark.parametrize("packet", [None, FOREIGN])
def test_only_the_bytes_of_the_caption_change_in_a_packet(packet, tmp_path):
    file = tmp_path / "a.jpg.xmp"
    if packet:
        file.write_text(packet)
        before = tags(file)
    assert Sidecars("xmp", "overwrite").write(tmp_path / "a.jpg", TEXT)
    after, edited = tags(file), file.read_text()
    found = captions(after)
    assert found == expected(captions(before) if packet else {})
    if packet:
        assert after == before
        start, end = packet.index("<d:description>"), packet.index("</d:description>") + 16
        added = edited.index("<rdf:Description"), edited.index("</rdf:Description>\n") + 19
        assert edited[: added[0]] + edited[added[1] :] == packet[:start] + packet[end:]
    assert xmp.caption_of(edited.encode()) == TEXT


@pytest.mark.parametrize("kind", ["txt", "xmp", "embed"])
def test_existing_captions_are_kept_extended_or_replaced(kind, tmp_path):
    file = photo(tmp_path / "a.jpg", None)

    def text() -> str:
        return Sidecars(kind).words(file)

    def write(existing, caption):
        return Sidecars(kind, existing, "<", ">").write(file, caption), text()

    assert not Sidecars(kind).is_finished(file)
    assert write("skip", "one") == (True, "<one>")
    assert write("skip", "two") == (False, "<one>")
    assert write("append", "one") == (False, "<one>")
    assert write("append", "two") == (True, "<one>\n<two>")
    assert write("append", "one") == (False, "<one>\n<two>")
    assert Sidecars(kind).is_finished(file)
    assert not Sidecars(kind, "append").is_finished(file)
    assert write("overwrite", "three") == (True, "<three>")
    assert write("overwrite", "three") == (False, "<three>")


def test_no_words_in_either_property_are_lost(tmp_path):
    """Also without a default language, and if the properties differ."""
    file = tmp_path / "a.xmp"
    alt = "<r:Alt><r:li xml:lang='fr'>le chien</r:li></r:Alt>"
    alt = f"<i:AltTextAccessibility>{alt}</i:AltTextAccessibility>"
    uri = "http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/"
    file.write_text(
        FOREIGN.replace("xmp:Rating", f"xmlns:i='{uri}' xmp:Rating").replace("<d:c", f"{alt}<d:c")
    )
    assert Sidecars("xmp").is_finished(tmp_path / "a.jpg")
    assert Sidecars("xmp", "append").write(tmp_path / "a.jpg", "new")
    assert xmp.caption_of(file.read_bytes()) == "old & mine\nle chien\nnew"
    assert '<rdf:li xml:lang="fr">le chien</rdf:li>' in file.read_text()


@pytest.mark.parametrize(
    ("packet", "message"),
    [
        ("<!DOCTYPE x [<!ENTITY a 'b'>]><x>&a;</x>", "document type"),
        ("<x>", "cannot be read"),
        ("<x/>", "no rdf:RDF"),
        (
            FOREIGN.replace("<r:Desc", '<r:Description d:description="a"/><r:Desc', 1),
            "cannot be read",
        ),
        (FOREIGN.replace('xmp:Rating="4"', 'd:description="4"'), "as an attribute"),
    ],
)
def test_metadata_that_cannot_be_edited_is_refused(packet, message, tmp_path):
    (tmp_path / "a.xmp").write_text(packet)
    with pytest.raises(DataError, match=rf"a\.xmp: found a file .*{message}"):
        Sidecars("xmp", "overwrite").write(tmp_path / "a.jpg", TEXT)
    assert (tmp_path / "a.xmp").read_text() == packet


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp"])
def test_a_photo_with_two_packets_is_left_as_it_is(suffix, tmp_path):
    """One of them would be lost."""
    content = photo(tmp_path / f"a{suffix}", FOREIGN).read_bytes()
    if suffix == ".jpg":
        start = content.index(b"\xff\xe1", content.index(b"http://ns.adobe.com/xap") - 8)
        end = start + 2 + int.from_bytes(content[start + 2 : start + 4], "big")
    elif suffix == ".png":
        start = content.index(b"iTXtXML:com.adobe.xmp") - 4
        end = start + 12 + int.from_bytes(content[start : start + 4], "big")
    else:
        start = content.index(b"XMP ")
        end = start + 8 + (int.from_bytes(content[start + 4 : start + 8], "little") + 1) // 2 * 2
    twice = content[:end] + content[start:]
    if suffix == ".webp":
        twice = twice[:4] + (len(twice) - 8).to_bytes(4, "little") + twice[8:]
    file = tmp_path / f"b{suffix}"
    file.write_bytes(twice)
    with pytest.raises(DataError, match="two XMP packets"):
        Sidecars("embed", "overwrite").write(file, TEXT)
    assert file.read_bytes() == twice


def test_a_packet_with_a_damaged_name_is_not_hidden_behind_a_second_one(tmp_path):
    """A photo of COCO has such a packet. ExifTool would show its texts, not those of a new packet."""
    content = photo(tmp_path / "a.jpg", FOREIGN).read_bytes()
    file = tmp_path / "b.jpg"
    file.write_bytes(
        content.replace(b"http://ns.adobe.com/xap/1.0/\0", b"XMP\0://ns.adobe.com/xap/1.0/\0")
    )
    before = tags(file)
    assert captions(before)["XMP-dc:Description"] == "old & mine"
    Sidecars("embed", "overwrite").write(file, TEXT)
    after = tags(file)
    assert captions(after)["XMP-dc:Description"] == TEXT
    assert after == before
    assert b"XMP\0://" not in file.read_bytes()


def test_other_formats_cannot_hold_captions(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.gif")
    (tmp_path / "b.jpg").write_text("no photo")
    for name in ("a.gif", "b.jpg"):
        with pytest.raises(
            DataError, match="embedded in JPEG, PNG, WebP and TIFF only; use --write xmp"
        ):
            Sidecars("embed").write(tmp_path / name, TEXT)


# ── The command ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def photos(tmp_path):
    """Six photos of two formats in two folders, and a broken one."""
    files = [tmp_path / "photos" / f"{number}.jpg" for number in range(3)]
    files += [tmp_path / "photos" / "more" / f"{number}.png" for number in range(3)]
    for seed, file in enumerate(files):
        picture(file, seed)
        if file.suffix == ".jpg":
            Image.open(file).save(file, "JPEG")
    (tmp_path / "photos" / "broken.jpg").write_text("no photo")
    return files


def write(kind, photos, model, *options) -> int:
    folder = str(photos[0].parent)
    return main(["caption", folder, "--write", kind, "--model", str(model), *options])


def test_the_text_files_are_a_data_set(photos, tiny_folder, capsys, monkeypatch):
    photos[1].with_suffix(".txt").write_text("my own words\n")
    assert write("txt", photos, tiny_folder, "--prefix", "photo of ") == 1
    printed = capsys.readouterr()
    assert printed.out == "5 captions written, 1 photo left as it is\n"
    assert "broken.jpg" in printed.err
    assert not photos[0].with_name("broken.txt").exists()
    photos[0].with_name("broken.jpg").unlink()
    records = {record.image_id: record.captions for record in read("folder", photos[0].parent)}
    assert len(records) == 6
    assert records.pop("1.jpg") == ("my own words",)
    assert all(text.startswith("photo of ") for (text,) in records.values())
    # Nothing is left to do, so no model is loaded.
    monkeypatch.setattr(command, "_engine", None)
    assert write("txt", photos, tiny_folder) == 0
    assert capsys.readouterr().out == "0 captions written, 6 photos left as they are\n"


@pytest.mark.parametrize("existing", ["skip", "overwrite"])
def test_a_photo_that_cannot_hold_a_caption_is_not_called_unreadable(
    existing, photos, tiny_folder, capsys
):
    for suffix in (".gif", ".bmp"):
        Image.new("RGB", (8, 8)).save(photos[0].with_suffix(suffix))
    assert write("embed", photos, tiny_folder, "--existing", existing) == 1
    lines = capsys.readouterr().err.splitlines()
    refused = [line for line in lines if "use --write xmp" in line]
    assert [line.partition(":")[2].partition(":")[0][-4:] for line in refused] == [".bmp", ".gif"]
    [broken] = [line for line in lines if "broken.jpg" in line]
    assert "broken.jpg is not an image" in broken
    assert "captioner: captions could not be written for 2 of 9 photos" in lines
    assert "captioner: 1 of 9 photos could not be read" in lines


def test_the_bar_counts_every_photo(photos, tiny_folder):
    """Those that keep their caption, too: the first two, one in between, and the last one."""
    for number in (0, 1, 3, 5):
        photos[number].with_suffix(".txt").write_text("my own words\n")
    call = libraries.command(photos[0].parent, "--write=txt", "--model", tiny_folder)
    shown = libraries.on_terminal([*call, "--batch-size=1"])
    done = [int(number) for number in re.findall(r"(\d)/7", shown)]
    assert done == sorted(done)
    assert done[0] >= 2  # the bar may be drawn later
    assert done[-1] == 7
    assert "2 captions written, 4 photos left as they are" in shown


FULL = OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("kind", "error", "status"),
    [
        ("txt", KeyboardInterrupt, 130),
        ("xmp", FULL, 2),
        ("embed", KeyboardInterrupt, 130),
        ("embed", FULL, 2),
    ],
)
def test_an_interruption_loses_and_repeats_nothing(
    kind, error, status, photos, tiny_folder, monkeypatch, capsys
):
    """It comes when a photo or its sidecar is about to be replaced, at every file in turn."""
    photos[0].with_name("broken.jpg").unlink()
    originals = {file: np.asarray(Image.open(file)) for file in photos}
    fsync = os.fsync

    def stop(_):
        raise error

    for number in range(1, 7):
        calls = iter([fsync, stop])
        monkeypatch.setattr(os, "fsync", lambda file, calls=calls: next(calls)(file))
        assert write(kind, photos, tiny_folder) == (0 if number == 6 else status)
        capsys.readouterr()
        assert sum(Sidecars(kind).is_finished(file) for file in photos) == number
        for file, pixels in originals.items():
            assert np.array_equal(np.asarray(Image.open(file)), pixels)
    assert not list(photos[0].parent.rglob("*.part"))
