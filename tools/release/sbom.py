"""The software bill of materials of an image, as SPDX 2.3 in JSON: exactly the packages that were put in,
which the build knows from its locks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import dranet
from tools.image.build import Image
from tools.image.slices import SUITE
from tools.image.wheels import locked_versions
from tools.project import Project

JsonObject = dict[str, Any]

_ROOT = "SPDXRef-Image"


def write_sbom(image: Image, project: Project, created: str) -> str:
    """Return the document of one image. ``created`` is the time of the commit: it can be made again."""
    packages = [_describe_image(image), *_describe_debian(image), *_describe_python(project)]
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


def _describe_python(project: Project) -> Iterator[JsonObject]:
    for name, version in locked_versions().items():
        yield _package(f"SPDXRef-pypi-{_name_element(name)}", name, version, f"pkg:pypi/{name}@{version}")
    own = dranet.__version__
    place: Mapping[str, str] = {"downloadLocation": f"git+{project.repository}@v{own}"}
    yield _package(
        "SPDXRef-pypi-dranet", "dranet", own, f"pkg:pypi/dranet@{own}", licenseDeclared="Apache-2.0", **place
    )


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
