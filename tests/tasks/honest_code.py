"""Programs of ordinary styles that solve their task. Each must pass.

A row is what a data set has (the columns of tests), and the program that answers it.
"""

NODE = (
    "class Node:\n    def __init__(self, data):\n        self.data = data\n"
    "        self.left = self.right = None\n"
)

HONEST = {
    # MBPP
    "mbpp: literal": (
        {"test_list": ["assert add(1, 2) == 3", "assert add(-1, 1) == 0"]},
        "def add(a, b):\n    return a + b",
    ),
    "mbpp: sets in any order": (
        {
            "test_list": [
                "assert set(similar_elements((3, 4, 5, 6), (5, 7, 4, 10))) == set((4, 5))",
                "assert set(similar_elements((1, 2), (2, 3))) == set((2,))",
            ]
        },
        "def similar_elements(a, b):\n    return tuple(set(a) & set(b))",
    ),
    "mbpp: power on the other side": (
        {"test_list": ["assert cube(10) == 10**3"]},
        "def cube(x): return x ** 3",
    ),
    "mbpp: nearly equal": (
        {"test_list": ["assert abs(root(2) - 1.41421356) < 1e-6"]},
        "import math\ndef root(x): return math.sqrt(x)",
    ),
    "mbpp: isclose with test_imports": (
        {
            "test_imports": ["import math"],
            "test_list": ["assert math.isclose(area(2), 12.566, rel_tol=0.001)"],
        },
        "import math\ndef area(r):\n    return math.pi * r * r",
    ),
    "mbpp: the test relies on the program's import": (
        {"test_list": ["assert math.isclose(half(3), 1.5)"]},
        "import math\ndef half(x): return x / 2",
    ),
    "mbpp: the program relies on the test's import": (
        {"test_imports": ["import math"], "test_list": ["assert floor(3.7) == math.floor(3.7)"]},
        "def floor(x): return math.floor(x)",
    ),
    "mbpp: set-up code with the program's class": (
        {
            "test_setup_code": "root = Node(1)\nroot.left = Node(2)\nroot.left.left = Node(4)",
            "test_list": ["assert (max_height(root)) == 3"],
        },
        NODE + "def max_height(n):\n"
        "    return 0 if n is None else 1 + max(max_height(n.left), max_height(n.right))",
    ),
    "mbpp: a function named like a built-in one": (
        {"test_list": ["assert sum(10,15) == 6", "assert sum(100,150) == 93"]},
        "def sum(a, b):\n    s = 0\n    for i in range(1, min(a, b) + 1):\n"
        "        if a % i == 0 and b % i == 0: s += i\n    return s",
    ),
    "mbpp: true and false": (
        {
            "test_list": [
                "assert is_prime(7)",
                "assert not is_prime(8)",
                "assert is_prime(2) == True",
            ]
        },
        "def is_prime(n): return n > 1 and all(n % d for d in range(2, int(n ** 0.5) + 1))",
    ),
    "mbpp: is None": (
        {"test_list": ["assert find([], 1) is None", "assert find([1], 1) is not None"]},
        "def find(xs, x):\n    for i, y in enumerate(xs):\n        if y == x: return i",
    ),
    "mbpp: value on the left": (
        {"test_list": ["assert [1, 2, 3] == order([3, 1, 2])"]},
        "def order(xs): return sorted(xs)",
    ),
    "mbpp: membership": (
        {"test_list": ["assert pick([1, 2]) in (1, 2)", "assert 2 in evens(5)"]},
        "def pick(xs): return xs[0]\ndef evens(n): return [i for i in range(n) if i % 2 == 0]",
    ),
    "mbpp: message": (
        {"test_list": ["assert double(2) == 4, 'two times two'"]},
        "def double(x): return 2 * x",
    ),
    "mbpp: keyword arguments": (
        {"test_list": ["assert power(base=2, exponent=5) == 32", "assert power(*[2, 3]) == 8"]},
        "def power(base, exponent=2): return base ** exponent",
    ),
    "mbpp: nested data": (
        {"test_list": ["assert group([('a', 1), ('b', 2), ('a', 3)]) == {'a': [1, 3], 'b': [2]}"]},
        "from collections import defaultdict\ndef group(pairs):\n    found = defaultdict(list)\n"
        "    for k, v in pairs: found[k].append(v)\n    return found",
    ),
    "mbpp: Counter": (
        {"test_list": ["assert count('aab') == {'a': 2, 'b': 1}"]},
        "from collections import Counter\ndef count(s): return Counter(s)",
    ),
    "mbpp: OrderedDict": (
        {
            "test_imports": ["from collections import OrderedDict"],
            "test_list": ["assert order({'b': 1, 'a': 2}) == OrderedDict([('a', 2), ('b', 1)])"],
        },
        "from collections import OrderedDict\ndef order(d): return OrderedDict(sorted(d.items()))",
    ),
    "mbpp: deque": (
        {"test_list": ["assert list(rotate([1, 2, 3], 1)) == [3, 1, 2]"]},
        "from collections import deque\n"
        "def rotate(xs, n):\n    d = deque(xs)\n    d.rotate(n)\n    return d",
    ),
    "mbpp: named tuple": (
        {"test_list": ["assert point(1, 2) == (1, 2)"]},
        "from collections import namedtuple\nP = namedtuple('P', 'x y')\n"
        "def point(x, y): return P(x, y)",
    ),
    "mbpp: large integer": (
        {"test_list": ["assert factorial(30) == 265252859812191058636308480000000"]},
        "def factorial(n): return 1 if n < 2 else n * factorial(n - 1)",
    ),
    "mbpp: integer of thousands of digits": (
        {"test_list": ["assert power(7, 6000) == 7 ** 6000"]},
        "def power(a, b): return a ** b",
    ),
    "mbpp: complex and bytes": (
        {"test_list": ["assert turn(1+2j) == -2 + 1j", "assert code('ab') == b'ab'"]},
        "def turn(z): return z * 1j\ndef code(s): return s.encode()",
    ),
    "mbpp: infinite and not a number": (
        {
            "test_list": [
                "assert lowest([]) == float('inf')",
                "assert math.isnan(ratio(0, 0))",
            ]
        },
        "def lowest(xs): return min(xs, default=float('inf'))\n"
        "def ratio(a, b): return a / b if b else float('nan')",
    ),
    "mbpp: dates, decimals and fractions": (
        {
            "test_imports": [
                "from datetime import date, timedelta",
                "from decimal import Decimal",
                "from fractions import Fraction",
            ],
            "test_list": [
                "assert day(2024, 60) == date(2024, 2, 29)",
                "assert price('1.10') == Decimal('2.20')",
                "assert third() == Fraction(2, 6)",
                "assert later(date(2024, 1, 1)) == date(2024, 1, 2)",
            ],
        },
        "import datetime, decimal, fractions\n"
        "def day(y, n): return datetime.date(y, 1, 1) + datetime.timedelta(n - 1)\n"
        "def price(s): return decimal.Decimal(s) * 2\n"
        "def third(): return fractions.Fraction(1, 3)\n"
        "def later(d): return d + datetime.timedelta(1)",
    ),
    "mbpp: range": (
        {"test_list": ["assert steps(3) == range(0, 6, 2)", "assert list(steps(2)) == [0, 2]"]},
        "def steps(n): return range(0, 2 * n, 2)",
    ),
    "mbpp: frozenset": (
        {"test_list": ["assert freeze([1, 1]) == frozenset([1])", "assert freeze([2]) == {2}"]},
        "def freeze(xs): return frozenset(xs)",
    ),
    "mbpp: empty lines and spaces around the test": (
        {"test_list": ["\n  assert f(1) == 2  \n"]},
        "f = lambda x: x + 1",
    ),
    "mbpp: error expected": (
        {
            "test_list": [
                "try:\n    divide(1, 0)\n    ok = False\nexcept ValueError:\n    ok = True\n"
                "assert ok",
            ]
        },
        "def divide(a, b):\n    if b == 0: raise ValueError('zero')\n    return a / b",
    ),
    # Generators
    "generator in list": (
        {"test_list": ["assert list(count(3)) == [0, 1, 2]", "assert sorted(count(2)) == [0, 1]"]},
        "def count(n):\n    for i in range(n):\n        yield i",
    ),
    "generator without end": (
        {
            "test_list": [
                "assert [x for x, _ in zip(naturals(), range(3))] == [0, 1, 2]",
                "assert list(itertools.islice(naturals(), 2)) == [0, 1]",
                "assert next(naturals()) == 0",
            ]
        },
        "def naturals():\n    n = 0\n    while True:\n        yield n\n        n += 1",
    ),
    "generator of pairs": (
        {"test_list": ["assert dict(pairs('ab')) == {'a': 0, 'b': 1}"]},
        "def pairs(s):\n    for i, c in enumerate(s): yield c, i",
    ),
    "map, filter and reversed": (
        {
            "test_list": [
                "assert list(twice([1, 2])) == [2, 4]",
                "assert ''.join(back('ab')) == 'ba'",
            ]
        },
        "def twice(xs): return map(lambda x: 2 * x, xs)\ndef back(s): return reversed(s)",
    ),
    "long generator": (
        {"test_list": ["assert sum(numbers(20000)) == 199990000"]},
        "def numbers(n): return (i for i in range(n))",
    ),
    # HumanEval
    "humaneval": (
        {
            "entry_point": "has_close_elements",
            "test": "\n\nMETADATA = {\n    'author': 'jt',\n    'dataset': 'test'\n}\n\n\n"
            "def check(candidate):\n"
            "    assert candidate([1.0, 2.0, 3.9, 4.0, 5.0, 2.2], 0.3) == True\n"
            "    assert candidate([1.0, 2.0, 3.9, 4.0, 5.0, 2.2], 0.05) == False\n",
        },
        "from typing import List\n\n\n"
        "def has_close_elements(numbers: List[float], threshold: float) -> bool:\n"
        '    """ Check if in given list of numbers, are any two numbers closer."""\n'
        "    for idx, elem in enumerate(numbers):\n"
        "        for idx2, elem2 in enumerate(numbers):\n"
        "            if idx != idx2 and abs(elem - elem2) < threshold:\n"
        "                return True\n\n    return False",
    ),
    "humaneval: nearly equal, messages and loops": (
        {
            "entry_point": "mean",
            "test": "import random\ndef check(candidate):\n"
            "    assert abs(candidate([1.0, 2.0]) - 1.5) < 1e-6, 'first'\n"
            "    assert True, 'This prints if this assert fails 1 (good for debugging!)'\n"
            "    for _ in range(20):\n"
            "        xs = [random.random() for _ in range(5)]\n"
            "        assert abs(candidate(xs) - sum(xs) / 5) < 1e-9\n",
        },
        "def mean(xs): return sum(xs) / len(xs)",
    ),
    "humaneval: reference in the test": (
        {
            "entry_point": "gcd",
            "test": "def check(candidate):\n    def ref(a, b):\n"
            "        return a if b == 0 else ref(b, a % b)\n"
            "    for a in range(1, 9):\n        assert candidate(a, 12) == ref(a, 12)\n",
        },
        "import math\ngcd = math.gcd",
    ),
    "humaneval: there and back": (
        {
            "test_list": ["assert decode(encode('abc')) == 'abc'"],
        },
        "def encode(s): return s[::-1]\ndef decode(s): return s[::-1]",
    ),
    # LeetCode
    "leetcode: Solution": (
        {
            "test_list": [
                "assert Solution().twoSum([2, 7, 11, 15], 9) == [0, 1]",
                "assert sorted(Solution().twoSum(nums=[3, 3], target=6)) == [0, 1]",
            ]
        },
        "from typing import List\nclass Solution:\n"
        "    def twoSum(self, nums: List[int], target: int) -> List[int]:\n"
        "        seen = {}\n        for i, n in enumerate(nums):\n"
        "            if target - n in seen: return [seen[target - n], i]\n"
        "            seen[n] = i\n",
    ),
    "leetcode: design a class": (
        {
            "test_list": [
                "s = MinStack()\ns.push(-2)\ns.push(0)\ns.push(-3)\nassert s.getMin() == -3\n"
                "s.pop()\nassert s.top() == 0\nassert s.getMin() == -2",
            ]
        },
        "class MinStack:\n    def __init__(self): self.a = []\n"
        "    def push(self, x): self.a.append((x, min(x, self.a[-1][1]) if self.a else x))\n"
        "    def pop(self): return self.a.pop()[0]\n    def top(self): return self.a[-1][0]\n"
        "    def getMin(self): return self.a[-1][1]",
    ),
    "leetcode: methods named like those of data": (
        {
            "test_list": [
                "c = Cache(2)\nc.update(1, 'a')\nassert c.get(1) == 'a'\nassert len(c) == 1\n"
                "assert c[1] == 'a'\nassert list(c) == [1]\nassert str(c) == 'Cache(1)'",
            ]
        },
        "class Cache:\n    def __init__(self, n): self.d = {}\n"
        "    def update(self, k, v): self.d[k] = v\n    def get(self, k): return self.d.get(k)\n"
        "    def __len__(self): return len(self.d)\n"
        "    def __getitem__(self, k): return self.d[k]\n"
        "    def __iter__(self): return iter(self.d)\n"
        "    def __str__(self): return f'Cache({len(self)})'",
    ),
    "leetcode: a cache that counts uses": (
        {
            "test_list": [
                "c = Cache(2)\nc[1] = 'a'\nc[2] = 'b'\nassert c[1] == 'a'\nassert c[2] == 'b'\n"
                "assert c[1] == 'a'\nc[3] = 'c'\nassert sorted(c) == [1, 3]",
            ]
        },
        "from collections import OrderedDict\nclass Cache:\n"
        "    def __init__(self, n): self.n, self.d = n, OrderedDict()\n"
        "    def __getitem__(self, k):\n        self.d.move_to_end(k)\n        return self.d[k]\n"
        "    def __setitem__(self, k, v):\n        self.d[k] = v\n"
        "        if len(self.d) > self.n: self.d.popitem(last=False)\n"
        "    def __iter__(self): return iter(self.d)",
    ),
    "leetcode: linked list": (
        {
            "test_list": [
                "head = ListNode(1, ListNode(2, ListNode(3)))\nback = Solution().reverse(head)\n"
                "assert back.val == 3\nassert back.next.val == 2\n"
                "assert back.next.next.next is None",
            ]
        },
        "class ListNode:\n    def __init__(self, val=0, next=None):\n"
        "        self.val = val\n        self.next = next\n"
        "class Solution:\n    def reverse(self, head):\n        prev = None\n"
        "        while head: head.next, prev, head = prev, head, head.next\n        return prev",
    ),
    "leetcode: static methods and class attributes": (
        {
            "test_list": [
                "assert Circle.area(2) == 12",
                "assert Circle.PI == 3",
                "assert Circle.unit().radius == 1",
            ]
        },
        "class Circle:\n    PI = 3\n    def __init__(self, radius): self.radius = radius\n"
        "    @staticmethod\n    def area(r): return 3 * r * r\n"
        "    @classmethod\n    def unit(cls): return cls(1)",
    ),
    "dataclass": (
        {
            "test_list": [
                "p = Point(1, 2)\nassert p.x == 1\nassert (p.x, p.y) == (1, 2)",
                "assert repr(Point(3, 4)) == 'Point(x=3, y=4)'",
            ]
        },
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Point:\n    x: int\n    y: int = 0\n",
    ),
    "enum": (
        {"test_list": ["assert paint('r') == 1", "assert Shape.ROUND.value == 'o'"]},
        "from enum import Enum, IntEnum\nclass Colour(IntEnum):\n    RED = 1\n"
        "class Shape(Enum):\n    ROUND = 'o'\ndef paint(c): return Colour.RED",
    ),
    # Ways of ending and starting
    "exit at its end": (
        {"test_list": ["assert f(1) == 2"]},
        "def f(x): return x + 1\nprint(f(1))\nexit()",
    ),
    "sys.exit(0) at its end": (
        {"test_list": ["assert f(1) == 2"]},
        "import sys\ndef f(x): return x + 1\ndef main():\n    print(f(1))\n    return 0\n"
        "sys.exit(main())",
    ),
    "main guard that reads": (
        {"test_list": ["assert f(1) == 2"]},
        "def f(x): return x + 1\nif __name__ == '__main__':\n    print(f(int(input())))\n"
        "    quit()",
    ),
    "reads what is not there": (
        {"test_list": ["assert f(1) == 2"]},
        "def f(x): return x + 1\nn = int(input())\nprint(f(n))",
    ),
    "prints much": (
        {"test_list": ["assert f(1) == 2"]},
        "import sys\ndef f(x):\n    for i in range(1000): print('noise', i, file=sys.stderr)\n"
        "    print('noise' * 10**5)\n    return x + 1",
    ),
    "asserts of its own, and a doctest": (
        {"test_list": ["assert f(1) == 2"]},
        'def f(x):\n    """\n    >>> f(1)\n    2\n    """\n    return x + 1\n\nassert f(2) == 3\n'
        "import doctest\ndoctest.testmod()",
    ),
    # What it may use
    "memoised recursion": (
        {"test_list": ["assert fib(90) == 2880067194370816120"]},
        "from functools import lru_cache\n@lru_cache(None)\n"
        "def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)",
    ),
    "deep recursion": (
        {"test_list": ["assert depth(5000) == 5000"]},
        "import sys\nsys.setrecursionlimit(10**6)\n"
        "def depth(n): return 0 if n == 0 else 1 + depth(n - 1)",
    ),
    "threads": (
        {"test_list": ["assert squares([1, 2, 3]) == [1, 4, 9]"]},
        "from concurrent.futures import ThreadPoolExecutor\n"
        "def squares(xs):\n    with ThreadPoolExecutor(4) as pool:\n"
        "        return list(pool.map(lambda x: x * x, xs))",
    ),
    "asyncio": (
        {"test_list": ["assert both(1, 2) == [1, 2]"]},
        "import asyncio\nasync def one(x):\n    await asyncio.sleep(0)\n    return x\n"
        "async def all_of(*xs): return await asyncio.gather(*map(one, xs))\n"
        "def both(a, b): return asyncio.run(all_of(a, b))",
    ),
    "random, time, hashes, regular expressions": (
        {
            "test_list": [
                "assert words('a1b22') == ['1', '22']",
                "assert 0 <= chance() < 1",
                "assert digest('x') == '9dd4e461268c8034f5c8564e155c67a6'",
            ]
        },
        "import re, random, time, hashlib, uuid, secrets\nt = time.time(); time.sleep(0.01)\n"
        "def words(s): return re.findall(r'\\d+', s)\ndef chance(): return random.random()\n"
        "def digest(s): return hashlib.md5(s.encode()).hexdigest()",
    ),
    "files in /tmp": (
        {"test_list": ["assert keep('x') == 'x'"]},
        "import json, os, pathlib, tempfile\ndef keep(x):\n"
        "    with tempfile.TemporaryDirectory() as d:\n        p = pathlib.Path(d) / 'a.json'\n"
        "        p.write_text(json.dumps(x))\n        os.rename(p, p.with_name('b'))\n"
        "        return json.loads((pathlib.Path(d) / 'b').read_text())",
    ),
    "sqlite, csv, statistics, itertools, heapq, bisect": (
        {"test_list": ["assert total([1, 2]) == 3", "assert middle([3, 1, 2]) == 2"]},
        "import sqlite3, csv, io, statistics, itertools, heapq, bisect, operator, string\n"
        "def total(xs):\n    db = sqlite3.connect(':memory:')\n"
        "    db.execute('create table t (x)')\n"
        "    db.executemany('insert into t values (?)', [(x,) for x in xs])\n"
        "    return db.execute('select sum(x) from t').fetchone()[0]\n"
        "def middle(xs): return statistics.median(xs)",
    ),
    "pickles its own class": (
        {"test_list": ["assert copy(3) == 3"]},
        "import pickle, copy as c\nclass Box:\n    def __init__(self, x): self.x = x\n"
        "def copy(x): return c.deepcopy(pickle.loads(pickle.dumps(Box(x)))).x",
    ),
    "type hints of every kind": (
        {"test_list": ["assert f([1, None]) == {'n': 1}"]},
        "from __future__ import annotations\nfrom typing import *\nT = TypeVar('T')\n"
        "class D(TypedDict):\n    n: int\nclass G(Generic[T]): pass\n"
        "def f(xs: list[int | None], g: Optional[G[int]] = None) -> D: return {'n': xs[0]}",
    ),
    "alarm": (
        {"test_list": ["assert waits() == 'rang'"]},
        "import signal\nclass Late(Exception): pass\ndef ring(*_): raise Late\n"
        "def waits():\n    signal.signal(signal.SIGALRM, ring)\n    try:\n"
        "        signal.setitimer(signal.ITIMER_REAL, .05)\n"
        "        while True: pass\n    except Late: return 'rang'",
    ),
    # Standard input and output
    "stdin: input()": (
        {"inputs": ["3\n1 2 3\n"], "outputs": ["6\n"]},
        "n = int(input())\nprint(sum(map(int, input().split())))",
    ),
    "stdin: sys.stdin.read": (
        {"inputs": ["1 2\n3"], "outputs": ["6"]},
        "import sys\nprint(sum(map(int, sys.stdin.read().split())))",
    ),
    "stdin: fast reading and writing": (
        {"inputs": ["2\n5\n6\n"], "outputs": ["10\n12"]},
        "import sys\ninput = sys.stdin.readline\ndef main():\n    out = []\n"
        "    for _ in range(int(input())): out.append(str(2 * int(input())))\n"
        "    sys.stdout.write('\\n'.join(out))\nif __name__ == '__main__':\n    main()",
    ),
    "stdin: bytes": (
        {"inputs": ["4 5"], "outputs": ["20"]},
        "import sys, os\na, b = map(int, sys.stdin.buffer.read().split())\n"
        "os.write(1, b'%d' % (a * b))",
    ),
    "stdin: open(0) and os._exit": (
        {"inputs": ["7"], "outputs": ["7"]},
        "import os, sys\nprint(open(0).read().strip(), flush=True)\nos._exit(0)",
    ),
    "stdin: /dev/stdin": (
        {"inputs": ["7\n8"], "outputs": ["15"]},
        "print(sum(int(line) for line in open('/dev/stdin')))",
    ),
    "stdin: fileinput and exit()": (
        {"inputs": ["1\n2\n"], "outputs": ["3"]},
        "import fileinput\nprint(sum(int(line) for line in fileinput.input()))\nexit(0)",
    ),
    "stdin: until the end of the file": (
        {"inputs": ["1\n2\n"], "outputs": ["2\n4"]},
        "while True:\n    try:\n        print(2 * int(input()))\n    except EOFError:\n"
        "        break",
    ),
    "stdin: thread with a large stack": (
        {"inputs": ["2000"], "outputs": ["2000"]},
        "import sys, threading\nsys.setrecursionlimit(10**6)\nthreading.stack_size(2**26)\n"
        "def depth(n): return 0 if n == 0 else 1 + depth(n - 1)\n"
        "t = threading.Thread(target=lambda: print(depth(int(input()))))\nt.start()\nt.join()",
    ),
    "stdin: nothing to read": ({"inputs": [""], "outputs": ["hello"]}, "print('hello')"),
    "stdin: letters of all sorts": (
        {"inputs": ["grüße 世界 🎉"], "outputs": ["🎉 界世 eßürg"]},
        "print(input()[::-1])",
    ),
}
