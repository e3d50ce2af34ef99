"""The photos of a library by name, on disks and in object stores, and what is behind a name."""

import os
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from captioner import paths
from captioner.errors import ImageError, UsageError, printable

INSTALL = "pip install 'captioner[ray]'"
MAX_BYTES = 1 << 30
"""The largest object fetched from a store; it is held in memory while it is decoded."""


class Sources:
    """The photos that files, folders, globs and object stores (``s3://…``, ``gs://…``) hold.

    A photo on a disk is named by its absolute path, so that a library can be resumed from any
    folder; one in a store by its address, without what the input says of credentials. May be
    pickled: another process reads the same photos.

    Args:
        inputs: as `captioner.paths.find` takes them, or addresses that pyarrow.fs knows: an object,
            or a folder, of which the pictures in it are taken.

    Raises:
        UsageError: pyarrow is missing, or a store cannot be reached.
    """

    def __init__(self, inputs: Sequence[str]) -> None:
        self.inputs = [given for given in inputs if "://" not in given]
        self.stores = [_Store(given) for given in inputs if "://" in given]

    def __iter__(self) -> Iterator[str]:
        """The names one by one, while they are found; a photo named by two inputs comes twice.

        Raises:
            UsageError: nothing is there, or a store cannot be reached.
        """
        for path in paths.stream(self.inputs):
            yield os.path.abspath(path)  # noqa: PTH100 - Path.absolute keeps the ".." of "../photos"
        for store in self.stores:
            yield from store.names()

    def open(self, name: str) -> Path | BytesIO:
        """What `captioner.images.load` reads of a photo.

        Raises:
            ImageError: it is in a store and cannot be fetched.
        """
        for store in self.stores:
            if name.startswith(store.prefix):
                return store.fetch(name)
        return Path(name)

    def is_remote(self, name: str) -> bool:
        """Whether fetching a photo means to wait for a store."""
        return any(name.startswith(store.prefix) for store in self.stores)


class _Store:
    """A folder or an object of an object store."""

    def __init__(self, uri: str) -> None:
        self.scheme, _, rest = uri.partition("://")
        # What is shown and stored holds no key:secret@ and no options.
        self.shown = printable(f"{self.scheme}://{rest.partition('?')[0].rpartition('@')[2]}")
        if self.scheme in ("gs", "gcs") and "retry_limit_seconds" not in uri:
            uri += (
                "&" if "?" in uri else "?"
            ) + "retry_limit_seconds=15"  # the default is 15 minutes
        try:
            from pyarrow import fs
        except ImportError as error:
            raise UsageError(
                f"'{self.shown}' is in an object store, which needs pyarrow: {INSTALL}"
            ) from error
        self._selector = fs.FileSelector
        self._types = fs.FileType
        try:
            self.filesystem, self.path = fs.FileSystem.from_uri(uri)
        except (OSError, ValueError) as error:  # Arrow's own errors are these too
            raise self._unreachable(error) from error
        self.prefix = f"{self.scheme}://{self.path}"

    def names(self) -> Iterator[str]:
        info = self._ask(self.path)
        if info.type == self._types.NotFound:
            raise UsageError(f"'{self.shown}': no such object or folder in the store; check it")
        if info.type == self._types.File:
            yield f"{self.scheme}://{info.path}"
            return
        none = True
        for path in self._pictures(self.path):
            none = False
            yield f"{self.scheme}://{path}"
        if none:
            raise UsageError(
                f"'{self.shown}': no picture in it ({' '.join(paths.SUFFIXES)}); check the address"
            )

    def fetch(self, name: str) -> BytesIO:
        """The bytes of an object."""
        path = name.removeprefix(f"{self.scheme}://")
        try:
            with self.filesystem.open_input_file(path) as file:
                size = file.size()
                if size > MAX_BYTES:
                    raise OSError(f"{size} bytes, at most {MAX_BYTES} are fetched")
                stream = BytesIO(file.read())
        except (OSError, ValueError) as error:
            raise ImageError(
                f"{printable(name, limit=4096)}: found an object that cannot be fetched "
                f"({printable(_line(error))}); check that it is there and may be read"
            ) from error
        stream.name = name  # what errors about its content call it
        return stream

    def _pictures(self, folder: str) -> Iterator[str]:
        entries = sorted(self._ask(self._selector(folder)), key=lambda entry: str(entry.base_name))
        for entry in entries:
            if entry.base_name.startswith("."):
                continue
            if entry.type == self._types.Directory:
                yield from self._pictures(entry.path)
            elif paths.is_picture(entry.base_name):
                yield entry.path

    def _ask(self, what: Any) -> Any:
        try:
            return self.filesystem.get_file_info(what)
        except (OSError, ValueError) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> UsageError:
        return UsageError(
            f"'{self.shown}' cannot be reached: {printable(_line(error), limit=300)}; check the "
            "address, your credentials and the network"
        )


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
