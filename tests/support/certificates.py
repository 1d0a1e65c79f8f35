"""Certificates for tests, made by the ``openssl`` program: an authority, and pairs that it signed."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True, slots=True)
class Pair:
    certificate: Path
    key: Path


class Authority:
    """Skips the test without ``openssl``."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        if shutil.which("openssl") is None:
            pytest.skip("no openssl program to make certificates with")
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._own = Pair(folder / f"{name}.crt", folder / f"{name}.key")
        self._openssl(
            "req", "-x509", *_new_key(self._own), "-subj", f"/CN={name}", "-out", self._own.certificate
        )

    @property
    def certificate(self) -> Path:
        return self._own.certificate

    def sign(self, name: str) -> Pair:
        """For 127.0.0.1 and localhost."""
        pair = Pair(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        request, extensions = self._folder / f"{name}.csr", self._folder / f"{name}.ext"
        extensions.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        self._openssl("req", *_new_key(pair), "-subj", f"/CN={name}", "-out", request)
        self._openssl(
            "x509", "-req", "-in", request, "-CA", self._own.certificate, "-CAkey", self._own.key,
            "-CAcreateserial", "-days", "2", "-extfile", extensions, "-out", pair.certificate,
        )  # fmt: skip
        return pair

    @staticmethod
    def _openssl(*arguments: str | Path) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def _new_key(pair: Pair) -> tuple[str | Path, ...]:
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
    return (*curve, "-nodes", "-keyout", pair.key)
