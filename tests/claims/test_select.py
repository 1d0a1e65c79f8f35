"""Our results of a claim, each with every config that applies to it."""

from __future__ import annotations

from dranet.claims.config import select_results
from dranet.model.claim import AllocationResult, Claim, ClaimRef, ConfigSource, OpaqueConfig

DRIVER = "dra.net"


def result(request: str, driver: str = DRIVER) -> AllocationResult:
    return AllocationResult(request, driver, "node-1", f"device-of-{request.replace('/', '-')}")


def config(*requests: str, driver: str = DRIVER) -> OpaqueConfig:
    return OpaqueConfig(ConfigSource.CLAIM, driver, {"asks": list(requests)}, requests)


def claim(results: list[AllocationResult], *configs: OpaqueConfig) -> Claim:
    return Claim(ClaimRef("default", "c", "uid"), True, tuple(results), configs)


def test_results_of_other_drivers_are_not_ours() -> None:
    selections = select_results(claim([result("gpu", "gpu.example.com"), result("nic")]), DRIVER)

    assert [s.result.request for s in selections] == ["nic"]


def test_configs_of_other_drivers_do_not_apply() -> None:
    (selection,) = select_results(claim([result("nic")], config(driver="gpu.example.com")), DRIVER)

    assert selection.configs == ()


def test_a_config_applies_to_all_requests_or_to_those_it_names() -> None:
    everywhere, first = config(), config("a")
    one, two = select_results(claim([result("a"), result("b")], everywhere, first), DRIVER)

    assert one.configs == (everywhere, first)
    assert two.configs == (everywhere,)


def test_a_config_that_names_a_request_applies_to_the_alternative_that_won() -> None:
    parent, winner, loser = config("nic"), config("nic/fast"), config("nic/slow")
    (selection,) = select_results(claim([result("nic/fast")], parent, winner, loser), DRIVER)

    assert selection.configs == (parent, winner)


def test_a_selection_remembers_where_in_the_claim_its_configs_stand() -> None:
    configs = (config(driver="gpu.example.com"), config("other"), config("nic"))
    (selection,) = select_results(claim([result("nic")], *configs), DRIVER)

    assert selection.config_indexes == (2,)


def test_a_selection_knows_the_class_of_its_request_and_the_claims_namespace() -> None:
    classes = {"nic": "rail", "any/fast": "rail-fast", "any/slow": "rail-slow"}
    allocated = Claim(
        ClaimRef("team", "c", "uid"),
        True,
        (result("nic"), result("any/slow"), result("unheard-of")),
        request_classes=classes,
    )

    selections = select_results(allocated, DRIVER)
    assert [selection.device_class for selection in selections] == ["rail", "rail-slow", ""]
    assert {selection.namespace for selection in selections} == {"team"}


def test_a_claim_without_our_devices_is_none_of_our_business() -> None:
    assert select_results(claim([result("gpu", "gpu.example.com")]), DRIVER) == ()
