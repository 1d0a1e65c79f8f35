"""The driver as a program: start to serving and to registered, memory at idle, Prepare of one claim.

Everything is real but the cluster around it, which is the testbed's: hardware of two NICs, stand-in
runtime. Prepare is timed by a gRPC client on the DRA socket, API request, plan, commit and CDI spec
included. Memory is the child's ``VmRSS`` (shared file pages included) with 1,000 links on the node.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc.aio

from benchmarks.measure import Result, Series, time_ms
from dranet.cluster import paths
from dranet.pb import dra_v1_pb2
from testbed.cluster import DRIVER_NAME, NAMESPACE, NODE_NAME, Testbed
from testbed.isolation import WORK_DIR
from testbed.node.hardware import load_hardware
from testbed.runtimes import stand_in

STARTS = 10
PREPARES = 100
MEMORY_SAMPLES = 10
LINKS = 1000
SERVING_BOUND_MS = 350.0
"""The budget, in absolute terms: a slow machine misses it, and the report shows it."""
IMPORTS_BOUND = 2.5
"""What the driver adds to the libraries' own start; this does not depend on the machine's speed."""
_BARE_IMPORTS = "import asyncio, grpc.aio, google.protobuf.message, prometheus_client"
MEMORY_BOUND_MB = 60.0
PARAMETERS = {
    "interface": {"name": "net1", "mtu": 1400, "addresses": ["192.168.10.5/24"], "ipv6": {"enabled": False}},
    "routes": [{"destination": "10.1.0.0/16", "gateway": "192.168.10.1"}],
    "rules": [{"source": "192.168.10.0/24", "table": 100, "priority": 100}],
    "neighbors": [{"destination": "192.168.10.1", "hardwareAddr": "02:00:00:00:00:01"}],
    "sysctls": {"net.ipv4.conf.IFNAME.rp_filter": 2},
}
"""Some of every parameter, as decoding is what the first claim costs."""
_SERVICE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"


def run() -> Iterator[Result]:
    yield from asyncio.run(_measure())


async def _measure() -> list[Result]:
    async with Testbed(load_hardware("two-nic"), stand_in, WORK_DIR) as testbed:
        results = await _measure_starts(testbed)
        await testbed.driver.start()
        await testbed.driver.wait_ready(20)
        await asyncio.to_thread(add_links)
        results.append(await _measure_memory(testbed, "no claim yet"))
        results.append(await _measure_prepare(testbed))
        results.append(await _measure_memory(testbed, f"after {PREPARES} claims"))
        await testbed.driver.stop()
        return results


async def _measure_starts(testbed: Testbed) -> list[Result]:
    serving, registered, floor = [], [], []
    for _ in range(STARTS + 1):
        begin = time.perf_counter()
        await testbed.driver.start()
        await _wait_answer("/healthz", "ok")
        serving.append((time.perf_counter() - begin) * 1000)
        await _wait_answer("/readyz", "[+] kubelet")
        registered.append((time.perf_counter() - begin) * 1000)
        await testbed.driver.wait_ready(20)
        await testbed.driver.stop()
        floor.append(await asyncio.to_thread(_time_bare_imports))
    return [
        Result("start to serving", Series("serving", tuple(serving[1:])), bound=SERVING_BOUND_MS),
        Result(
            "start to serving, against bare imports",
            Series("serving", tuple(serving[1:])),
            Series("python with gRPC, protobuf, metrics", tuple(floor[1:])),
            IMPORTS_BOUND,
        ),
        Result("start to registered", Series("registered", tuple(registered[1:]))),
    ]


def _time_bare_imports() -> float:
    """A Python that loads the libraries of the daemon and ends. It loads them whole: the driver leaves out
    what it does not use (docs/decisions/011)."""
    return time_ms(lambda: subprocess.run((sys.executable, "-c", _BARE_IMPORTS), check=True))


async def _measure_prepare(testbed: Testbed) -> Result:
    claim = await _make_claim(testbed)
    samples = []
    async with grpc.aio.insecure_channel(
        f"unix:{testbed.places.kubelet_root}/plugins/dra.net/dra.sock"
    ) as channel:
        prepare = channel.unary_unary(
            f"{_SERVICE}/NodePrepareResources",
            request_serializer=dra_v1_pb2.NodePrepareResourcesRequest.SerializeToString,
            response_deserializer=dra_v1_pb2.NodePrepareResourcesResponse.FromString,
        )
        unprepare = channel.unary_unary(
            f"{_SERVICE}/NodeUnprepareResources",
            request_serializer=dra_v1_pb2.NodeUnprepareResourcesRequest.SerializeToString,
            response_deserializer=dra_v1_pb2.NodeUnprepareResourcesResponse.FromString,
        )
        for _ in range(PREPARES + 1):
            begin = time.perf_counter()
            answer = await prepare(dra_v1_pb2.NodePrepareResourcesRequest(claims=[claim]))
            samples.append((time.perf_counter() - begin) * 1000)
            if answer.claims[claim.uid].error:
                raise RuntimeError(answer.claims[claim.uid].error)
            await unprepare(dra_v1_pb2.NodeUnprepareResourcesRequest(claims=[claim]))
    return Result("Prepare of one claim", Series("prepare", tuple(samples[1:])))


async def _make_claim(testbed: Testbed) -> dra_v1_pb2.Claim:
    """A claim for one NIC, allocated past the scheduler, of a pod that is bound elsewhere and never runs."""
    nic = next(d.device for d in testbed.decisions if d.published and d.device.ifname)
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "elsewhere"},
        "spec": {"nodeName": "another-node", "containers": [{"name": "main", "image": "none"}]},
    }
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "measured"},
        "spec": {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "any"}}]}},
    }
    await testbed.apply([pod, claim])
    opaque = {"driver": DRIVER_NAME, "parameters": PARAMETERS}
    config = {"source": "FromClaim", "requests": [], "opaque": opaque}
    result = {"request": "nic", "driver": DRIVER_NAME, "pool": NODE_NAME, "device": nic.name}
    consumer = {"resource": "pods", "name": "elsewhere", "uid": testbed.pod_uid("elsewhere")}
    status = {"allocation": {"devices": {"results": [result], "config": [config]}}, "reservedFor": [consumer]}
    await testbed.api.patch(paths.resource_claim_status(NAMESPACE, "measured"), {"status": status})
    uid = (await testbed.fetch_claim("measured"))["metadata"]["uid"]
    return dra_v1_pb2.Claim(namespace=NAMESPACE, name="measured", uid=uid)


async def _measure_memory(testbed: Testbed, state: str) -> Result:
    samples = []
    for _ in range(MEMORY_SAMPLES):
        await asyncio.sleep(0.5)
        samples.append(read_rss_mb(testbed.driver.pid))
    title = f"memory at idle, {LINKS} links, {state}"
    return Result(title, Series("VmRSS", tuple(samples), unit="MB"), bound=MEMORY_BOUND_MB)


def add_links() -> None:
    lines = [f"link add v{number} type veth peer name w{number}" for number in range(LINKS // 2)]
    subprocess.run(("ip", "-batch", "-"), input="\n".join(lines), text=True, check=True)


def read_rss_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
    assert match is not None, "a process without VmRSS is gone"
    return int(match[1]) / 1024


async def _wait_answer(path: str, text: str) -> None:
    answer = await get(path)
    while text not in answer:
        await asyncio.sleep(0.002)
        answer = await get(path)


async def get(path: str) -> str:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", 9177)
    except OSError:
        return ""
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: driver\r\nConnection: close\r\n\r\n".encode())
        return (await reader.read()).decode()
    except OSError:
        return ""
    finally:
        writer.close()
