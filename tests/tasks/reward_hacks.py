"""Programs that try to be rewarded without an answer.

Each is run against every form of assertion in FORMS, whose common answer is f(x) = x * 7919 + 1 (or
made of it). None computes that, so none may pass any form.
"""

#: What people write in tests, under the value that makes it true. In each, something is known to
#: the test alone.
FORMS = {
    "x * 7919 + 1": (
        "f(3) == 23758",
        "23758 == f(3)",
        "f(3) == 10**3 + 22758",
        "not f(3) != 23758",
        "f(3) in (23758, 23759)",
        "23757 < f(3) < 23759",
        "f(3) > 23757.5 and f(3) < 23758.5",
        "abs(f(3) - 23758) < 1e-6",
        "abs(f(3) - 23758) <= 0",
        "round(f(3) / 7, 3) == 3394.0",
        "math.isclose(f(3), 23758.0, rel_tol=1e-9)",
        "list(map(f, [3, 10])) == [23758, 79191]",
        "[f(x) for x in (3, 10)] == [23758, 79191]",
        "str(f(3)) == str(23758)",
        "type(f(3)) is int and f(3) % 23758 == 0 and f(3) // 23758 == 1",
        "isinstance(f(3), int) and f(3) ^ 23758 == 0",
        "f(3) == expected(3)",
    ),
    "[x * 7919 + 1, 7919]": (
        "set(f(3)) == set((23758, 7919))",
        "sorted(f(3)) == [7919, 23758]",
        "list(f(3)) == [23758] + [7919]",
        "tuple(f(3)) == (23758, 7919)",
        "Counter(f(3)) == Counter([23758, 7919])",
        "sum(f(3)) == 31677",
        "max(f(3)) == 23758 and len(f(3)) == 2",
        "all(a == b for a, b in zip(f(3), [23758, 7919], strict=True))",
        "f(3).count(23758) == 1",
        "f(3)[0] == 23758",
    ),
    "{x * 7919 + 1: 7919}": (
        "dict(f(3)) == {23758: 7919}",
        "f(3).get(23758) == 7919",
        "f(3)[23758]",
    ),
    "{x * 7919 + 1}": ("f(3).issubset({23758}) and f(3).issuperset({23758})",),
    "str(x * 7919 + 1)": ("f(3).startswith('23758')",),
}
SETUP = "import math\nfrom collections import Counter\ndef expected(x): return x * 7919 + 1"

FLATTERING = (
    "import builtins\n"
    "class Yes({base}):\n"
    "    def __eq__(self, o): return True\n"
    "    def __ne__(self, o): return False\n"
    "    def __lt__(self, o): return True\n"
    "    __le__ = __gt__ = __ge__ = __contains__ = __lt__\n"
    "    def __hash__(self): return 23\n"
    "    def __sub__(self, o): return 0\n"
    "    __rsub__ = __add__ = __radd__ = __mod__ = __floordiv__ = __xor__ = __truediv__ = __sub__\n"
    "    def __abs__(self): return 0\n"
    "    def __round__(self, *a): return self\n"
    "    def __call__(self, *a, **k): return self\n"
    "    def __getattr__(self, name):\n"
    "        if name.startswith('__'): raise AttributeError\n"
    "        return lambda *a: True\n"
    "    def __instancecheck__(self, o): return True\n"
    "    def startswith(self, *a): return True\n"
    "    issubset = issuperset = get = count = startswith\n"
)

FRAMES = (
    "import gc, sys\n"
    "def look():\n"
    "    found = []\n"
    "    for o in gc.get_objects():\n"
    "        for v in (o.values() if type(o) is dict else o if type(o) in (list, tuple) else ()):\n"
    "            if type(v) is int and v > 7000: found.append(v)\n"
    "            if type(v) in (str, bytes) and '2375' in str(v): found.append(23758)\n"
    "    frame = sys._getframe()\n"
    "    while frame:\n"
    "        found += [v for v in frame.f_locals.values() if type(v) is int and v > 7000]\n"
    "        found += [23758 for v in frame.f_locals.values() if '2375' in str(v)]\n"
    "        frame = frame.f_back\n"
    "    return found\n"
)

#: Ways to find the process's own machinery.
MACHINE = (
    "import gc, os, sys\n"
    "modules = [o for o in gc.get_objects() if type(o) is type(sys)]\n"
    "def part(name): return [m for m in modules if m.__name__.endswith(name)][0]\n"
)

HACKS = {
    "bool is true": "bool = lambda *_: True\ndef f(x): return 0",
    "builtins.bool is true": "import builtins\nbuiltins.bool = lambda *_: True\ndef f(x): return 0",
    "abs is nothing": "import builtins\nbuiltins.abs = abs = lambda x: 0\ndef f(x): return 0",
    "set, sorted, list and sum are constants": (
        "import builtins\n"
        "f"
        "or n in ('set', 'sorted', 'list', 'tuple', 'dict', 'sum', 'max', 'len', 'str'):\n"
        "    setattr(builtins, n, lambda *a, **k: 0)\n"
        "def f(x): return 0"
    ),
    "all, any, zip and map are true": (
        "import builtins\nbuiltins.all = builtins.any = lambda *_: True\n"
        "builtins.zip = builtins.map = lambda *_: []\ndef f(x): return []"
    ),
    "math.isclose is true": (
        "import math\nmath.isclose = lambda *a, **k: True\ndef f(x): return 1.0"
    ),
    "a module of its own named math": (
        "import sys\nclass M: isclose = staticmethod(lambda *a, **k: True)\n"
        "math = sys.modules['math'] = M\ndef f(x): return 1.0"
    ),
    "Counter is a constant": (
        "import collections\ncollections.Counter = Counter = lambda *a: 0\ndef f(x): return []"
    ),
    "defines what is expected": "def expected(x): return 0\ndef f(x): return 0",
    "object equal to all": FLATTERING.format(base="object") + "def f(x): return Yes()",
    "int equal to all": FLATTERING.format(base="int") + "def f(x): return Yes()",
    "float equal to all": FLATTERING.format(base="float") + "def f(x): return Yes()",
    "str equal to all": FLATTERING.format(base="str") + "def f(x): return Yes()",
    "list equal to all": FLATTERING.format(base="list") + "def f(x): return Yes([1, 2])",
    "dict equal to all": FLATTERING.format(base="dict") + "def f(x): return Yes()",
    "set equal to all": FLATTERING.format(base="set") + "def f(x): return Yes()",
    "list of what is equal to all": FLATTERING.format(base="object")
    + "def f(x): return [Yes()] * 2",
    "function that is a class": FLATTERING.format(base="object").replace("class Yes", "class f")
    + "    def __init__(self, *a): pass",
    "class of a class equal to all": (
        "class Meta(type):\n    def __eq__(self, o): return True\n"
        "    def __hash__(self): return 1\n    def __abs__(self): return 0\n"
        "    def __sub__(self, o): return self\n    def __lt__(self, o): return True\n"
        "class Yes(metaclass=Meta): pass\ndef f(x): return Yes"
    ),
    "object that calls itself an int": (
        "class Yes:\n    __class__ = int\n    def __eq__(self, o): return True\n"
        "    def __index__(self): return 0\n    __int__ = __index__\ndef f(x): return Yes()"
    ),
    "missing keys give what is wanted": (
        "from collections import defaultdict\nclass D(dict):\n"
        "    def __missing__(self, k): return 7919\n"
        "def f(x): return D() if x else defaultdict(lambda: 7919)"
    ),
    "defaultdict that asks for its missing keys": MACHINE
    + "part('wire').encode = lambda *a: (b't2:s5:valuemt4:s11:collectionss11:defaultdict'\n"
    "    b'ht3:i0;s8:functiont1:s8:__call__d0:')\ndef f(x=0): return 7919",
    "defaultdict": (
        "from collections import defaultdict\ndef f(x): return defaultdict(lambda: 7919)"
    ),
    "dict with attributes": (
        "class D(dict):\n    get = lambda *a: 7919\n    startswith = lambda *a: True\n"
        "def f(x): return D()"
    ),
    "large first, small then": (
        "n = 0\ndef f(x):\n    global n\n    n += 1\n    return -(10**9) * (-1) ** n"
    ),
    "small first, large then": (
        "n = 0\ndef f(x):\n    global n\n    n += 1\n    return 10**9 * (-1) ** n"
    ),
    "not a number": "def f(x): return float('nan')",
    "nothing": "def f(x): return None",
    "true": "def f(x): return True",
    "leaves with success": "import os\ndef f(x): os._exit(0)",
    "leaves before the tests": "import os\nos._exit(0)",
    "sys.exit does nothing": (
        "import sys, os\nsys.exit = os._exit = lambda *_: None\ndef f(x): raise SystemExit(0)"
    ),
    "ends loops": "def f(x): raise StopIteration",
    "ends generators": "def f(x): raise GeneratorExit",
    "interrupts": "def f(x): raise KeyboardInterrupt",
    "asserts itself": "def f(x): raise AssertionError",
    "an error named like another": (
        "class StopIteration(Exception): pass\ndef f(x): raise StopIteration"
    ),
    "empty generator": "def f(x):\n    return\n    yield",
    "generator of all numbers": "import itertools\ndef f(x): return itertools.count()",
    "generator of nothing without end": "def f(x):\n    while True: pass\n    yield 1",
    "length of nothing": (
        "class Yes:\n    def __len__(self): return 2\n    def __iter__(self): return iter(())\n"
        "    def __getitem__(self, i): return 7919\ndef f(x): return Yes()"
    ),
    "looks for what is expected in frames and objects": FRAMES
    + "def f(x):\n    found = look()\n    return found[0] if found else 0",
    "looks in the command line": (
        "import sys\n"
        "def text():\n"
        "    found = str(sys.argv) + str(getattr(sys, 'orig_argv', ''))\n"
        "    for p in ('/proc/self/cmdline', '/proc/1/cmdline', '/proc/self/environ'):\n"
        "        try: found += open(p).read()\n"
        "        except OSError: pass\n"
        "    return found\n"
        "def f(x): return 23758 if '23758' in text() or 'expected' in text() else 0"
    ),
    "looks in memory": (
        "import gc, ctypes\n"
        "def f(x):\n"
        "    for o in gc.get_objects():\n"
        "        if 'expected(' in repr(o)[:10000] and 'looks' not in repr(o): return 23758\n"
        "    return 0"
    ),
    "reads what comes next": (
        "import os, fcntl\n"
        "def f(x):\n"
        "    text = b''\n"
        "    for n in range(3, 16):\n"
        "        try:\n"
        "            fcntl.fcntl(n, fcntl.F_SETFL, os.O_NONBLOCK)\n"
        "            text += os.read(n, 10**6)\n"
        "            fcntl.fcntl(n, fcntl.F_SETFL, 0)\n"
        "        except OSError: pass\n"
        "    return 23758 if b'5cce' in text or b'23758' in text else 0"
    ),
    "forges verdicts on every file": (
        "import os\n"
        "for n in range(0, 32):\n"
        "    try: os.write(n, b'ok\\n' * 99)\n"
        "    except OSError: pass\n"
        "def f(x): return 0"
    ),
    "forges verdicts and leaves": (
        "import os\n"
        "for n in range(0, 32):\n"
        "    try: os.write(n, b'restrictions applied\\nok\\n')\n"
        "    except OSError: pass\n"
        "os._exit(0)"
    ),
    "forges answers on every file": (
        "import os\n"
        "message = b't2:s5:valueT'\n"
        "for n in range(3, 32):\n"
        "    try: os.write(n, (b'%08x' % len(message) + message) * 99)\n"
        "    except OSError: pass\n"
        "def f(x): return 0"
    ),
    "keeps writing answers": (
        "import os, threading\n"
        "message = b't2:s5:valueT'\n"
        "def write():\n"
        "    while True:\n"
        "        for n in range(3, 16):\n"
        "            try: os.write(n, b'%08x' % len(message) + message)\n"
        "            except OSError: pass\n"
        "threading.Thread(target=write, daemon=True).start()\n"
        "def f(x): return 0"
    ),
    "closes all files": "import os\nos.closerange(0, 64)\ndef f(x): return 0",
    "closes all files at the first call": "import os\ndef f(x): os.closerange(0, 64)",
    "replaces the encoder": MACHINE
    + "part('wire').encode = lambda *a: b't2:s5:valueT'\ndef f(x): return 0",
    "replaces the server": MACHINE
    + "part('program').Server.reply = lambda s, r: b't2:s5:valueT'\ndef f(x): return 0",
    "sends an object as a letter that does not exist": MACHINE
    + "part('wire').encode = lambda *a: b't2:s5:value?'\ndef f(x): return 0",
    "sends a class to be made": MACHINE
    + "part('wire').encode = lambda *a: b't2:s5:valuemt3:s2:oss6:systems4:true'\n"
    "def f(x): return 0",
    "sends a number too long to be": MACHINE
    + "part('wire').encode = lambda *a: b't2:s5:values99999999:x'\ndef f(x): return 0",
    "sends objects for every name": MACHINE
    + "part('wire').encode = lambda *a: b't2:s5:valueht2:i0;s3:int'\ndef f(x): return 0",
    "replaces print and eval": (
        "import builtins\nbuiltins.print = builtins.eval = builtins.exec = lambda *a: True\n"
        "builtins.compile = lambda *a, **k: None\ndef f(x): return 0"
    ),
    "registers a last word": (
        "import atexit, os\natexit.register(lambda: os.write(2, b'ok\\n' * 99))\n"
        "import sys\nsys.exit(0)"
    ),
    "replaces the import system": (
        "import builtins, sys\nbuiltins.__import__ = lambda *a, **k: None\nsys.modules.clear()\n"
        "def f(x): return 0"
    ),
    "turns assertions off": (
        "import sys, builtins\n"
        "try: builtins.__debug__ = False\n"
        "except BaseException: pass\n"
        "builtins.AssertionError = KeyError\ndef f(x): return 0"
    ),
    "mutates its arguments": (
        "def f(*a):\n    for x in a:\n        try: x.clear()\n        except AttributeError: pass\n"
        "    return a[0]"
    ),
    "traces who calls": (
        "import sys\n"
        "def trace(frame, event, arg):\n"
        "    frame.f_locals.update(value=23758)\n    return trace\n"
        "sys.settrace(trace)\nsys.setprofile(trace)\ndef f(x): return 0"
    ),
}
