"""Records of an earlier driver are read and given back by this one; those of a later one are let alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from msgspec import to_builtins

from dranet.errors import Reason, StoreError
from dranet.kernel.attachment.restore import read_link_state
from dranet.model.claim import ClaimRef, PodRef
from dranet.model.facts import CharDevice
from dranet.model.plan import RECORD_VERSION, PreparedClaim
from dranet.store.claim_store import ClaimStore
from tests.driver.bench import UVERBS, Bench, names, sandbox
from tests.support.namespaces import Namespace
from tests.support.record_fields import FIELDS, RECORDS, find_fields
from tests.support.records import read_texts, read_versions, write_record


def write_file(path: Path, record: str, version: int) -> None:
    """A store as a driver of that version left it."""
    write_record(path, "claim-uid", record, version)


def first_record(**host: object) -> str:
    record = json.loads((RECORDS / "version-1.json").read_text())
    record["devices"][0]["plan"]["host"] |= host
    return json.dumps(record)


# --- an earlier one -------------------------------------------------------------------------------------


def test_a_record_of_version_1_is_read_whole(tmp_path: Path) -> None:
    write_file(tmp_path / "claims", first_record(), 1)
    with closing(ClaimStore(tmp_path / "claims")) as store:
        store.open()
        assert store.quarantined == ()
        record = store.get("claim-uid")
    assert record is not None
    assert (record.sandbox_id, record.netns_path, record.netns_id) == ("sandbox-1", "/run/netns/pod", "")
    (device,) = record.devices
    assert device.device.char_devices == (CharDevice("/dev/infiniband/uverbs0", 231, 192),)
    assert device.plan is not None
    assert device.plan.host is not None
    assert [step.step for step in device.plan.steps] == ["move-link", "add-address", "set-up", "add-route"]
    assert device.plan.host.routes[0].gateway == "10.9.0.254"
    assert device.plan.host.version == 1
    assert read_versions(tmp_path / "claims") == {1}, "nothing is in it that an earlier driver cannot read"


@pytest.mark.kernel
def test_a_nic_that_an_earlier_driver_gave_to_a_pod_comes_home_as_it_was(
    start: Callable[..., Bench], tmp_path: Path, node: Namespace, pod: Namespace
) -> None:
    """What that driver did not record (arp, promiscuous, other names) a move leaves alone, and so do we. The
    sysctls, which a move does take, are lost."""
    node.ip_lines(
        "addr add 10.9.0.1/24 dev eth1 label eth1:7\n"
        "route add 10.8.0.0/16 via 10.9.0.254 dev eth1 metric 100 proto static\n"
        "neigh add 10.9.0.9 lladdr 02:00:00:00:00:09 dev eth1 nud permanent\n"
        "link property add dev eth1 altname enp1s0f0\n"
        "link set eth1 promisc on arp off allmulticast on multicast off\n"
    )
    before = node.picture()
    (link,) = node.read("link", "show", "dev", "eth1")
    node.ip("link", "set", "eth1", "netns", pod.name, "name", "net1", "mtu", "1400")
    pod.ip_lines("addr add 10.9.0.1/24 dev net1\nlink set net1 up\n")
    host = {"ifindex": link["ifindex"], "mac": link["address"], "tx_queue_length": link["txqlen"]}
    text = first_record(**host).replace("/run/netns/pod", str(pod.path))
    write_file(tmp_path / "claims", text, 1)
    bench = start()
    bench.reconcile()  # its pod is gone
    assert "eth1" in names(node)
    after = node.picture()
    for part in ("links", "addresses", "routes", "tokens", "qdiscs", "ethtool"):
        assert after[part] == before[part]
    assert [entry["lladdr"] for entry in after["neighbours"]] == ["02:00:00:00:00:09"]
    (report,) = bench.told.reports
    assert (report.missing, report.problems) == ((), ())


def test_a_record_of_version_2_is_read_whole_and_asks_for_no_files(tmp_path: Path) -> None:
    write_file(tmp_path / "claims", (RECORDS / "version-2.json").read_text(), 2)
    with closing(ClaimStore(tmp_path / "claims")) as store:
        store.open()
        assert store.quarantined == ()
        record = store.get("claim-uid")
    assert record is not None
    (device,) = record.devices
    assert (record.pod_claim_name, record.metadata, device.alternative) == ("", (), "")
    assert device.cdi_ids == ("dra.net/claim=claim-uid-dev-eth1",)  # the kubelet has been told so
    assert device.rdma.memlock_bytes == -1
    assert device.plan is not None
    assert device.plan.host is not None
    assert device.plan.host.version == 2
    assert (device.plan.host.altnames, device.plan.host.promiscuous) == (("enp1s0f0",), True)
    assert read_versions(tmp_path / "claims") == {2}, "nothing is in it that an earlier driver cannot read"


def test_a_record_of_version_3_is_read_whole_and_asks_for_nothing_near_the_devices(tmp_path: Path) -> None:
    write_file(tmp_path / "claims", (RECORDS / "version-3.json").read_text(), 3)
    with closing(ClaimStore(tmp_path / "claims")) as store:
        store.open()
        assert store.quarantined == ()
        record = store.get("claim-uid")
    assert record is not None
    (device,) = record.devices
    assert (record.pod_claim_name, device.alternative) == ("network", "fast")
    assert [file.request for file in record.metadata] == ["nic"]
    assert device.plan is not None
    assert device.plan.host is not None
    assert device.plan.host.version == 3
    assert read_versions(tmp_path / "claims") == {3}, "nothing is in it that an earlier driver cannot read"


@pytest.mark.kernel
def test_what_version_2_recorded_and_version_1_did_not_is_given_back(
    start: Callable[..., Bench], tmp_path: Path, node: Namespace, pod: Namespace
) -> None:
    """A version between the first and ours: its record is whole, so nothing in it is left alone."""
    node.ip("link", "set", "eth1", "promisc", "on")
    before = node.picture()
    host = to_builtins(node.run(lambda: read_link_state("eth1")))
    node.ip("link", "set", "eth1", "netns", pod.name, "name", "net1")
    pod.ip("link", "set", "net1", "promisc", "off")
    record = json.loads((RECORDS / "version-2.json").read_text())
    record["devices"][0]["plan"]["host"] = {**host, "version": 2}
    record |= {"netns_path": str(pod.path), "netns_id": ""}
    write_file(tmp_path / "claims", json.dumps(record), 2)
    bench = start()
    bench.reconcile()  # its pod is gone
    assert node.picture()["links"] == before["links"]
    (report,) = bench.told.reports
    assert (report.missing, report.problems) == ((), ())


@pytest.mark.kernel
def test_a_pod_that_runs_on_a_record_of_version_2_goes_on_and_its_nic_comes_home(
    start: Callable[..., Bench], tmp_path: Path, node: Namespace, pod: Namespace
) -> None:
    """The driver is replaced under it: its containers come and go, then it ends."""
    node.ip_lines("link set eth1 promisc on\nlink property add dev eth1 altname enp1s0f0\n")
    before = node.picture()
    old = start()
    record = old.prepare("eth1", "net1")
    assert old.run_sandbox(sandbox(pod))
    old.close()
    store = tmp_path / "claims"
    write_record(store, record.claim.uid, as_version_2(read_texts(store)[record.claim.uid]), 2)
    bench = start()
    assert bench.store.quarantined == ()
    bench.reconcile(sandbox(pod))
    assert bench.create_container(sandbox(pod)).devices == (UVERBS,)
    assert read_versions(tmp_path / "claims") == {2}, "nothing had to be written"
    placed = bench.store.get(record.claim.uid)
    assert placed is not None
    assert (placed.metadata, placed.pod_claim_name) == ((), "")
    assert bench.stop_sandbox(sandbox(pod))
    assert node.picture() == before
    assert bench.run_sandbox(sandbox(pod, 2)), "a second sandbox of the pod"
    assert node.run(lambda: bench.attachments.release_claim(record.claim.uid)) is not None
    assert node.picture() == before
    assert [report.problems for report in bench.told.reports] == [()]


def as_version_2(text: str) -> str:
    """The record as the driver of that version would have written it."""
    record = json.loads(text)
    for name in ("version", "pod_claim_name", "metadata"):
        del record[name]
    for device in record["devices"]:
        del device["alternative"]
        device["plan"]["host"]["version"] = 2
    return json.dumps(record)


# --- a later one ----------------------------------------------------------------------------------------


def test_a_file_of_a_later_driver_is_refused_and_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "claims"
    write_file(path, '{"step": "unheard of"}', RECORD_VERSION + 1)
    store = ClaimStore(path)
    with pytest.raises(StoreError, match="newer driver") as caught:
        store.open()
    assert caught.value.reason is Reason.STORE_NEWER
    assert read_texts(path) == {
        "claim-uid": json.dumps({"version": RECORD_VERSION + 1, "step": "unheard of"}),
    }


def test_a_later_driver_without_claims_leaves_a_store_that_an_earlier_one_reads(tmp_path: Path) -> None:
    """A drained node can go back: it need not be known that there is a file to remove."""
    path = tmp_path / "claims"
    with closing(ClaimStore(path)) as store:
        store.open()
        assert read_versions(path) == set()
        write_one(store)
        assert read_versions(path) == {RECORD_VERSION}
        store.delete("claim-uid")
        assert read_versions(path) == set()


def write_one(store: ClaimStore) -> None:
    claim, pod = ClaimRef("default", "claim", "claim-uid"), PodRef("default", "pod", "pod-uid")
    store.put(PreparedClaim(claim, pod, (), "boot"))


# --- the next one ---------------------------------------------------------------------------------------


def test_a_new_field_needs_a_new_version() -> None:
    """An earlier driver would read the record without it, and write it back so: the host would not get it.

    Raise RECORD_VERSION, give ``LinkState`` what ``restore`` needs to tell the versions apart, and write the
    fields down anew: tests/data/records/README.md.
    """
    assert find_fields(PreparedClaim, {}) == json.loads(FIELDS.read_text())
