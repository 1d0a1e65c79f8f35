"""What an operator says of devices: both forms, as cel-go judges DraNet's, or an error with its cause.

The expectations for the older form were checked against cel-go 0.26 with ``ext.NativeTypes`` and the struct
``v1.DeviceAttribute``, set up as DraNet does.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet.cel import CelError, DeviceExpression
from dranet.cel.expression import _older_names, significant_tokens
from dranet.model.device import AttributeValue
from tests.support.processor_time import measure

ATTRIBUTES: dict[str, AttributeValue] = {
    "dra.net/type": "veth",
    "dra.net/rdma": True,
    "dra.net/virtual": False,
    "dra.net/mtu": 1500,
    "dra.net/one": 1,
    "resource.kubernetes.io/numaNode": (0, 1),
    "example.com/fabric": "blue",
}
DRANETS_DEFAULT = '!("dra.net/type" in attributes) || attributes["dra.net/type"].StringValue  != "veth"'


def matches(
    expression: str, attributes: dict[str, AttributeValue] = ATTRIBUTES, driver: str = "dra.net"
) -> bool:
    return DeviceExpression(expression, driver).matches(attributes)


def complaint(expression: str) -> str:
    with pytest.raises(CelError) as caught:
        matches(expression)
    return str(caught.value)


@pytest.mark.parametrize(
    ("attributes", "kept"),
    [({"dra.net/type": "veth"}, False), ({"dra.net/type": "device"}, True), ({"dra.net/rdma": True}, True)],
)
def test_dranets_default_filter_drops_veths_and_keeps_what_has_no_type(
    attributes: dict[str, AttributeValue], kept: bool
) -> None:
    assert matches(DRANETS_DEFAULT, attributes) is kept


@pytest.mark.parametrize(
    "expression",
    [
        'attributes["dra.net/type"].StringValue == "veth"',
        'attributes["dra.net/rdma"].BoolValue',
        'attributes["dra.net/virtual"].BoolValue == false',
        'attributes["dra.net/mtu"].IntValue >= 1500',
        'attributes["dra.net/type"].StringValue.startsWith("ve")',
        'attributes.exists(k, k == "dra.net/type" && attributes[k].StringValue == "veth")',
        "attributes.size() == 7",
        '"dra.net/" + "type" in attributes',
        'attributes["dra.net/" + "type"].StringValue == "veth"',
        '("dra.net/type" in attributes) && !("dra.net/nothing" in attributes)',
        "1 == 1",
    ],
)
def test_the_older_form_as_users_of_dranet_write_it(expression: str) -> None:
    assert matches(expression)


@pytest.mark.parametrize(
    "expression",
    [
        'attributes["dra.net/rdma"].StringValue == ""',
        'attributes["dra.net/rdma"].StringValue != "veth"',
        'attributes["dra.net/type"].BoolValue == false',
        'attributes["dra.net/type"].IntValue == 0',
        'attributes["dra.net/type"].VersionValue == ""',
        '!has(attributes["dra.net/rdma"].StringValue)',
        'has(attributes["dra.net/virtual"].BoolValue)',
        'has(attributes["dra.net/one"].IntValue) && !has(attributes["dra.net/one"].BoolValue)',
        '!has(attributes["resource.kubernetes.io/numaNode"].IntValue)',
    ],
)
def test_a_field_that_is_not_set_reads_as_empty_and_has_tells(expression: str) -> None:
    assert matches(expression)


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ('attributes["type"].StringValue != "veth"', "no attribute or capacity 'type'"),
        ('attributes["dra.net/type"].stringValue == "veth"', "undefined field 'stringValue'"),
        ('attributes["dra.net/rdma"].StringValue == null', "no matching overload"),
        ('attributes["dra.net/type"].StringValue', "must be a bool, not string"),
        ('device.attributes["dra.net"].nothing == 1', "no attribute or capacity 'nothing'"),
        ('device.attributes["dra.net"].mtu', "must be a bool, not int"),
        ("device.atributes == 1", "line 1, column 7: undeclared reference to 'device.atributes'"),
        ("true &&\n  nothing", "line 2, column 3: undeclared reference to 'nothing'"),
        ("1 +", "expression does not compile: line 1, column 4: "),
        ('device.attributes["dra.net"].mtu / 0 == 1', "divide by zero"),
        ("format.uuid() == 1", "lacks Kubernetes' format"),
        ("x" * 10241, "has 10241 characters"),
    ],
)
def test_what_cannot_be_judged_is_an_error_with_its_cause(expression: str, why: str) -> None:
    assert why in complaint(expression)
    assert "selector" not in complaint(expression)


@pytest.mark.parametrize(
    "expression",
    [
        'device.attributes["dra.net"].type == "veth"',
        'device.attributes["dra.net"].rdma && device.driver == "dra.net"',
        'device.attributes["resource.kubernetes.io"].numaNode.exists(n, n == 1)',
        'device.attributes["example.com"].fabric == "blue"',
        '!has(device.attributes["nobody.knows"].it)',
        'attributes[?"dra.net/type"].hasValue()',
        '!device.allowMultipleAllocations && !has(device.capacity["dra.net"].it)',
        'device.attributes["dra.net"].type == attributes["dra.net/type"].StringValue',
    ],
)
def test_kubernetes_form_and_both_in_one(expression: str) -> None:
    assert matches(expression)


def test_an_expression_that_would_never_end_is_an_error_at_once() -> None:
    ten = f"[{', '.join(map(str, range(10)))}]"
    nested = "true"
    for depth in range(12):
        nested = f"{ten}.all(x{depth}, {nested})"

    def compile_it() -> None:
        with pytest.raises(CelError, match="too expensive"):
            DeviceExpression(nested, "dra.net")

    assert measure(compile_it) < 200


def test_the_domain_of_our_attributes_stays_the_same_under_another_driver_name() -> None:
    expression = 'device.driver == "nic.example.com" && device.attributes["dra.net"].rdma'
    assert matches(expression, driver="nic.example.com")


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ('attributes["a"].BoolValue && "b" in attributes', {"a", "b"}),
        ("attributes['a'].BoolValue", {"a"}),
        ('device.attributes["a"].b', set()),
        ('"attributes"', set()),
        ('attributes[r"a"].BoolValue', None),
        ('attributes["a\\"b"].BoolValue', None),
        ('"a" + "b" in attributes', None),
        ('attributes[["a"][0]].BoolValue', None),
        ("attributes.size() == 0", None),
        ("attributes.exists(k, true)", None),
        ("attributes", None),
    ],
)
def test_only_names_that_are_sure_are_picked_out(expression: str, names: set[str] | None) -> None:
    assert _older_names(significant_tokens(expression)) == names


@given(
    st.dictionaries(
        st.sampled_from(sorted(ATTRIBUTES)),
        st.booleans()
        | st.integers(-(2**63), 2**63 - 1)
        | st.text("aé\U0001f600", max_size=20)
        | st.just((1, 2)),
    )
)
def test_both_forms_tell_the_same(attributes: dict[str, AttributeValue]) -> None:
    for name, value in attributes.items():
        domain, _, bare = name.partition("/")
        newer = f'device.attributes["{domain}"].{bare}'
        for kind, field in ((bool, "BoolValue"), (int, "IntValue"), (str, "StringValue")):
            older = f'attributes["{name}"].{field}'
            if type(value) is kind:
                assert matches(f"has({older}) && {older} == {newer}", attributes)
            else:
                assert matches(f"!has({older})", attributes)
