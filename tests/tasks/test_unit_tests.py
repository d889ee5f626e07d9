"""Reading tests: which names are the program's, and what cannot be judged."""

import pytest

from scalerl.errors import InputError
from scalerl.tasks.unit_tests import read_asserts, read_tests


@pytest.mark.parametrize(
    ("row", "n"),
    [
        ({"inputs": ["1"], "outputs": ["2"]}, 1),
        ({"input_output": '{"inputs": ["1", "2"], "outputs": ["2", "3"]}'}, 2),
        ({"tests": [{"input": "1", "output": "2"}]}, 1),
        ({"tests": '[{"input": "1", "output": "2"}]'}, 1),
    ],
)
def test_the_usual_columns_of_tests_are_read(row, n):
    assert len(read_tests(row, "row 1", most=20).inputs) == n


@pytest.mark.parametrize("row", [{}, {"inputs": ["1"], "outputs": []}, {"tests": "{"}])
def test_rows_without_tests_are_refused(row):
    with pytest.raises(InputError, match="row 1"):
        read_tests(row, "row 1", most=20)


@pytest.mark.parametrize(
    ("test", "names"),
    [
        ("assert f([1], k=2) == {'a': (1, 2)}", ("f",)),
        ("assert Solution().f(3) == 1", ("Solution",)),
        ("assert sorted(f(x) for x in range(3)) == [1]", ("f",)),
        ("assert (lambda g: g)(1) == f(1)", ("f",)),
        ("xs = [1]\nassert f(xs) == g(xs) + 1 == 2", ("f", "g")),
        ("assert math.isclose(f(1), math.pi)", ("f",)),
        ("assert sum(10, 15) == 6", ("sum",)),
        ("import math\nassert f(1) == math.pi", ("f",)),
    ],
)
def test_what_neither_the_test_nor_python_defines_is_the_programs(test, names):
    found = read_asserts([test])
    assert found.refused == ()
    assert found.names == names


@pytest.mark.parametrize(
    ("test", "why"),
    [
        ("f(1)", "is not `assert"),
        ("assert f(1 ==", "is not Python"),
        ("assert 1 == 1", "says nothing"),
        ("assert len([1]) == max(1, 0)", "says nothing"),
        ("assert f(1) == f(1)", "both sides"),
        ("assert f(1) == reference", "both sides"),
        ("assert len(f(1)) >= len(g(1))", "both sides"),
        ("a = f(1)\nb = f(2)\nassert a + 1 == b", "both sides"),
        ("assert math.isclose(f(1), g(1))", "both sides"),
        ("assert Point(1) + Point(2) == Point(3)", "both sides"),
        ("assert isinstance(f(1), Point)", "a class"),
        ("assert f(lambda x: x, 1) == 1", "a function"),
        ("assert f(len, [1]) == 1", "a function"),
        ("assert f(key=str) == 1", "a function"),
        ("xs = [2, 1]\nf(xs)\nassert xs == [1, 2]", "to its arguments"),
        ("import numpy\nassert f(1) == numpy.pi", "needs numpy"),
        ("assert np.allclose(f(1), 1)", "needs numpy"),
    ],
)
def test_what_cannot_be_judged_is_refused_with_its_reason(test, why):
    found = read_asserts([test], where="data.jsonl row 7")
    assert found.tests == ()
    assert why in found.refused[0]
    assert found.refused[0].startswith("data.jsonl row 7: ")


def test_one_test_that_cannot_be_judged_leaves_the_others():
    found = read_tests({"test_list": ["assert f(1) == f(2)", "assert f(1) == 2"]}, "row 1", most=20)
    assert found.tests == ("assert f(1) == 2",)
    assert len(found.refused) == 1


def test_helpers_of_the_test_are_not_the_programs():
    setup = "from math import isclose\ndef near(a, b): return isclose(a, b)"
    found = read_asserts(["assert near(f(1), 2.0)"], setup)
    assert (found.names, found.refused) == (("f",), ())
    assert found.imports == "from math import isclose"
    assert "a function" in read_asserts(["assert f(near) == 1"], setup).refused[0]


def test_a_check_function_is_called_with_the_entry_point():
    test = "def check(candidate):\n    assert candidate(1) == 2\n    assert True, 'fine'\n"
    found = read_tests({"test": test, "entry_point": "f"}, "row 1", most=20)
    assert (found.tests, found.names, found.refused) == (("check(f)",), ("f",), ())
    row = {"test": test.replace("== 2", "== poly(3)"), "entry_point": "f"}
    assert "poly is nobody's" in read_tests(row, "row 1", most=20).refused[0]
    row = {"test": test.replace("== 2", "== candidate(2)"), "entry_point": "f"}
    assert "both sides" in read_tests(row, "row 1", most=20).refused[0]
