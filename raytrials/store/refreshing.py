"""A filesystem whose credentials expire, made anew by a factory when they do."""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import pyarrow.fs

from raytrials.errors import ConfigurationError, StorageError
from raytrials.store.filesystem import as_pyarrow
from raytrials.store.retrying import kind_of

T = TypeVar("T")

Factory = Callable[[], Any]


def refreshing_filesystem(factory: Factory) -> pyarrow.fs.FileSystem:
    """Return a filesystem that is made by `factory`, and made anew when the storage refuses it.

    Long experiments outlive the credentials that they began with. Hand this over as
    `RunConfig(storage_filesystem=...)` and to `Tuner.restore(..., storage_filesystem=...)`: on the
    driver and on every worker the factory is called once at first use, and again whenever the
    storage answers that access is denied or a token has expired. What is pickled is the factory,
    not a client, so a client's own settings are what the factory gives it, everywhere.

    Args:
        factory: takes no arguments; returns a new filesystem of pyarrow or fsspec with credentials
            of this moment. It must be picklable by cloudpickle.

    Raises:
        ConfigurationError: `factory` cannot be called.
    """
    if not callable(factory):
        raise ConfigurationError(
            "refreshing_filesystem(factory)",
            factory,
            "a function without arguments that returns a filesystem of pyarrow or fsspec",
        )
    return pyarrow.fs.PyFileSystem(RefreshingHandler(factory))


_handlers: weakref.WeakValueDictionary[str, RefreshingHandler] = weakref.WeakValueDictionary()
"""Those of this process: a checkpoint that arrives brings its filesystem, which is one we have."""


def _shared(factory: Factory, key: str) -> RefreshingHandler:
    return _handlers.get(key) or RefreshingHandler(factory, key)


class RefreshingHandler(pyarrow.fs.FileSystemHandler):  # type: ignore[misc]
    """Passes every call on to the factory's filesystem.

    Args:
        factory: as in :func:`refreshing_filesystem`.
        key: the same for all copies, in every process; "" for a new one.
    """

    def __init__(self, factory: Factory, key: str = "") -> None:
        self._factory = factory
        self._key = key or uuid.uuid4().hex
        self._made: pyarrow.fs.FileSystem | None = None
        _handlers.setdefault(self._key, self)

    def renew_credentials(self) -> bool:
        """Make the filesystem anew at its next use."""
        self._made = None
        return True

    def _call(self, operation: Callable[[pyarrow.fs.FileSystem], T]) -> T:
        try:
            return operation(self.current_filesystem())
        except Exception as error:
            if kind_of(error) != "forbidden":
                raise
        self.renew_credentials()
        return operation(self.current_filesystem())

    def current_filesystem(self) -> pyarrow.fs.FileSystem:
        """Return what the factory made last."""
        if self._made is None:
            try:
                self._made = as_pyarrow(self._factory())
            except Exception as error:
                name = getattr(self._factory, "__qualname__", repr(self._factory))
                detail = f"{type(error).__name__}: {error}"
                raise StorageError("connecting", name, kind_of(error), detail) from error
        return self._made

    def __reduce__(self) -> tuple[Any, ...]:
        return (_shared, (self._factory, self._key))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RefreshingHandler) and other._key == self._key

    def __hash__(self) -> int:
        return hash(self._key)

    def get_type_name(self) -> str:
        return f"refreshing+{self._call(lambda fs: fs.type_name)}"

    def normalize_path(self, path: str) -> str:
        return self._call(lambda fs: str(fs.normalize_path(path)))

    def get_file_info(self, paths: list[str]) -> Any:
        return self._call(lambda fs: fs.get_file_info(paths))

    def get_file_info_selector(self, selector: pyarrow.fs.FileSelector) -> Any:
        return self._call(lambda fs: fs.get_file_info(selector))

    def create_dir(self, path: str, recursive: bool) -> None:  # noqa: FBT001 - pyarrow's
        self._call(lambda fs: fs.create_dir(path, recursive=recursive))

    def delete_dir(self, path: str) -> None:
        self._call(lambda fs: fs.delete_dir(path))

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:  # noqa: FBT001, FBT002
        self._call(lambda fs: fs.delete_dir_contents(path, missing_dir_ok=missing_dir_ok))

    def delete_root_dir_contents(self) -> None:
        self._call(lambda fs: fs.delete_dir_contents("", accept_root_dir=True))

    def delete_file(self, path: str) -> None:
        self._call(lambda fs: fs.delete_file(path))

    def move(self, src: str, dest: str) -> None:
        self._call(lambda fs: fs.move(src, dest))

    def copy_file(self, src: str, dest: str) -> None:
        self._call(lambda fs: fs.copy_file(src, dest))

    def open_input_stream(self, path: str) -> Any:
        return self._call(lambda fs: fs.open_input_stream(path, compression=None))

    def open_input_file(self, path: str) -> Any:
        return self._call(lambda fs: fs.open_input_file(path))

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        return self._call(
            lambda fs: fs.open_output_stream(path, compression=None, metadata=metadata)
        )

    def open_append_stream(self, path: str, metadata: Any) -> Any:
        return self._call(
            lambda fs: fs.open_append_stream(path, compression=None, metadata=metadata)
        )
