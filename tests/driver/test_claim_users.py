"""A second pod joins a claim that is prepared already: the kubelet asks nobody, the container's hook does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dranet.errors import ClaimError, Reason
from dranet.model.claim import Container, PodSandbox
from tests.driver.bench import Bench, names, sandbox
from tests.support.namespaces import Namespace

pytestmark = pytest.mark.kernel


def test_a_second_pod_of_a_claim_gets_no_container_and_the_first_one_keeps_its_nic(
    start: Callable[..., Bench], pod: Namespace, make_namespace: Callable[..., Namespace]
) -> None:
    bench, second = start(), make_namespace()
    record = bench.prepare("eth1", "net1")
    bench.run_sandbox(sandbox(pod))
    joining = PodSandbox("s-2", "second", "default", "uid-2", netns_path=str(second.path), pid=4712)
    assert not bench.run_sandbox(joining)
    container = Container("c", "main", joining.id, mounts=(bench.gate.mount_for(record.claim.uid),))

    with pytest.raises(ClaimError) as caught:
        bench.node.run(lambda: bench.hooks.create_container(joining, container))

    assert caught.value.reason is Reason.UNSUPPORTED_CLAIM
    assert f"claim {record.claim} is prepared for pod {record.pod}" in caught.value.message
    assert "ResourceClaimTemplate" in caught.value.hint
    assert bench.told.refusals == [("second", caught.value)]
    assert bench.told.failures == []
    assert bench.waiting == [record.claim]
    assert "net1" in names(pod)
    assert "net1" not in names(second)
    assert bench.create_container(sandbox(pod)) is not None
