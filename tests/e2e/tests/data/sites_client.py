"""Asks for another site by what is neither HTTP nor TLS at first sight, through each door, and prints what came of it."""

import os
import socket
import ssl
import sys
import time

REQUEST = b"GET /kv HTTP/1.1\r\nHost: other.test\r\n\r\n"
PLAIN = [b"@" + REQUEST, b"\0" + REQUEST, b"\xef\xbb\xbf" + REQUEST, b"x\n" + REQUEST, b" " + REQUEST, b"GET  " + REQUEST[4:]]


def opened(door, port):
    if door in ("direct", "name"):
        s = socket.create_connection(("web.test", port))
    else:
        s = socket.create_connection(("10.200.0.1", 3128))
    s.settimeout(15)
    if door == "connect":
        s.sendall(b"CONNECT web.test:%d HTTP/1.1\r\nHost: web.test:%d\r\n\r\n" % (port, port))
        head = b""
        while b"\r\n\r\n" not in head:
            head += s.recv(1)
    elif door == "socks":
        s.sendall(b"\5\1\0")
        s.recv(2)
        s.sendall(b"\5\1\0\3\x08web.test" + port.to_bytes(2, "big"))
        assert s.recv(10)[1] == 0
    return s


def heard(s):
    out = b""
    try:
        while data := s.recv(65536):
            out += data
    except OSError:
        pass
    return out


def said(door, port, parts, ends):
    s = opened(door, port)
    try:
        for index, part in enumerate(parts):
            time.sleep(0.3 if index else 0)
            s.sendall(part)
        if ends:
            s.shutdown(socket.SHUT_WR)
    except OSError:
        pass
    return heard(s)


def inside_tls(door, change):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="other.test")
    s = opened(door, 8443)
    is_first, is_done = True, False
    while True:
        try:
            if not is_done:
                tls.do_handshake()
                is_done = True
                tls.write(REQUEST)
            answer = tls.read(65536)
            return answer
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            return b""
        data = outgoing.read()
        try:
            for part in change(data) if is_first and data else [data]:
                s.sendall(part)
            is_first = is_first and not data
            received = s.recv(65536)
        except OSError:
            return b""
        if not received:
            return b""
        incoming.write(received)


def pause(data):
    yield data[:1]
    time.sleep(0.3)
    yield data[1:]


CHANGES = {
    "empty record": lambda data: [b"\x14\3\1\0\0" + data],
    "version": lambda data: [data[:2] + b"\5" + data[3:]],
    "pause": pause,
    "alert": lambda data: [b"\x15\3\1\0\2\1\0" + data],
}

for door in sys.argv[1:]:
    for name, change in CHANGES.items():
        print(door, name, inside_tls(door, change))
    for port in (8080, 8081):
        for plain in PLAIN:
            print(door, port, plain[:6], said(door, port, [plain], False))
            print(door, port, plain[:6], "in parts", said(door, port, [plain[:1], plain[1:]], False))
    for line in (b"GET /kv", b"GET /kv\r\n", b"\r\nGET /kv"):
        print(door, line, said(door, 8080, [line], True))
    print(door, "bytes", said(door, 8082, [b"\0\0\0\1"], False))
