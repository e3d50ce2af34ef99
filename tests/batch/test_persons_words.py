"""Words that a person gave a photo, in any place and form: kept, extended, never hidden or lost.

ExifTool writes and reads the tags of other programs.
"""

import multiprocessing
import shutil
import subprocess
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

import tagged_photos
from captioner.batch.sidecars import Sidecars, check_page, signed
from captioner.cli.main import main
from captioner.errors import DataError, UsageError
from captioner.files import atomic, remove_parts

VERA = "Aunt Vera at the fair"
RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
PACKET = f"""<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="{RDF}"><rdf:Description rdf:about=""
 xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:xmp="http://ns.adobe.com/xap/1.0/" xmp:Rating="4"
 xmlns:photoshop="http://ns.adobe.com/photoshop/1.0/">{{}}</rdf:Description></rdf:RDF></x:xmpmeta>"""
PLAIN = PACKET.format(tagged_photos.DESCRIPTION.format(VERA))


@pytest.fixture
def six(tmp_path):
    """Six photos in four formats with the metadata of other programs, but without captions."""
    every, _ = tagged_photos.write(tmp_path, 22)
    photos = [photo for photo in every if int(photo.stem) in (3, 4, 5, 7, 14, 21)]
    for photo in set(every) - set(photos):
        photo.unlink()
    for photo in photos:
        exiftool(photo, "-XMP-dc:Description=", "-IPTC:Caption-Abstract=", "-XMP-xmp:Rating=3")
    assert {photo.suffix for photo in photos} == {".jpg", ".png", ".webp", ".tif"}
    return photos


def exiftool(file: Path, *arguments: str) -> None:
    """Let ExifTool write tags."""
    program = shutil.which("exiftool")
    if program is None:
        pytest.skip("EXIFTOOL MISSING: apt install libimage-exiftool-perl")
    options = ["-q", "-m", "-overwrite_original", "-charset", "iptc=utf8"]
    subprocess.run([program, *options, *arguments, str(file)], check=True, capture_output=True)


def tags(file: Path) -> dict[str, object]:
    """The tags of a file without those that a caption changes."""
    [found] = tagged_photos.tags(file).values()
    return {
        name: found[name] for name in found if name not in (*tagged_photos.OWN, "File:MIMEType")
    }


def caption(file: Path) -> object:
    [found] = tagged_photos.tags(file).values()
    return found.get("XMP-dc:Description")


# 1: any form of a description in XMP


FORMS = {
    "value": f'<dc:description rdf:parseType="Resource"><rdf:value>{VERA}</rdf:value></dc:description>',
    "attribute": f'<dc:description rdf:value="{VERA}"/>',
    "resource": f'<dc:description rdf:resource="{VERA}"/>',
    "bag": f"<dc:description><rdf:Bag><rdf:li>{VERA}</rdf:li></rdf:Bag></dc:description>",
    "node": f"<dc:description><rdf:Description><rdf:value>{VERA}</rdf:value></rdf:Description>"
    "</dc:description>",
    "literal": f'<dc:description rdf:parseType="Literal"><b>{VERA}</b></dc:description>',
    "twice": f"<dc:description/><dc:description>{VERA}</dc:description><dc:description/>",
    "language": f"<dc:description><rdf:Alt><rdf:li xml:lang='x-default'/><rdf:li xml:lang='de'>{VERA}"
    "</rdf:li></rdf:Alt></dc:description>",
}


@pytest.mark.parametrize("form", FORMS)
def test_a_description_in_any_form_is_a_caption(form, six):
    for number, photo in enumerate(six):
        content = PACKET.format(FORMS[form])
        kind = ("xmp", "embed")[number % 2]
        sidecar = Path(f"{photo}.xmp")
        sidecar.write_text(content)
        if kind == "embed":
            if form in ("twice", "resource", "attribute", "literal"):
                continue  # ExifTool does not copy them into photos
            exiftool(photo, "-tagsfromfile", str(sidecar), "-XMP-dc:all", "-XMP-xmp:all")
            sidecar.unlink()
        file = photo if kind == "embed" else sidecar
        content, before = file.read_bytes(), tags(file)
        assert Sidecars(kind).is_finished(photo)
        assert not Sidecars(kind).write(photo, "a dog")
        assert file.read_bytes() == content
        assert Sidecars(kind, "append").write(photo, "a dog")
        assert caption(file) in (f"{VERA}..a dog", f"{VERA}\na dog")
        captions = ("XMP-dc:Description", "XMP-iptcCore")
        after, before = (
            {name: found[name] for name in found if not name.startswith(captions)}
            for found in (tags(file), before)
        )
        assert after == before
        assert not Sidecars(kind, "append").write(photo, "a dog")


def test_a_description_as_an_attribute_stays(tmp_path):
    sidecar = tmp_path / "a.jpg.xmp"
    sidecar.write_text(
        PACKET.format("").replace("xmp:Rating", f'dc:description="{VERA}" xmp:Rating')
    )
    assert Sidecars("xmp").is_finished(tmp_path / "a.jpg")
    with pytest.raises(DataError, match="as an attribute"):
        Sidecars("xmp", "overwrite").write(tmp_path / "a.jpg", "a dog")


# 2: what a person edited


@pytest.mark.parametrize("kind", ["txt", "xmp", "embed"])
def test_the_same_command_again_keeps_what_a_person_edited(kind, six):
    for photo in six:
        assert Sidecars(kind).write(photo, "a dog")
        file = photo if kind == "embed" else next(photo.parent.glob(f"{photo.stem}.*{kind}"))
        if kind == "txt":
            file.write_text(VERA)
        else:
            exiftool(file, f"-XMP-dc:Description={VERA}")
        content = file.read_bytes()
        assert not Sidecars(kind).write(photo, "a dog")
        assert file.read_bytes() == content


def test_a_page_that_a_person_edited_is_not_replaced(tmp_path):
    page = tmp_path / "captions.html"
    check_page(page)
    page.write_text(signed("<p>a dog</p>"))
    check_page(page)
    page.write_text(page.read_text().replace("a dog", VERA))
    with pytest.raises(UsageError, match="somebody has edited it"):
        check_page(page)


# 3 and 5: which sidecar belongs to which photo


EXTENSION = PACKET.format("<photoshop:SidecarForExtension>{}</photoshop:SidecarForExtension>")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, "dog.jpg.xmp"),
        ({"dog.xmp": PACKET}, "dog.xmp"),
        ({"DOG.XMP": PACKET}, "DOG.XMP"),
        ({"dog.JPG.xmp": PACKET}, "dog.JPG.xmp"),
        ({"dog.jpg.xmp": PACKET, "dog.xmp": PLAIN}, "dog.xmp"),
        ({"dog.jpg.xmp": PLAIN, "dog.xmp": PACKET}, "dog.jpg.xmp"),
        ({"dog.xmp": PACKET, "dog.png": ""}, "dog.jpg.xmp"),
        ({"dog.xmp": EXTENSION.format("JPG"), "dog.png": ""}, "dog.xmp"),
        ({"dog.xmp": EXTENSION.format("CR2"), "dog.CR2": ""}, "dog.jpg.xmp"),
        ({"dog.xmp": PLAIN, "dog.CR2": ""}, "dog.jpg.xmp"),
    ],
)
def test_the_sidecar_of_a_photo(files, expected, tmp_path):
    photo = tmp_path / "dog.jpg"
    Image.new("RGB", (8, 8)).save(photo)
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    before = {name: (tmp_path / name).read_bytes() for name in files}
    sidecars = Sidecars("xmp", "append")
    has_words = PLAIN in files.values() and "dog.CR2" not in files
    assert sidecars.words(photo) == (VERA if has_words else "")
    assert sidecars.write(photo, "a dog")
    assert caption(tmp_path / expected) in (f"{VERA}..a dog", f"{VERA}\na dog", "a dog")
    assert (VERA in str(caption(tmp_path / expected))) == has_words
    changed = [name for name in files if (tmp_path / name).read_bytes() != before[name]]
    assert changed == [name for name in files if name == expected]
    shared = files in ({"dog.xmp": PACKET, "dog.png": ""}, {"dog.xmp": PLAIN, "dog.CR2": ""})
    assert bool(sidecars.notices) == shared


@pytest.mark.parametrize("kind", ["txt", "xmp"])
def test_photos_that_share_a_name_get_a_file_each(kind, six):
    for number, photo in enumerate(six):
        other = photo.with_suffix(".gif")
        Image.new("RGB", (8, 8)).save(other)
        shared, sidecars = photo.with_suffix(f".{kind}"), Sidecars(kind)
        shared.write_text(PLAIN if kind == "xmp" else VERA)
        content = shared.read_bytes()
        for file in (photo, other):
            assert not sidecars.is_finished(file)
            assert sidecars.write(file, f"photo {number}")
            assert sidecars.words(file) == f"photo {number}"
        assert shared.read_bytes() == content
        assert [f"'{shared}' could belong to" in notice for notice in sidecars.notices] == [True]
        assert {f"{file.name}.{kind}" for file in (photo, other)} <= {
            file.name for file in photo.parent.iterdir()
        }


def test_two_photos_whose_names_differ_in_case_have_a_sidecar_each(tmp_path):
    for name in ("dog.jpg", "DOG.JPG"):
        Image.new("RGB", (8, 8)).save(tmp_path / name, "JPEG")
        assert Sidecars("xmp").write(tmp_path / name, name)
    assert [caption(tmp_path / f"{name}.xmp") for name in ("dog.jpg", "DOG.JPG")] == [
        "dog.jpg",
        "DOG.JPG",
    ]


# 4: captions that are not in XMP


FIELDS = ("IPTC:Caption-Abstract", "EXIF:ImageDescription", "EXIF:XPComment", "PNG:Description")


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("kind", ["embed", "xmp"])
def test_captions_in_other_fields_count_and_stay(field, kind, six):
    text = "Tante Vera auf der Kirmes, Köln"
    tried = 0
    for photo in six:
        fits = photo.suffix == ".png" if field.startswith("PNG") else photo.suffix != ".png"
        if not fits or (field.startswith("IPTC") and photo.suffix == ".webp"):
            continue
        tried += 1
        exiftool(photo, "-XMP-dc:Description=", f"-{field}={text}")
        content, before = photo.read_bytes(), tags(photo)
        assert Sidecars(kind).is_finished(photo)
        assert not Sidecars(kind).write(photo, "a dog")
        assert photo.read_bytes() == content
        assert Sidecars(kind, "append").write(photo, "a dog")
        file = photo if kind == "embed" else Path(f"{photo}.xmp")
        assert caption(file) in (f"{text}..a dog", f"{text}\na dog")
        assert tags(photo) == before
    assert tried


@pytest.mark.parametrize("name", ["iptc", "xmp", "8bim"])
def test_profiles_of_imagemagick_count_and_are_not_doubled(name, tmp_path):
    blocks = {
        "xmp": PLAIN.encode(),
        "iptc": b"\x1c\x02\x78\0\x15" + VERA.encode(),
        "8bim": b"8BIM\x04\x04\0\0\0\0\0\x1a\x1c\x02\x78\0\x15" + VERA.encode(),
    }
    block, image = blocks[name], Image.new("RGB", (8, 8))
    from PIL.PngImagePlugin import PngInfo

    texts = PngInfo()
    digits = "\n".join(block.hex()[at : at + 72] for at in range(0, len(block.hex()), 72))
    texts.add_text(f"Raw profile type {name}", f"\n{name}\n{len(block):8}\n{digits}\n", zip=True)
    image.save(tmp_path / "a.png", pnginfo=texts)
    assert Sidecars("embed").is_finished(tmp_path / "a.png")
    assert Sidecars("embed", "append").write(tmp_path / "a.png", "a dog")
    [found] = tagged_photos.tags(tmp_path / "a.png").values()
    assert found["XMP-dc:Description"] in (f"{VERA}..a dog", f"{VERA}\na dog")
    assert not any(name.startswith("Copy") for name in found)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        ("OLYMPUS IMAGING CORP.", "OLYMPUS DIGITAL CAMERA         "),
        ("SONY", "SONY DSC"),
        ("Minolta Co., Ltd.", "KONICA MINOLTA DIGITAL CAMERA"),
        ("HUAWEI", "oznor"),
        ("Samsung Techwin", "<Digimax S500 / Kenox S500 / Digimax Cyber 530>"),
        ("", "My beautiful picture"),
        ("", "   "),
    ],
)
def test_the_default_of_a_camera_is_not_a_caption(make, text, tmp_path):
    exif = Image.Exif()
    exif.update({0x010E: text, 0x010F: make})
    Image.new("RGB", (8, 8)).save(tmp_path / "a.jpg", exif=exif)
    assert Sidecars("embed").write(tmp_path / "a.jpg", "a dog")


# 6: two commands at once


def test_two_processes_that_write_one_photo_leave_it_whole(tmp_path):
    """Also if the second one is killed before it has written anything."""
    photo = tmp_path / "a.jpg"
    Image.new("RGB", (64, 48)).save(photo)
    context = multiprocessing.get_context("spawn")
    opened = context.Event()
    with atomic(photo) as stream:
        stream.write(photo.read_bytes())
        other = context.Process(target=_open_and_wait, args=(photo, opened))
        other.start()
        assert opened.wait(60)
    with Image.open(photo) as image:
        image.load()
    remove_parts(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2  # the other process lives
    other.kill()
    other.join()
    remove_parts(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["a.jpg"]


def _open_and_wait(photo, opened):
    with atomic(photo) as stream:
        stream.write(b"half")
        stream.flush()
        opened.set()
        multiprocessing.Event().wait(60)


# 7, 14 and 15: encodings and damage


@pytest.mark.parametrize(
    "encoding", ["iso-8859-1", "windows-1252", "utf-16", "utf-16-be", "utf-32"]
)
def test_sidecars_in_other_encodings_survive(encoding, six):
    for photo in six:
        creator = "<dc:creator><rdf:Seq><rdf:li>Käthe Müller</rdf:li></rdf:Seq></dc:creator>"
        text = f"<?xml version='1.0' encoding='{encoding}'?>{PACKET.format(creator)}"
        sidecar = Path(f"{photo}.xmp")
        sidecar.write_bytes(text.encode(encoding))
        assert not Sidecars("xmp").is_finished(photo)
        assert Sidecars("xmp").write(photo, "ein Hündchen")
        found = tags(sidecar)
        assert (found["XMP-dc:Creator"], found["XMP-xmp:Rating"]) == ("Käthe Müller", 4)
        assert caption(sidecar) == "ein Hündchen"
        described = PACKET.format(tagged_photos.DESCRIPTION.format("Käthe"))
        sidecar.write_bytes(
            f"<?xml version='1.0' encoding='{encoding}'?>{described}".encode(encoding)
        )
        assert Sidecars("xmp").words(photo) == "Käthe"


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16", "shift_jis"])
def test_texts_in_other_encodings(encoding, tmp_path):
    content = ("Köter" if encoding != "shift_jis" else "犬がいる").encode(encoding)
    (tmp_path / "a.txt").write_bytes(content)
    assert Sidecars("txt").is_finished(tmp_path / "a.jpg")
    with pytest.raises(DataError, match=r"a\.txt: .*save it as UTF-8"):
        Sidecars("txt", "append").write(tmp_path / "a.jpg", "a dog")
    assert (tmp_path / "a.txt").read_bytes() == content
    assert Sidecars("txt", "overwrite").write(tmp_path / "a.jpg", "a dog")
    assert (tmp_path / "a.txt").read_text() == "a dog\n"


@pytest.mark.parametrize("damage", ["no end", "fill bytes", "stray bytes"])
def test_photos_that_viewers_show_can_hold_captions(damage, tmp_path):
    stream, photo = BytesIO(), tmp_path / "a.jpg"
    Image.new("RGB", (64, 48)).save(stream, "JPEG", comment="mine", xmp=PLAIN.encode())
    content, table = stream.getvalue(), stream.getvalue().index(b"\xff\xdb")
    added = {"no end": b"", "fill bytes": b"\xff\xff\xff", "stray bytes": b"\0\1\2"}[damage]
    photo.write_bytes(content[:table] + added + content[table : -2 if damage == "no end" else None])
    assert Sidecars("embed").words(photo) == VERA
    assert Sidecars("embed", "overwrite").write(photo, "a dog")
    assert caption(photo) == "a dog"
    assert added in photo.read_bytes()


def test_a_shared_text_is_said_by_the_command(tmp_path, tiny_folder, capsys):
    for name in ("dog.jpg", "dog.png"):
        Image.new("RGB", (48, 48)).save(tmp_path / name)
    assert main(["caption", str(tmp_path), "--write", "txt", "--model", str(tiny_folder)]) == 0
    printed = capsys.readouterr()
    assert "dog.txt' could belong to dog.jpg or dog.png" in printed.err
    assert printed.out == "2 captions written, 0 photos left as they are\n"
    assert {file.name for file in tmp_path.glob("*.txt")} == {"dog.jpg.txt", "dog.png.txt"}
