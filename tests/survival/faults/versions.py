"""The driver is updated and rolled back by one version of its records, with pods running (decision 018)."""

from __future__ import annotations

import sys
from pathlib import Path

from dranet.model.plan import RECORD_VERSION
from testbed.cluster import JsonObject
from tests.support.records import edit_record, read_texts, read_versions
from tests.survival.environment import Stage
from tests.survival.faults.common import begin, end, wait_log

NEWER = (sys.executable, str(Path(__file__).with_name("newer_driver.py")))


async def downgrade(stage: Stage) -> None:
    """From the next version to this one: refused, with all left as it is, until the newer one is back; and
    let pass once the node is drained."""
    await _stop(stage)
    await stage.start_driver(command=NEWER)
    await begin(stage)
    assert _read_version(stage) == RECORD_VERSION + 1
    await _stop(stage)
    since, records = stage.log_size(), _read_records(stage)
    await stage.driver.start()
    await stage.until(lambda: not stage.driver.is_running, "the older one ends")
    assert f"has records of version {RECORD_VERSION + 1}" in stage.log(since)
    assert (_read_version(stage), _read_records(stage)) == (RECORD_VERSION + 1, records)
    await stage.assert_well()
    await stage.start_driver(command=NEWER)
    await stage.assert_well()
    await stage.delete_all_pods()
    await _stop(stage)
    await stage.start_driver()
    await begin(stage)
    assert _read_version(stage) == RECORD_VERSION
    await end(stage, "downgrade by one version")


async def upgrade(stage: Stage) -> None:
    """From the version before: what it wrote is read, and each NIC comes home with what it knew."""
    await begin(stage)
    await _stop(stage)
    _write_as_before(_records(stage))
    assert _read_version(stage) == RECORD_VERSION - 1
    since = stage.log_size()
    await stage.start_driver()
    await wait_log(stage, "adopted: its pod runs claim=default/moved-1", since)
    assert "set aside" not in stage.log(since)
    await end(stage, "upgrade by one version")


async def _stop(stage: Stage) -> None:
    if stage.driver.is_running:
        ended = await stage.driver.stop(30)
        assert ended.exit_code == 0


def _records(stage: Stage) -> Path:
    return stage.testbed.places.work_dir / "state" / "claims"


def _read_version(stage: Stage) -> int:
    return max(read_versions(_records(stage)))


def _read_records(stage: Stage) -> dict[str, str]:
    return read_texts(_records(stage))


def _write_as_before(path: Path) -> None:
    """Without what version 4 brought: a record of version 3, as ``tests/data/records/version-3.json`` is."""
    claims = read_texts(path)
    assert claims
    for uid in claims:
        edit_record(path, uid, _without_version_4)


def _without_version_4(record: JsonObject) -> JsonObject:
    record["version"] = RECORD_VERSION - 1
    del record["others"]
    for device in record["devices"]:
        del device["workload"], device["vendor_cdi_id"]
        plan = device.get("plan") or {}
        plan.pop("cpus", None)
        host = plan.get("host")
        if host:
            host["version"] = RECORD_VERSION - 1
    return record
