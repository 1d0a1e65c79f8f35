"""Quantities by value, with exact decimal arithmetic as the judge."""

from __future__ import annotations

from decimal import ROUND_UP, Decimal, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dranet.quantity import normalize_quantity, parse_quantity

FACTORS = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    **{letter: Decimal(1000) ** (place + 1) for place, letter in enumerate("kMGTPE")},
    **{f"{letter}i": Decimal(1024) ** (place + 1) for place, letter in enumerate("KMGTPE")},
    **{f"e{power}": Decimal(10) ** power for power in (-12, -3, 0, 3, 9)},
    **{f"E+{power}": Decimal(10) ** power for power in (1, 6)},
}
NANO = Decimal("1e-9")
LIMIT = 2**63 - 1

NUMBERS = st.tuples(
    st.sampled_from(["", "+", "-"]),
    st.text("0123456789", min_size=1, max_size=20),
    st.text("0123456789", max_size=12),
)


@given(number=NUMBERS, suffix=st.sampled_from(sorted(FACTORS)))
def test_a_quantity_is_what_decimal_arithmetic_makes_of_it(number: tuple[str, str, str], suffix: str) -> None:
    sign, whole, part = number
    text = f"{sign}{whole}.{part}" if part else f"{sign}{whole}"
    with localcontext(prec=200):
        exact = (Decimal(text) * FACTORS[suffix]).quantize(NANO, rounding=ROUND_UP)
        expected = max(min(exact, Decimal(LIMIT)), Decimal(-LIMIT))
    assert parse_quantity(text + suffix) == int(expected.scaleb(9))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1024Mi", "1Gi"),
        ("0.5", "500m"),
        ("1e3", "1k"),
        ("+1", "1.000"),
        (".5", "0.5"),
        ("5.", "5"),
        ("0.1n", "1n"),
        ("-0.1n", "-1n"),
        ("0", "0Gi"),
        ("1E", "1e18"),
        ("99E", "9223372036854775807"),
        ("1e999999", "99E"),
        ("1e-999999", "1n"),
        ("0e999999", "0"),
    ],
)
def test_two_spellings_of_one_amount_are_equal(one: str, other: str) -> None:
    assert normalize_quantity(one) == normalize_quantity(other)


@pytest.mark.parametrize(("one", "other"), [("1Gi", "1G"), ("1", "1.000000001"), ("1m", "1M"), ("-1", "1")])
def test_two_amounts_are_not(one: str, other: str) -> None:
    assert normalize_quantity(one) != normalize_quantity(other)


def test_a_number_is_as_good_as_its_text() -> None:
    assert normalize_quantity(1024) == normalize_quantity("1Ki")


@given(st.text(max_size=30) | st.text("0123456789.eEkKMGi+-", max_size=500))
def test_whatever_a_server_says_is_a_quantity_or_its_own_text(text: str) -> None:
    value = normalize_quantity(text)
    assert value == text if isinstance(value, str) else abs(value) <= LIMIT * 10**9


@pytest.mark.parametrize(
    "text", ["", ".", "+", "1 Gi", "1GiB", "1e", "0x1", "1,5", "\u0661", "Gi", "9" * 401, "--1"]
)
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        parse_quantity(text)
