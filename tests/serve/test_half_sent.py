"""Requests that are sent by the byte, or half, and answers that nobody reads."""

import json
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from serving import get, process, wait_for

#: Shorter deadlines than the real ones, so that the tests take seconds.
QUICK = """
import scalerl.serve.app as app
import scalerl.serve.connections as connections
from scalerl.serve import responses
responses.BODY_SECONDS = 1.0
connections.HEADER_SECONDS = 1.0
connections.STALLED_SECONDS = 3.0
connections.MAX_CONNECTIONS = 40
pages = app.static_files
app.static_files = lambda: pages() | {"large.txt": bytes(50_000_000)}
"""
HEADERS = b"POST /api/fit HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with process(tmp_path_factory.mktemp("runs"), before=QUICK) as (address, running):
        yield address, running


def connect(address):
    parts = urlsplit(address)
    made = socket.create_connection((parts.hostname, parts.port))
    made.settimeout(60)  # a safety limit: what is tested ends after a second
    return made


def dropped(connection):
    """What came before the server closed the connection."""
    found = bytearray()
    with suppress(ConnectionError):
        while part := connection.recv(1 << 20):
            found += part
    return bytes(found)


def drip(connection, start, bytes_of=b"x"):
    """Send a byte ten times a second until the server has closed the connection."""
    connection.sendall(start)

    def send():
        try:
            while True:
                time.sleep(0.1)
                connection.sendall(bytes_of)
        except OSError:
            pass

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    found = dropped(connection)
    connection.close()
    thread.join(60)
    assert not thread.is_alive()
    return found


@pytest.mark.parametrize(
    "start", [b"", b"GET /healthz HT", b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "]
)
def test_headers_that_do_not_end_are_dropped(server, start):
    assert drip(connect(server[0]), start) == b""
    with connect(server[0]) as silent:
        silent.sendall(start)
        assert dropped(silent) == b""


def test_a_body_that_does_not_end_gets_408_and_is_dropped(server):
    start = HEADERS + b"Content-Length: 1000\r\n\r\n{"
    assert drip(connect(server[0]), start, b" ").startswith(b"HTTP/1.1 408")
    with connect(server[0]) as silent:
        silent.sendall(start)
        assert dropped(silent).startswith(b"HTTP/1.1 408")
    chunked = HEADERS + b"Transfer-Encoding: chunked\r\n\r\n"
    assert drip(connect(server[0]), chunked, b"1\r\n \r\n").startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize(
    ("start", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n", b"200"),
        (b"POST /api/fit HTTP/1.1\r\nHost: evil\r\nContent-Length: 1000\r\n\r\n", b"403"),
        (b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /he", b"200"),
    ],
)
def test_what_comes_after_the_answer_has_a_deadline_too(server, start, status):
    assert drip(connect(server[0]), start).startswith(b"HTTP/1.1 " + status)


def test_a_request_after_a_pause_is_answered(server):
    with connect(server[0]) as connection:
        for _ in range(3):
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            found = b""
            while not found.endswith(b"}"):
                part = connection.recv(65536)
                assert part
                found += part
            assert found.startswith(b"HTTP/1.1 200")
            time.sleep(1.5)  # longer than the deadline for headers, which is not for pauses


def test_a_stream_of_events_has_no_deadline_while_it_is_read(server):
    with connect(server[0]) as connection:
        connection.sendall(b"GET /api/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        found = b""
        while b"still here" not in found:  # sent after ten seconds of silence
            part = connection.recv(65536)
            assert part
            found += part


def is_held(connection):
    """Whether the server's end of a connection is open, by the kernel's list: in the state
    "established" (01), also before the server has accepted it."""
    mine = f":{connection.getsockname()[1]:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(row[2].endswith(mine) and row[3] == "01" for row in rows)


def test_an_answer_that_is_not_read_is_dropped(server):
    with connect(server[0]) as connection:
        assert is_held(connection)
        connection.sendall(b"GET /static/large.txt HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        wait_for(lambda: not is_held(connection), 60)
    with connect(server[0]) as connection:  # one that is read is sent whole
        request = b"GET /static/large.txt HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        connection.sendall(request)
        assert len(dropped(connection)) > 50_000_000


def test_connections_over_the_limit_are_closed_and_leave_room_again(server):
    address, running = server
    many = [connect(address) for _ in range(60)]
    # Twenty are closed at once, the others when their headers do not come.
    assert [dropped(each) for each in many] == [b""] * 60
    for each in many:
        each.close()
    assert json.loads(wait_for(lambda: get(address, "/healthz")[2])) == {"status": "ok"}
    assert running.poll() is None
