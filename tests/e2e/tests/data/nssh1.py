"""Connects to an SSH server behind a preface, and copies its own streams: the proxy command of an SSH client.

nssh1.py ADDRESS PORT SECRET [NONCE [SECONDS]] prints the answer to the preface on standard error, if it is not OK.
"""
import hashlib
import hmac
import os
import secrets
import socket
import sys
import threading
import time

address, port, secret = sys.argv[1], int(sys.argv[2]), sys.argv[3]
nonce = sys.argv[4] if len(sys.argv) > 4 else secrets.token_hex(16)
seconds = int(sys.argv[5]) if len(sys.argv) > 5 else int(time.time())
mac = hmac.new(secret.encode(), f"tok|{seconds}|{nonce}".encode(), hashlib.sha256).hexdigest()
server = socket.create_connection((address, port))
server.sendall(f"NSSH1 tok {seconds} {nonce} {mac}\n".encode())
answer = b""
while not answer.endswith(b"\n"):
    byte = server.recv(1)
    if not byte:
        break
    answer += byte
if answer != b"OK\n":
    sys.exit(f"preface: {answer!r}, then {server.recv(1)!r}")


def up():
    while data := os.read(0, 65536):
        server.sendall(data)
    server.shutdown(socket.SHUT_WR)


threading.Thread(target=up, daemon=True).start()
while data := server.recv(65536):
    while data:
        data = data[os.write(1, data) :]
