"""Filesystems of fsspec with the habits of object stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fsspec.implementations.memory import MemoryFileSystem


class AnswersWithAll(MemoryFileSystem):
    """Lists everything below, whatever was asked."""

    cachable = False
    protocol = "answers-with-all"

    def find(self, path: str, maxdepth: int | None = None, **kwargs: Any) -> Any:
        return super().find(path, None, **kwargs)


class CachesListings(MemoryFileSystem):
    """Remembers what it saw, as s3fs and gcsfs do, until it is told to forget."""

    cachable = False
    protocol = "caches-listings"

    def find(self, path: str, maxdepth: int | None = None, **kwargs: Any) -> Any:
        return self._once(
            ("find", path, maxdepth), lambda: MemoryFileSystem.find(self, path, maxdepth, **kwargs)
        )

    def info(self, path: str, **kwargs: Any) -> Any:
        return self._once(("info", path), lambda: MemoryFileSystem.info(self, path, **kwargs))

    def _once(self, key: Any, look: Callable[[], Any]) -> Any:
        seen = self.__dict__.setdefault("_seen", {})
        if key not in seen:
            try:
                seen[key] = look()
            except FileNotFoundError as error:
                seen[key] = error
        if isinstance(seen[key], Exception):
            raise seen[key]
        return seen[key]

    def invalidate_cache(self, path: str | None = None) -> None:
        self.__dict__["_seen"] = {}


class ReplacesOnClose(MemoryFileSystem):
    """Shows nothing of a file before it is closed, and has no directories."""

    cachable = False
    protocol = "replaces-on-close"

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        path = self._strip_protocol(path)
        if mode != "wb":
            return super()._open(path, mode, **kwargs)
        opened = super()._open(f"/.uploads{path}", mode, **kwargs)
        close = opened.close

        def publish() -> None:
            close()
            if (done := self.store.pop(f"/.uploads{path}", None)) is not None:
                self.store[path] = done

        opened.close = publish
        return opened
