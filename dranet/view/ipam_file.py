"""The file of address sources (``ipam_file``): names that claims give in ``interface.ipam``."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path

from dranet.errors import ClaimError, SettingsError
from dranet.model.attributes import DOMAIN
from dranet.model.ipam import AddressSource, IpamProblem, parse_entry
from dranet.view.settings_file import Document, Stamp, read_document, read_stamp

log = logging.getLogger(__name__)

_FLAG = "--ipam-file"


def read_ipam_file(file: Path, driver: str = DOMAIN) -> tuple[Mapping[str, AddressSource], Stamp]:
    """The entries by name. Raises SettingsError with every problem of the file and its line."""
    document = read_document(_FLAG, file)
    if document.data is None:
        return {}, document.stamp
    if not isinstance(document.data, dict):
        raise SettingsError(
            document.describe((), "the file", "must be a mapping of names to address sources")
        )
    sources: dict[str, AddressSource] = {}
    problems: list[str] = []
    for name, value in document.data.items():
        try:
            sources[name] = parse_entry(name, value, driver)
        except IpamProblem as problem:
            problems.append(_describe(document, str(name), problem))
    if problems:
        raise SettingsError("; ".join(problems), hint="see docs/networking/ipam.md")
    return sources, document.stamp


def _describe(document: Document, name: str, problem: IpamProblem) -> str:
    path = (name, *problem.path)
    return document.describe(path, ".".join(path), str(problem))


class IpamFile:
    """Keeps the sources fresh; claims ask it from several threads at once. Raises SettingsError where the
    file cannot be used when it is made; later the last good one stays in force."""

    def __init__(self, file: Path, driver: str = DOMAIN) -> None:
        self._file = file
        self._driver = driver
        self._sources, self._stamp = read_ipam_file(file, driver)
        self._looking = threading.Lock()
        """Its stamp is noted before its content is read: others meanwhile would get the last sources."""
        self.problem = ""
        """Why the file, as it is now, is not in force; empty while it is."""

    @property
    def sources(self) -> Mapping[str, AddressSource]:
        """As read last."""
        return self._sources

    def get(self) -> Mapping[str, AddressSource]:
        """Blocking: looks at the file, and reads it if it has changed."""
        with self._looking:
            return self._look()

    def _look(self) -> Mapping[str, AddressSource]:
        stamp = read_stamp(self._file)
        if stamp == self._stamp:
            return self._sources
        self._stamp = stamp
        try:
            self._sources, self._stamp = read_ipam_file(self._file, self._driver)
        except SettingsError as error:
            if str(error) != self.problem:
                log.error("the last good address sources stay in force: %s", error)
            self.problem = str(error)
        else:
            log.info("the file of address sources %s has changed and is in force", self._file)
            self.problem = ""
        return self._sources

    def find(self, name: str) -> AddressSource:
        """Raises ClaimError for an unknown name."""
        sources = self.get()
        if name not in sources:
            raise unknown_name(name, sources)
        return sources[name]


def unknown_name(name: str, sources: Mapping[str, AddressSource]) -> ClaimError:
    known = ", ".join(sorted(sources)) or "none"
    return ClaimError(
        f"interface.ipam: {name} is not in the driver's ipam_file; known there: {known}",
        hint="correct the name, or ask the administrator to add it",
    )
