"""Far end of a forward: relays connections to a port of this node over stdin and stdout.

Sent as text to a node, for its python3 from 3.6 on. Lines from stdin: `o ID` opens a connection,
`d ID BASE64` is data, `w ID BYTES` a receipt, `e ID` ends one direction, `x ID` both. Lines to
stdout begin with the token; `port OWN UID` reports the listener's user, or nothing after OWN.
"""

import base64
import errno
import os
import selectors
import socket
import subprocess
import sys
import time
from typing import Dict, List, Optional, Tuple, Union

# Data that the other side has not confirmed, of one connection.
WINDOW_BYTES = 1 << 18
CHUNK_BYTES = 1 << 14
CHECK_SECONDS = 2.0
CONNECT_SECONDS = 10.0
MAX_CONNECTIONS = 256


class Connection:
    """Connection to the server; `unsent` goes to it, `unconfirmed` counts bytes from it."""

    def __init__(self, server: socket.socket) -> None:
        self.server = server
        self.unsent = bytearray()
        self.unconfirmed = 0
        self.is_read = False
        self.ends_after_unsent = False
        self.is_written = False


class Relay:
    """All connections of one forward."""

    def __init__(self, token: str, port: int, listener: str) -> None:
        self.token = token
        self.port = port
        self.listener = listener
        self.selector = selectors.DefaultSelector()
        self.connections: Dict[str, Connection] = {}
        self.input = b""
        self.output = bytearray()
        self.reported: Optional[str] = None
        os.set_blocking(0, False)
        os.set_blocking(1, False)
        self.selector.register(0, selectors.EVENT_READ, None)

    def report(self, text: str) -> None:
        self.output += f"{self.token} {text}\n".encode()

    def find_listener(self) -> Optional[Tuple[str, int]]:
        """Return the address and the user of what listens on the port; None for nothing."""
        script = self.listener + '\nlistener "$1"'
        found = subprocess.run(
            ["sh", "-c", script, "sh", str(self.port)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ).stdout.split()
        return (found[0].decode(), int(found[1])) if len(found) == 2 else None

    def check_listener(self) -> Optional[Tuple[str, int]]:
        found = self.find_listener()
        text = "port {} {}".format(os.getuid(), "" if found is None else found[1])
        if text != self.reported:
            self.reported = text
            self.report(text)
        return found

    def open(self, number: str) -> None:
        """Connect to the port, if what listens there is the user's own before and after."""
        found = self.check_listener()
        reason = ""
        host = "" if found is None else found[0]
        if found is None:
            reason = "nothing listens"
        elif found[1] != os.getuid():
            reason = f"the port belongs to uid {found[1]}"
        elif len(self.connections) >= MAX_CONNECTIONS:
            reason = "too many connections"
        if reason:
            self.report(f"x {number} {reason}")
            return
        try:
            server = socket.create_connection((host, self.port), CONNECT_SECONDS)
        except OSError as error:
            self.report(f"x {number} {error.strerror or error}")
            return
        if self.check_listener() != found:
            server.close()
            self.report(f"x {number} the port changed hands")
            return
        server.setblocking(False)
        self.connections[number] = Connection(server)

    def receive(self, line: bytes) -> None:
        parts = line.split(b" ", 2)
        if len(parts) < 2:
            return
        kind = parts[0]
        number = parts[1].decode("ascii", "replace")
        if kind == b"o":
            self.open(number)
            return
        connection = self.connections.get(number)
        if connection is None:
            return
        if kind == b"d":
            connection.unsent += base64.b64decode(parts[2])
            self.send_unsent(number, connection)
        elif kind == b"w":
            connection.unconfirmed -= int(parts[2])
        elif kind == b"e":
            connection.ends_after_unsent = True
            self.send_unsent(number, connection)
        elif kind == b"x":
            self.drop(number)

    def send_unsent(self, number: str, connection: Connection) -> None:
        try:
            while connection.unsent:
                count = connection.server.send(connection.unsent[:CHUNK_BYTES])
                del connection.unsent[:count]
                self.report(f"w {number} {count}")
            if connection.ends_after_unsent and not connection.is_written:
                connection.is_written = True
                connection.server.shutdown(socket.SHUT_WR)
                self.drop_ended(number, connection)
        except BlockingIOError:
            pass
        except OSError:
            self.drop(number)
            self.report(f"x {number}")

    def read_server(self, number: str, connection: Connection) -> None:
        try:
            content = connection.server.recv(CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self.drop(number)
            self.report(f"x {number}")
            return
        if content:
            connection.unconfirmed += len(content)
            self.report(f"d {number} {base64.b64encode(content).decode()}")
        else:
            connection.is_read = True
            self.report(f"e {number}")
            self.drop_ended(number, connection)

    def drop_ended(self, number: str, connection: Connection) -> None:
        if connection.is_read and connection.is_written:
            self.drop(number)

    def drop(self, number: str) -> None:
        connection = self.connections.pop(number)
        try:
            self.selector.unregister(connection.server)
        except (KeyError, ValueError):
            pass
        connection.server.close()

    def select(self, seconds: float) -> List[Tuple[selectors.SelectorKey, int]]:
        """Wait for what can be read or written now; no connection is read ahead of its receipts."""
        for number, connection in self.connections.items():
            events = selectors.EVENT_WRITE if connection.unsent else 0
            may_read = connection.unconfirmed < WINDOW_BYTES and not connection.is_read
            if may_read and len(self.output) < WINDOW_BYTES:
                events |= selectors.EVENT_READ
            self.watch(connection.server, events, number)
        self.watch(1, selectors.EVENT_WRITE if self.output else 0, None)
        return self.selector.select(seconds)

    def watch(self, file: Union[int, socket.socket], events: int, number: Optional[str]) -> None:
        try:
            if events:
                self.selector.modify(file, events, number)
            else:
                self.selector.unregister(file)
        except KeyError:
            if events:
                self.selector.register(file, events, number)

    def run(self) -> None:
        self.report("carries all")
        checked_at: Optional[float] = None
        while True:
            now = time.monotonic()
            if checked_at is None or now - checked_at >= CHECK_SECONDS:
                self.check_listener()
                checked_at = now
            for key, events in self.select(CHECK_SECONDS):
                if key.fd == 0:
                    content = os.read(0, 1 << 16)
                    if not content:
                        return
                    *lines, self.input = (self.input + content).split(b"\n")
                    for line in lines:
                        self.receive(line)
                elif key.fd == 1:
                    try:
                        del self.output[: os.write(1, self.output[: 1 << 16])]
                    except BlockingIOError:
                        pass
                elif key.data in self.connections:
                    connection = self.connections[key.data]
                    if events & selectors.EVENT_WRITE:
                        self.send_unsent(key.data, connection)
                    if events & selectors.EVENT_READ and key.data in self.connections:
                        self.read_server(key.data, connection)


try:
    Relay(sys.argv[1], int(sys.argv[2]), sys.argv[3]).run()
except OSError as error:
    # Nobody reads this any more.
    if error.errno != errno.EPIPE:
        raise
