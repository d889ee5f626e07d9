"""Reading tests: which names are the program's, and what cannot be scored."""

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


#: Ways to bring a value of the program's to both sides of a comparison.
BOTH_SIDES = [
    "r: int = f(3)\nassert r == f(3)",
    "assert (r := f(3)) == r",
    "if (r := f(3)):\n    assert r == f(3)",
    "for r in [f(3)]:\n    assert r == f(3)",
    "for r in f(3):\n    assert r == r",
    "for i, r in enumerate(f(3)):\n    assert r == f(3)[i]",
    "for a, b in zip(f(3), f(3)):\n    assert a == b",
    "for a, b in [(f(3), f(3))]:\n    assert a == b",
    "for (a, (b, c)) in zip(f(1), zip([1], f(2))):\n    assert a == c",
    "for k, v in f(3).items():\n    assert k == v",
    "total = 0\ntotal += f(3)\nassert total == f(3)",
    "a, b = f(3), 5\nassert a == f(3)",
    "a, *b = f(3)\nassert b == f(3)",
    "(a, b), c = f(3), 1\nassert a == b",
    "a = b = f(3)\nassert a == b",
    "assert [r for r in [f(3)]] == [f(3)]",
    "assert all(a == b for a, b in zip(f(3), f(3)))",
    "assert all(r == s for r in f(3) for s in f(2))",
    "assert all([x == x for x in [f(3)]])",
    "assert any(f(3) == x for x in {f(3)})",
    "assert {k: v for k, v in [(1, f(3))]} == {1: f(3)}",
    "d = {}\nd['r'] = f(3)\nassert d['r'] == f(3)",
    "d = {'r': f(3)}\nassert d.get('r') == f(3)",
    "xs = []\nxs.append(f(3))\nassert xs == [f(3)]",
    "xs = [0]\nxs[0] = f(3)\nassert xs[0] == f(3)",
    "xs = ys = []\nxs.append(f(3))\nassert ys == [f(3)]",
    "xs = []\nys = xs\nxs += [f(3)]\nassert ys == [f(3)]",
    "import heapq\nh = []\nheapq.heappush(h, f(3))\nassert h[0] == f(3)",
    "from types import SimpleNamespace as N\nn = N()\nn.r = f(3)\nassert n.r == f(3)",
    "from types import SimpleNamespace as N\nn = N()\nsetattr(n, 'r', f(3))\nassert n.r == f(3)",
    "def g(): return f(3)\nassert g() == f(3)",
    "g = lambda: f(3)\nassert g() == f(3)",
    "g = f\nassert g(3) == f(3)",
    "def g():\n    yield f(3)\nassert list(g()) == [f(3)]",
    "def same(a, b): assert a == b\nsame(f(3), f(3))",
    "def same(a, b): return a == b\nassert same(f(3), b=f(3))",
    "def same(*a): return a[0] == a[1]\nassert same(f(3), f(3))",
    "def same(a, b): return a == b\nassert same(*f(3))",
    "def same(a, b): return a == b\nother = same\nassert other(f(3), f(3))",
    "def same(a, b): return a == b\nassert [same][0](f(3), f(3))",
    "def same(a, b): return a == b\nfor g in (same,):\n    assert g(f(3), f(3))",
    "from functools import partial as p\ndef same(a, b): return a == b\nassert p(same, f(3))(f(3))",
    "same = lambda a, b: a == b\nassert same(f(3), f(3))",
    "assert (lambda a, b: a == b)(f(3), f(3))",
    "assert all(map(lambda a, b: a == b, f(3), f(3)))",
    "def inner(a):\n    def deep(b): return a == b\n    return deep(f(3))\nassert inner(f(3))",
    "def put(xs): xs.append(f(3))\nys = []\nput(ys)\nassert ys == [f(3)]",
    "out = []\ndef go(): out.append(f(3))\ngo()\nassert out == [f(3)]",
    "r = 0\ndef go():\n    global r\n    r = f(3)\ngo()\nassert r == f(3)",
    "def go(n):\n    last = None\n    for i in range(n):\n        assert last == f(i)\n"
    "        last = f(i)\ngo(3)",
    "class T:\n    r = f(3)\n    def go(self): assert self.r == f(3)\nT().go()",
    "class T:\n    def make(self): self.r = f(3)\n    def go(self): assert self.r == f(3)\n"
    "t = T()\nt.make()\nt.go()",
    "class T:\n    def __init__(self, r): self.r = r\n    def go(self): assert self.r == f(3)\n"
    "T(f(3)).go()",
    "class T:\n    def keep(self, r): self.r = r\nt = T()\nt.keep(f(3))\nassert t.r == f(3)",
    "try:\n    r = f(3)\nexcept ValueError as e:\n    assert str(e) == str(f(3))",
    "match f(3):\n    case [a, *b]:\n        assert a == f(3)",
    "match f(3):\n    case {'k': v, **rest} as whole:\n        assert rest == whole",
    "from contextlib import nullcontext\nwith nullcontext(f(3)) as r:\n    assert r == f(3)",
    "import operator\nassert operator.eq(f(3), f(3))",
    "assert f(3).__eq__(f(3))",
    "assert f(3).startswith(f(3))",
    "assert set(f(3)).issubset(f(3))",
    "import unittest\nclass T(unittest.TestCase):\n    def test(self):\n"
    "        self.assertCountEqual(f(3), f(3))\n        assert True",
    "assert f(3) in [f(3)]",
    "assert not f(3) != f(3)",
    "assert len(f(3)) == len(f(3)) == len(f(2))",
]


@pytest.mark.parametrize("test", BOTH_SIDES)
def test_whatever_binds_a_value_of_the_programs_it_stays_the_programs(test):
    (reason,) = read_asserts([test]).refused
    assert reason.endswith("both sides are the program's")


@pytest.mark.parametrize(
    ("test", "why"),
    [
        ("assert eval(f(3)) == 4", "uses eval, by which a value could run as code"),
        ("exec('r = f(3)')\nassert r == 4", "uses exec"),
        ("assert globals()['f'](3) == f(3)", "uses globals"),
        ("import pickle\nassert pickle.loads(f(3)) == 4", "uses pickle"),
        ("from builtins import eval as e\nassert e(f(3)) == 4", "uses builtins"),
        ("assert getattr(4, f(3)) == 4", "choose an attribute"),
        ("try:\n    f(3)\nexcept SystemExit:\n    ok = True\nassert ok", "waits for the program"),
        ("assert f(x for x in (1, 2)) == 3", "an iterator"),
        ("assert f(map(str, [1])) == 3", "an iterator"),
        ("g = f\nxs = [2, 1]\ng(xs)\nassert xs == [1, 2]", "to its arguments"),
    ],
)
def test_what_would_run_as_code_or_cannot_travel_is_refused(test, why):
    (reason,) = read_asserts([test]).refused
    assert why in reason


@pytest.mark.parametrize(
    "test",
    [
        "for x, want in [(1, 2), (3, 4)]:\n    assert f(x) == want",
        "for got, want in zip(f(3), [1, 2]):\n    assert got == want",
        "for i, got in enumerate(f(3)):\n    assert got == i",
        "for (a, b), want in {(1, 2): 3}.items():\n    assert f(a, b) == want",
        "assert sorted(x for x in f(3)) == [x for x in (1, 2)]",
        "assert all(a == b for a, b in zip(f(3), [1, 2]))",
        "assert all(map(lambda a, b: a == b, f(3), [1, 2]))",
        "assert sorted(f(3), key=lambda p: p[0]) == [(1, 2)]",
        "def norm(xs): return sorted(xs)\nassert norm(f(3)) == norm([2, 1])",
        "def near(a, b, eps=1e-6): return abs(a - b) < eps\nassert near(f(3), 2.0)",
        "def want(x):\n    y = x + 1\n    return y\nfor x in range(3):\n    y = f(x)\n"
        "    assert y == want(x)",
        "results = [f(x) for x in range(3)]\nassert results == [0, 1, 2]",
        "results = []\nfor x in range(2):\n    results.append(f(x))\nassert results == [0, 1]",
        "d = {}\nfor k in 'ab':\n    d[k] = f(k)\nassert d == {'a': 1, 'b': 2}",
        "d = {}\nfor k in 'ab':\n    d[k] = f(k)\n    assert d[k] == k * 2",
        "total = 0\nfor x in range(3):\n    total += f(x)\nassert total == 9",
        "total: float = f(3)\nassert abs(total - 2.5) < 1e-6",
        "if (r := f(3)) is not None:\n    assert r == 5",
        "try:\n    f(-1)\n    ok = False\nexcept ValueError as e:\n    ok = 'neg' in str(e)\n"
        "assert ok",
        "def helper(x, want): assert f(x) == want\nhelper(3, 4)",
        "s = Stack()\ns.push(1)\nassert s.pop() == 1",
        "import random\nfor _ in range(3):\n    x = random.random()\n    assert f(x) == x * 2",
        "import math\nassert math.isclose(f(3), math.pi)",
        "assert f(f(3)) == 3",
        "match f(3):\n    case [a, b]:\n        assert a == 1",
        "import unittest\nclass T(unittest.TestCase):\n    def test(self):\n"
        "        self.assertEqual(f(3), 4)\n        assert True",
    ],
)
def test_tests_that_know_their_answer_are_kept(test):
    found = read_asserts([test])
    assert (found.refused, found.tests) == ((), (test,))


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
    assert "poly is not defined by the test" in read_tests(row, "row 1", most=20).refused[0]
    row = {"test": test.replace("== 2", "== candidate(2)"), "entry_point": "f"}
    assert "both sides" in read_tests(row, "row 1", most=20).refused[0]
