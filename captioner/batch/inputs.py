"""The photos of a library, in folders and in object stores."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path, PurePosixPath

from captioner.errors import ImageError, UsageError, joined
from captioner.photos import paths

INSTALL = "pip install 'captioner[ray]'"


class Sources:
    """The photos in files, folders, globs and object stores (``s3://…``, ``gs://…``).

    A file is named by its absolute path, so that a library can be resumed from any folder; an object
    by its address without credentials. Sources can be pickled for other processes.

    Args:
        inputs: as ``paths.find`` takes them, or addresses that pyarrow.fs knows: an object,
            or a folder that is searched for images.

    Raises:
        UsageError: pyarrow is missing, or a store cannot be reached.
    """

    def __init__(self, inputs: Sequence[str]) -> None:
        self.inputs = [name for name in inputs if "://" not in name]
        self.stores = [_Store(address) for address in inputs if "://" in address]

    def __iter__(self) -> Iterator[str]:
        """Yield the names one by one; a photo that two inputs name is yielded twice.

        Raises:
            UsageError: nothing was found, or a store cannot be reached.
        """
        for path in paths.iterate(self.inputs):
            yield os.path.abspath(path)  # noqa: PTH100 - Path.absolute keeps the ".." of "../photos"
        for store in self.stores:
            yield from store.names()

    def open(self, name: str) -> Path | BytesIO | ImageError:
        """Return what ``captioner.photos.images.load`` reads, or the error of a store."""
        for store in self.stores:
            if name.startswith(store.prefix):
                return store.fetch(name)
        return Path(name)


class _Store:
    """A folder or an object in an object store."""

    def __init__(self, uri: str) -> None:
        self.scheme, _, rest = uri.partition("://")
        # For messages, so without key:secret@ and options.
        self.address = f"{self.scheme}://{rest.partition('?')[0].rpartition('@')[2]}"
        if self.scheme in ("gs", "gcs") and "retry_limit_seconds" not in uri:
            # The default of 15 minutes is too long to wait for an error.
            uri += ("&" if "?" in uri else "?") + "retry_limit_seconds=15"
        try:
            from pyarrow import fs
        except ImportError as error:
            raise UsageError(
                f"'{self.address}' is in an object store, which needs pyarrow: {INSTALL}"
            ) from error
        self._selector, self._types = fs.FileSelector, fs.FileType
        with self._store_errors():
            self.filesystem, self.path = fs.FileSystem.from_uri(uri)
        self.prefix = f"{self.scheme}://{self.path}"

    def names(self) -> Iterator[str]:
        """Yield the object itself, or the images in the folder and its subfolders.

        As in ``captioner.photos.paths.walk``, a folder is listed when it is reached.
        """
        with self._store_errors():
            info = self.filesystem.get_file_info(self.path)
        if info.type == self._types.NotFound:
            raise UsageError(f"'{self.address}': no such object or folder in the store; check it")
        if info.type == self._types.File:
            yield f"{self.scheme}://{info.path}"
            return
        path = None
        for path in self._walk():
            yield f"{self.scheme}://{path}"
        if path is None:
            raise UsageError(
                f"'{self.address}': no photo in it ({' '.join(paths.SUFFIXES)}); check the address"
            )

    def _walk(self) -> Iterator[str]:
        pending = [self.path]
        while pending:
            with self._store_errors():
                found = self.filesystem.get_file_info(self._selector(pending.pop()))
            entries = {e.path: e for e in found if not paths.is_hidden(e.base_name)}
            for path in sorted(entries):
                if entries[path].is_file and PurePosixPath(path).suffix.lower() in paths.SUFFIXES:
                    yield path
            folders = [path for path in entries if entries[path].type == self._types.Directory]
            pending += sorted(folders, reverse=True)

    def fetch(self, name: str) -> BytesIO | ImageError:
        """Return the content of an object; errors about it show the stream's name."""
        try:
            with self.filesystem.open_input_file(name.removeprefix(f"{self.scheme}://")) as file:
                stream = BytesIO(file.read())
        except (OSError, ValueError) as error:
            return ImageError(
                f"{name}: found an object that cannot be fetched ({joined(error)}); check that it "
                "exists and may be read"
            )
        stream.name = name
        return stream

    @contextmanager
    def _store_errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:  # Arrow's errors are subclasses of these
            raise UsageError(
                f"'{self.address}' cannot be reached: {joined(error)}; check the address, your "
                "credentials and the network"
            ) from error
