"""From the slice to the limits: whatever claims request, the scheduler and the kernel together stay below the
port."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dranet.claims.plan.device import plan_device
from dranet.cluster.claims import parse_claim
from dranet.cluster.slice_plan import device_to_json
from dranet.desk.allocation.devices import read_devices_in_use
from dranet.desk.allocation.failures import Unschedulable
from dranet.model.attributes import BANDWIDTH
from dranet.model.device import Bandwidth, Device, DeviceKind
from dranet.model.parameters.network import NetworkConfig
from dranet.model.plan import LimitRate, LinkState
from tests.desk.allocation.objects import claim, request, results, slice_of

NIC = Device("nic", DeviceKind.NIC, ifname="eth1", shared=True)
PARENT = LinkState(5, "eth1", "02:00:00:00:00:01", 1500, up=True)
MEGABIT = 1_000_000

AMOUNTS = st.none() | st.sampled_from(["0", "1", "1M", "1500k", "2.5G", "1Gi", "10G", "400G", "1E"])
LIMITS = st.fixed_dictionaries(
    {},
    optional={
        way: st.fixed_dictionaries(
            {"rate": st.sampled_from(["8k", "1G", "400G"])},
            optional={"burst": st.sampled_from([1500, "1Mi", 2**32 - 1])},
        )
        for way in ("egress", "ingress")
    },
)


@given(
    st.integers(1, 400_000),
    st.integers(1, 100_000),
    st.lists(st.tuples(AMOUNTS, LIMITS), max_size=8),
)
def test_the_sum_of_all_limits_is_never_above_the_port(
    speed: int, default: int, asked: list[tuple[str | None, dict[str, Any]]]
) -> None:
    port = Bandwidth(speed * MEGABIT, min(default, speed) * MEGABIT)
    slices = [slice_of(device_to_json(Device("nic", DeviceKind.NIC, shared=True, bandwidth=port)))]
    held: list[dict[str, Any]] = []
    steps: list[LimitRate] = []
    for number, (amount, limits) in enumerate(asked):
        exactly: dict[str, Any] = {"capacity": {"requests": {BANDWIDTH: amount}}} if amount else {}
        body = claim(request(**exactly), name=f"c{number}")
        with suppress(Unschedulable):
            (result,) = results(body, slices=slices, in_use=read_devices_in_use(held))
            body["status"] = {"allocation": {"devices": {"results": [result]}}}
            held.append(body)
            steps.append(_limit(body, limits))
    for rates, bursts in (
        ([s.egress_bits_per_second for s in steps], [s.egress_burst_bytes for s in steps]),
        ([s.ingress_bits_per_second for s in steps], [s.ingress_burst_bytes for s in steps]),
    ):
        assert all(rates), "each share has a limit both ways"
        assert sum(filter(None, rates)) <= port.total
        assert 8 * sum(filter(None, bursts)) <= port.total * 0.05


def _limit(body: dict[str, Any], limits: dict[str, Any]) -> LimitRate:
    (result,) = parse_claim(body).results
    config = NetworkConfig.model_validate(
        {"interface": {"type": "macvlan", "addresses": [], "rateLimit": limits}}
    )
    plan = plan_device(NIC, PARENT, config, rdma_exclusive=False, bandwidth=result.bandwidth)
    (step,) = (step for step in plan.steps if isinstance(step, LimitRate))
    return step
