"""The software bill of materials of an image, as SPDX 2.3 in JSON: exactly the packages that were put in,
which the build knows from its locks."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping
from email import message_from_bytes
from pathlib import Path
from typing import Any
from urllib.parse import quote

import dranet
from testbed.debian.packages import cache_folder
from tools.image.build import Image
from tools.image.debian import hash_file
from tools.image.slices import SUITE
from tools.image.wheels import fetch_wheels
from tools.project import Project

JsonObject = dict[str, Any]

_ROOT = "SPDXRef-Image"

_LICENSES = {"3-Clause BSD License": "BSD-3-Clause", "MIT": "MIT"}
"""Licenses that are not stated as SPDX expressions -> the expression."""


def write_sbom(image: Image, project: Project, created: str) -> str:
    """Return the document of one image. ``created`` is the time of the commit: it can be made again."""
    packages = [_describe_image(image), *_describe_debian(image), *_describe_python(image, project)]
    contains = [
        {"spdxElementId": _ROOT, "relationshipType": "CONTAINS", "relatedSpdxElement": package["SPDXID"]}
        for package in packages[1:]
    ]
    describes = {
        "spdxElementId": "SPDXRef-DOCUMENT",
        "relationshipType": "DESCRIBES",
        "relatedSpdxElement": _ROOT,
    }
    document = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"{image.name} ({image.architecture})",
        "documentNamespace": f"{project.repository}/spdx/{image.digest.replace(':', '-')}",
        "creationInfo": {"created": created, "creators": [f"Tool: dranet-tools-{dranet.__version__}"]},
        "packages": packages,
        "relationships": [describes, *contains],
    }
    return json.dumps(document, indent=1) + "\n"


def _describe_image(image: Image) -> JsonObject:
    digest = image.digest.removeprefix("sha256:")
    return _package(
        _ROOT,
        image.name.partition(":")[0],
        dranet.__version__,
        f"pkg:oci/dranet@{quote(image.digest)}?arch={image.architecture}",
        checksums=[{"algorithm": "SHA256", "checksumValue": digest}],
        primaryPackagePurpose="CONTAINER",
        licenseDeclared="Apache-2.0",
    )


def _describe_debian(image: Image) -> Iterator[JsonObject]:
    for package in image.packages:
        version = quote(package.version, safe="")
        yield _package(
            f"SPDXRef-deb-{_name_element(package.name)}",
            package.name,
            package.version,
            f"pkg:deb/debian/{quote(package.name)}@{version}?arch={package.architecture}&distro={SUITE}",
            checksums=[{"algorithm": "SHA256", "checksumValue": package.sha256}],
            supplier="Organization: Debian",
        )


def _describe_python(image: Image, project: Project) -> Iterator[JsonObject]:
    for wheel in fetch_wheels(image.architecture, cache_folder("image")):
        file_name, version, _ = wheel.name.split("-", 2)
        name = file_name.replace("_", "-").lower()
        yield _package(
            f"SPDXRef-pypi-{_name_element(name)}",
            name,
            version,
            f"pkg:pypi/{name}@{version}",
            checksums=[{"algorithm": "SHA256", "checksumValue": hash_file(wheel)}],
            supplier="Organization: Python Package Index",
            licenseDeclared=_read_license(wheel),
        )
    own = dranet.__version__
    place: Mapping[str, str] = {"downloadLocation": f"git+{project.repository}@v{own}"}
    yield _package(
        "SPDXRef-pypi-dranet", "dranet", own, f"pkg:pypi/dranet@{own}", licenseDeclared="Apache-2.0", **place
    )


def _read_license(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        about = message_from_bytes(archive.read(name))
    return about["License-Expression"] or _LICENSES.get(about["License"] or "", "NOASSERTION")


def _package(element: str, name: str, version: str, address: str, **more: Any) -> JsonObject:
    return {
        "SPDXID": element,
        "name": name,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "externalRefs": [
            {
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": address,
            }
        ],
        **more,
    }


def _name_element(name: str) -> str:
    """Identifiers of elements have letters, digits, dots and hyphens alone."""
    return name.replace("+", "-plus").replace("_", "-")
