"""Programs that try to get away with something, for a task that wants f(x) = x * 7919 + 1.

Each entry is a name and a program. None computes f, so each must be found wrong.
"""

HOSTILE = {
    "network by socket": "import socket\nsocket.create_connection(('1.1.1.1', 53), 2)",
    "network by urllib": (
        "import urllib.request\nurllib.request.urlopen('http://example.com', timeout=2)"
    ),
    "network to localhost": "import socket\ns = socket.socket(); s.connect(('127.0.0.1', 22))",
    "network by unix socket": "import socket\nsocket.socket(socket.AF_UNIX).bind('/tmp/x')",
    "network by raw socket": "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
    "fork bomb": "import os\nwhile True: os.fork()",
    "fork bomb that swallows errors": (
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass"
    ),
    "thread bomb": (
        "import threading, time\n"
        "while True: threading.Thread(target=time.sleep, args=(60,)).start()"
    ),
    "processes by multiprocessing": (
        "import multiprocessing as m\nm.Process(target=print).start()\ndef f(x): return 0"
    ),
    "shell by os.system": "import os\nos.system('touch {outside}')",
    "shell by subprocess": (
        "import subprocess\nsubprocess.run(['/bin/sh', '-c', 'touch {outside}'])"
    ),
    "exec of another program": "import os\nos.execv('/usr/bin/env', ['env'])",
    "memory by a list": "x = []\nwhile True: x.append(bytearray(10**7))",
    "memory by a string": "x = 'x' * 10**11",
    "memory by mmap": "import mmap\nx = [mmap.mmap(-1, 2**30) for _ in range(64)]",
    "memory in shared files": (
        "for i in range(10**4):\n    open(f'/dev/shm/{i}', 'wb').write(bytes(10**7))"
    ),
    "memory in /tmp": "for i in range(10**4):\n    open(f'/tmp/{i}', 'wb').write(bytes(10**6))",
    "memory by memfd": (
        "import os\nfor i in range(99):\n    os.write(os.memfd_create('x'), bytes(2**24))"
    ),
    "one huge file": "open('/tmp/x', 'wb').truncate(2**40)\ndef f(x): return 0",
    "huge output": "while True: print('x' * 10**6)",
    "huge output on stderr": "import sys\nwhile True: sys.stderr.write('x' * 10**6)",
    "huge value": "def f(x): return 'x' * 10**8",
    "huge integer": "def f(x): return 10 ** 10**6",
    "nested value": "def f(x):\n    v = []\n    for _ in range(10**5): v = [v]\n    return v",
    "reads /etc/shadow": "def f(x): return open('/etc/shadow').read()",
    "reads /etc/passwd": "def f(x): return open('/etc/passwd').read()",
    "reads the project": "def f(x): return open('{project}').read()",
    "reads a secret file": "def f(x): return open('{secret_file}').read()",
    "reads home directories": "import os\ndef f(x): return os.listdir('/home')",
    "reads secrets in the environment": (
        "import os\nassert '{secret}' in str(dict(os.environ))\ndef f(x): return 0"
    ),
    "reads secrets of other processes": (
        "import glob\n"
        "found = [open(p, 'rb').read() for p in glob.glob('/proc/[0-9]*/environ')]\n"
        "assert any(b'{secret}' in text for text in found)\ndef f(x): return 0"
    ),
    "writes outside": "open('{outside}', 'w').write('x')",
    "writes beside the libraries": "import os\nopen(os.__file__, 'a').write('x')",
    "writes through a symlink": (
        "import os\nos.symlink('{outside}', '/tmp/link')\nopen('/tmp/link', 'w').write('x')"
    ),
    "walks up by a symlink": (
        "import os\nos.symlink('/proc/1/root/../../..', '/tmp/up')\n"
        "open('/tmp/up{outside}', 'w').write('x')"
    ),
    "writes through /proc of the parent": "open('/proc/1/root{outside}', 'w').write('x')",
    "deletes the system": "import shutil\nshutil.rmtree('/usr')",
    "deletes everything it can": (
        "import shutil\nshutil.rmtree('/', ignore_errors=True)\ndef f(x): return 0"
    ),
    "kills its parent": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)",
    "kills everybody": "import os, signal\nos.kill(-1, signal.SIGKILL)",
    "kills the checker by number": "import os, signal\nos.kill({pid}, signal.SIGKILL)",
    "kills its group": "import os, signal\nos.killpg(0, signal.SIGKILL)",
    "stops its parent": (
        "import os, signal\nos.kill(os.getppid(), signal.SIGSTOP)\ndef f(x): return 0"
    ),
    "ignores signals and sleeps": (
        "import signal, time\n"
        "for s in (1, 2, 15, 24): signal.signal(s, signal.SIG_IGN)\n"
        "time.sleep(10**6)"
    ),
    "infinite loop": "while True: pass",
    "infinite loop in C": "sum(iter(int, 1))",
    "catastrophic regular expression": "import re\nre.match('(a+)+$', 'a' * 64 + 'b')",
    "sleeps for ever": "import time\ntime.sleep(10**6)",
    "daemon that outlives it": (
        "import os, time\n"
        "if os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\ndef f(x): return 0"
    ),
    "pickled object": (
        "import pickle, os\n"
        "class P:\n    def __reduce__(self): return (os.system, ('touch {outside}',))\n"
        "pickle.loads(pickle.dumps(P()))\ndef f(x): return P()"
    ),
    "object with a flattering comparison": (
        "class Yes:\n    def __eq__(self, other): return True\n    __hash__ = None\n"
        "def f(x): return Yes()"
    ),
    "integer with a flattering comparison": (
        "class Yes(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\n"
        "def f(x): return Yes(0)"
    ),
    "object with a flattering text": (
        "class Yes:\n    def __repr__(self): return '1'\n    def __str__(self): return '1'\n"
        "def f(x): return Yes()"
    ),
    "segmentation fault": "import ctypes\nctypes.string_at(0)",
    "writes over memory": "import ctypes\nctypes.memset(id(None), 0, 64)",
    "calls the kernel by ctypes": (
        "import ctypes\nlib = ctypes.CDLL(None)\n"
        "lib.mount(b'none', b'/tmp', b'tmpfs', 0, b'')\nlib.unshare(0x10000000)\n"
        "lib.open(b'{outside}', 65, 511)\ndef f(x): return 0"
    ),
    "raises its own limits": (
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))\nx = 'x' * 10**10"
    ),
    "traces its parent": (
        "import ctypes, os\n"
        "assert ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) == 0\ndef f(x): return 0"
    ),
    "reads memory of its parent": (
        "import os\ndef f(x): return open(f'/proc/{os.getppid()}/mem', 'rb').read(9)"
    ),
    "writes memory of the first process": (
        "import os\nfd = os.open('/proc/1/mem', os.O_RDWR)\ndef f(x): return 0"
    ),
    "writes memory of any process": (
        "import glob\nfor p in glob.glob('/proc/[0-9]*/mem'): open(p, 'r+b')\n"
        "assert glob.glob('/proc/[0-9]*/mem')\ndef f(x): return 0"
    ),
    "writes memory of the first process by the kernel": (
        "import ctypes, os\nlib = ctypes.CDLL(None, use_errno=True)\n"
        "b = ctypes.create_string_buffer(8)\n"
        "v = (ctypes.c_void_p * 2)(ctypes.addressof(b), 8)\n"
        "for pid in range(10):\n"
        "    if lib.process_vm_writev(pid, v, 1, v, 1, 0) != -1: os._exit(0)\n"
        "raise OSError"
    ),
    "takes a file of another process": (
        "import ctypes, os\nlib = ctypes.CDLL(None)\n"
        "assert lib.syscall(434, 1, 0) >= 0\ndef f(x): return 0"
    ),
    "sends a file through the results": (
        "import array, socket\n"
        "for n in range(3, 16):\n"
        "    try:\n        s = socket.socket(fileno=n)\n"
        " "
        "       s.sendmsg([b'x'], [(1, socket.SCM_RIGHTS, array.array('i', [0]))])\n"
        "    except OSError:\n        pass"
    ),
    "sets how the kernel swaps": (
        "open('/proc/sys/vm/swappiness', 'w').write('61')\ndef f(x): return 0"
    ),
    "sets who gets a crash": (
        "import os\nos.open('/proc/sys/kernel/core_pattern', os.O_WRONLY)\ndef f(x): return 0"
    ),
    "presses a magic key": "open('/proc/sysrq-trigger', 'w').write('h')\ndef f(x): return 0",
    "writes to /sys": (
        "import os\nfor at, _, files in os.walk('/sys'):\n"
        "    for name in files: open(f'{at}/{name}', 'w')\n"
        "assert os.path.exists('/sys')\ndef f(x): return 0"
    ),
    "makes itself root": (
        "import os\nos.setuid(0)\nos.setgroups([0])\nos.chroot('/tmp')\ndef f(x): return 0"
    ),
    "opens /dev/mem": "def f(x): return open('/dev/mem', 'rb').read(9)",
    "opens a disk": "import os\nos.mknod('/tmp/disk', 0o60600, os.makedev(254, 0))",
    "leaves with success": "import os\nos._exit(0)",
    "leaves with success politely": "import sys\nsys.exit(0)",
    "leaves with success inside the call": "import os\ndef f(x): os._exit(0)",
    "forges results on standard output": "print('{\"value\": true}')\nimport os\nos._exit(0)",
    "forges results on every file": (
        "import os\n"
        "for fd in range(3, 32):\n"
        '    try:\n        os.write(fd, b\'{"value": true}\\n{"value": 1}\\n\' * 9)\n'
        "    except OSError:\n        pass\n"
        "os._exit(0)"
    ),
    "patches the encoder": (
        "import json\njson.dumps = lambda *a, **k: '{\"value\": true}'\ndef f(x): return True"
    ),
    "patches the interpreter": (
        "import builtins, sys\nbuiltins.eval = lambda *a: True\nbuiltins.exec = lambda *a: None\n"
        "sys.modules['__main__'].plain = lambda *a: True\ndef f(x): return True"
    ),
    "looks for expected values": (
        "import gc, sys\n"
        "text = str([o for o in gc.get_objects() if isinstance(o, (dict, list, tuple))])\n"
        "text += str(sys._getframe(1).f_locals) + str(sys._getframe(2).f_locals)\n"
        "def f(x): return int(text[text.index('expected'):][:9]) if 'expected' in text else 0"
    ),
    "patches the tests' names": (
        "def f(x): return 0\nglobals()['__builtins__'] = {'abs': lambda x: x}"
    ),
    "does not parse": "def f(x) return x",
    "recursion without end": "def f(x): return f(x)",
    "imports what is installed": "import numpy, torch\ndef f(x): return 0",
    "imports the checker": "import scalerl.tasks.code\ndef f(x): return 0",
    "null byte": "def f(x): return 0 # \x00",
    "lone surrogate": "def f(x): return '\ud800'",
    "too long": "x = 0\n" * 10**5,
}
