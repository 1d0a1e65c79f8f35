"""Until when the port's certificate is good: as ``openssl`` made it, in a metric and in ``dranet doctor``."""

from __future__ import annotations

import re
import shutil
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet.driver.probes.server import PortContent, ProbeServer
from dranet.driver.probes.tls import OLD_SECONDS, OLD_SHARE, TlsFiles, Validity, parse_validity, read_validity
from dranet.telemetry import Metrics
from tools.monitoring import list_alerts

DAY = 86_400


def make(folder: Path, days: int, *more: str) -> TlsFiles:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl program to make certificates with")
    certificate, key = folder / "tls.crt", folder / "tls.key"
    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(key))
    command = [
        "openssl",
        "req",
        "-x509",
        *new,
        "-days",
        str(days),
        "-subj",
        "/CN=x",
        "-out",
        str(certificate),
    ]
    subprocess.run([*command, *more], check=True, capture_output=True)
    return TlsFiles(certificate, key)


def ask_openssl(file: Path, what: str) -> float:
    command = ["openssl", "x509", "-in", str(file), "-noout", f"-{what}"]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    return datetime.strptime(told.partition("=")[2], "%b %d %H:%M:%S %Y GMT").replace(tzinfo=UTC).timestamp()


@pytest.mark.process
@pytest.mark.parametrize("days", [1, 90, 40_000])  # the last one has four digits for its year
def test_it_is_what_openssl_says(days: int, tmp_path: Path) -> None:
    validity = make(tmp_path, days).validity
    assert validity is not None
    file = tmp_path / "tls.crt"
    assert validity.not_before == ask_openssl(file, "startdate")
    assert validity.not_after == ask_openssl(file, "enddate")


@pytest.mark.process
def test_of_a_chain_it_is_that_of_the_first_one(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    own.mkdir()
    other.mkdir()
    wanted = make(own, 5).validity
    make(other, 50)
    file = own / "tls.crt"
    file.write_text(f"# words\n{file.read_text()}{(other / 'tls.crt').read_text()}")
    assert read_validity(file) == wanted


@pytest.mark.parametrize(
    "text", ["", "words", "-----BEGIN CERTIFICATE-----\nMII=\n-----END CERTIFICATE-----"]
)
def test_a_file_without_one_says_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(text)
    assert read_validity(tmp_path / "file") is None
    assert read_validity(tmp_path / "none") is None


@given(st.binary(max_size=64) | st.binary(max_size=64).map(lambda data: b"\x30\x40\x30\x3e" + data))
def test_no_bytes_are_more_than_a_value_error(data: bytes) -> None:
    with suppress(ValueError):
        parse_validity(data)


@pytest.mark.parametrize(
    ("days", "left", "is_old"),
    [(90, 10, False), (90, 6, True), (3650, 8, False), (3650, 6, True), (1, 0.2, False), (1, 0.05, True)],
)
def test_it_is_old_with_a_tenth_of_its_time_left_and_a_week(days: int, left: float, is_old: bool) -> None:
    validity = Validity(0, days * DAY)
    assert validity.is_old((days - left) * DAY) is is_old


def test_the_alert_asks_the_same() -> None:
    (alert,) = (alert for alert in list_alerts() if alert.name == "DranetCertificateEnds")
    assert re.findall(r"[\d.]+", alert.expr) == [str(OLD_SHARE), str(OLD_SECONDS)]


@pytest.mark.process
async def test_the_metric_and_the_doctor_tell_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tls, metrics = make(tmp_path, 1), Metrics()
    assert tls.validity is not None
    assert tls.read_findings()[0].severity == "ok"
    last = tls.validity.not_after
    monkeypatch.setattr("dranet.driver.probes.tls.time.time", lambda: last - 60)
    end = datetime.fromtimestamp(last, UTC)
    (finding,) = tls.read_findings()
    assert (finding.severity, finding.seen) == (
        "warning",
        f"the certificate in its file is good until {end:%Y-%m-%d %H:%M:%S} UTC",
    )
    await ProbeServer("127.0.0.1:0", metrics, PortContent(dict), tls=tls)._scrape()
    name = "dranet_certificate_not_after_timestamp_seconds"
    assert metrics.registry.get_sample_value(name, {"setting": "metrics_tls_cert"}) == last


async def test_without_tls_there_is_no_such_series() -> None:
    text = (await ProbeServer("127.0.0.1:0", Metrics(), PortContent(dict))._scrape()).decode()
    assert "\ndranet_certificate_not_after_timestamp_seconds{" not in text
