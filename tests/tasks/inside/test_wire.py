"""Values as data: all of them come back as they were, and nothing else does."""

import math
import subprocess
import sys
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalerl.tasks.inside.wire import NotData, decode, encode

Point = namedtuple("Point", "x y")
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text(st.characters(exclude_categories=()))
    | st.binary()
    | st.decimals(allow_nan=False)
    | st.fractions()
    | st.dates()
    | st.datetimes()
    | st.timedeltas()
)
keys = st.integers() | st.text() | st.tuples(st.integers(), st.text())
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.lists(inner).map(deque)
        | st.dictionaries(keys, inner)
        | st.sets(keys)
        | st.frozensets(keys)
    ),
    max_leaves=20,
)


@given(values)
def test_data_come_back_as_they_were(value):
    back = decode(encode(value))
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    "value",
    [
        *(10**4000, -(10**4000), float("inf"), -0.0, "\ud800", bytearray(b"x"), range(1, 9, 3)),
        *(deque([1, 2], maxlen=3), Counter("aab"), OrderedDict(b=1, a=2), time(1, 2, 3, 4)),
        *(Decimal("1.10"), Fraction(1, 3), date(2024, 2, 29), timedelta(1, 2, 3)),
        *(datetime(2024, 2, 29, 1, 2, 3, 4), {(1, 2): [{3}]}, [[]] * 3),
    ],
)
def test_types_of_the_standard_library_travel(value):
    assert repr(decode(encode(value))) == repr(value)


def test_integers_have_no_largest():
    assert decode(encode([10**9999, -(10**9999)])) == [10**9999, -(10**9999)]


def test_what_is_not_a_number_travels():
    assert math.isnan(decode(encode(float("nan"))))


def test_a_missing_key_of_a_defaultdict_is_missing():
    back = decode(encode(defaultdict(lambda: 7, {1: 2})))
    assert back == {1: 2}
    with pytest.raises(KeyError):
        back[3]


def test_a_subclass_travels_as_the_data_it_is_built_on():
    class Yes(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

    assert type(decode(encode(Yes(3)))) is int
    assert decode(encode(Yes(3))) != 4
    assert decode(encode(Point(1, 2))) == (1, 2)


@pytest.mark.parametrize("value", [object(), iter([]), len, int, datetime(2024, 1, 1, tzinfo=UTC)])
def test_what_is_no_data_stays(value):
    with pytest.raises(NotData):
        encode([value])
    kept = []
    message = encode([value], lambda it: kept.append(it) or 7)
    assert kept == [value]
    ((number, kind, able),) = decode(message, lambda *found: found)
    assert (number, kind) == (7, type(value).__name__)
    assert able == {"builtin_function_or_method": ("__call__",), "type": ("__call__",),
                    "list_iterator": ("__iter__", "__next__")}.get(kind, ())  # fmt: skip


def test_what_has_no_end_is_refused():
    value = []
    value.append(value)
    with pytest.raises(NotData, match="deeply"):
        encode(value)


@given(st.binary())
def test_nonsense_is_refused(data):
    try:
        decode(data)
    except NotData:
        return


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"i", b"ix;", b"s9:x", b"s-1:", b"l1:", b"l99999999:", b"TT", b"?", b"S1:l0:"),
        *(b"mt3:s2:oss6:systems2:id", b"mt2:s7:decimals7:Context", b"ht2:i0;s3:int"),
        *(b"r" + b"i1;", b"d1:T", b"c;;", b"l1:" * 200, b"\xff", b"f0x;"),
    ],
)
def test_forged_bytes_are_refused(data):
    with pytest.raises(NotData):
        decode(data)


def test_a_function_of_the_sender_is_not_called_for_missing_keys():
    """A handle where the function of a defaultdict belongs, or the parts of another class."""
    handle = b"ht3:i0;s8:functiont1:s8:__call__"
    for name, parts in (("defaultdict", handle + b"d0:"), ("Counter", handle), ("deque", handle)):
        text = b"s%d:%s" % (len(name), name.encode())
        message = b"mt%d:s11:collections%s%s" % (2 + parts.count(b"ht") + ("d0" in str(parts)),
                                                  text, parts)  # fmt: skip
        with pytest.raises(NotData, match="cannot be sent"):
            decode(message, lambda *_: lambda: 7919)


def test_importing_what_runs_inside_does_not_run_it():
    code = "import scalerl.tasks.inside.program, scalerl.tasks.inside.tester"
    subprocess.run([sys.executable, "-c", code], check=True, stdin=subprocess.DEVNULL, timeout=600)


def test_what_runs_inside_loads_little():
    """Each import would be paid for at every start of every program."""
    code = (
        "import sys\nfrom scalerl.tasks.inside import program, restrictions, tester, wire\n"
        "slow = {'json', 're', 'typing', 'platform', 'pathlib', 'subprocess', 'collections.abc'}\n"
        "print(sorted(slow & set(sys.modules) - before))"
    )
    code = "import sys, scalerl.tasks\nbefore = set(sys.modules)\n" + code
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
