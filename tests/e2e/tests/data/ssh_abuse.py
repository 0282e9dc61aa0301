"""Clients that break SSH's rules or ask for too much: ssh_abuse.py PORT SECRET NAME runs one and prints what it saw."""
import hashlib
import hmac
import logging
import secrets
import socket
import sys
import threading
import time
import warnings

warnings.filterwarnings("ignore")
logging.disable()
import paramiko
from paramiko.message import Message
try:
    from paramiko.sftp import int64
except ImportError:  # Before paramiko 3.
    from paramiko.py3compat import long as int64

port, secret, name = int(sys.argv[1]), sys.argv[2], sys.argv[3]
DATA, ADJUST, OPEN, CLOSE, REQUEST, GLOBAL = 94, 93, 90, 97, 98, 80


def enter():
    """Returns a connection behind its preface."""
    seconds, nonce = int(time.time()), secrets.token_hex(16)
    mac = hmac.new(secret.encode(), f"t|{seconds}|{nonce}".encode(), hashlib.sha256).hexdigest()
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(f"NSSH1 t {seconds} {nonce} {mac}\n".encode())
    assert connection.recv(3) == b"OK\n"
    return connection


def client():
    transport = paramiko.Transport(enter())
    transport.start_client(timeout=30)
    transport.auth_none("any")
    return transport


def packet(kind, *parts):
    message = Message()
    message.add_byte(bytes([kind]))
    for part in parts:
        if isinstance(part, bool):
            message.add_boolean(part)
        elif isinstance(part, int):
            message.add_int(part)
        else:
            message.add_string(part)
    return message


def run(transport, command):
    """Returns a command's exit code and its output, or what became of the request."""
    try:
        channel = transport.open_session(timeout=30)
        channel.set_combine_stderr(True)
        channel.exec_command(command)
        return channel.recv_exit_status(), channel.makefile().read().decode()
    except (paramiko.SSHException, EOFError, OSError):
        # An answer, or the end of the connection, tells the two apart.
        try:
            transport.global_request("any@example.com", wait=True)
        except (paramiko.SSHException, EOFError, OSError):
            return "disconnected"
        return "refused" if transport.is_active() else "disconnected"


def unauthenticated():
    """A thousand clients that wait, or send what is no SSH, and never authenticate."""
    openings = [b"", b"SSH-2.0-x\r\n", b"SSH-2.0-x\r\n" + secrets.token_bytes(5000), secrets.token_bytes(500)]
    clients = []
    for number in range(1000):
        clients.append(enter())
        try:
            clients[-1].sendall(openings[number % 4])
        except OSError:
            pass
    print(run(client(), "echo in"))


def channels():
    """More channels than a connection may have; one that is closed makes room for another."""
    transport, opened = client(), []
    refused = 0
    for _ in range(200):
        try:
            opened.append(transport.open_session(timeout=30))
        except paramiko.ChannelException:
            refused += 1
    print(len(opened), refused)
    print(run(client(), "echo in"))
    opened.pop().close()
    print(run(transport, "echo in"))


def variables():
    """Ten megabytes of variables."""
    channel = client().open_session()
    for number in range(10_000):
        channel.set_environment_variable(f"LC_{number}", "x" * 1000)
    channel.exec_command("env | wc -c")
    print(channel.recv_exit_status(), int(channel.makefile().read()) < 80_000)


def commands():
    """Long command lines: one that a shell takes, one that no program may be given, one that no packet holds."""
    transport = client()
    print(run(transport, "echo in #" + "x" * 100_000))
    print(run(transport, "echo in #" + "x" * 200_000))
    print(run(client(), "echo in #" + "x" * 1_048_576))


def windows():
    """A window that overflows, one that is never opened, and data that no window allows."""
    transport = client()
    channel = transport.open_session()
    for _ in range(10):
        transport._send_user_message(packet(ADJUST, channel.remote_chanid, 0xFFFFFFFF))
    channel.exec_command("head -c 10000 /dev/zero")
    print(channel.recv_exit_status(), len(channel.makefile().read()))
    closed = transport.open_session(window_size=1)
    closed.exec_command("exec -a idle yes")
    flooded = client()
    sleeping = flooded.open_session()
    sleeping.exec_command("sleep 600")

    def flood():
        try:
            for _ in range(10_000):
                flooded._send_user_message(packet(DATA, sleeping.remote_chanid, b"x" * 32_000))
        except (OSError, EOFError, paramiko.SSHException):
            pass

    # The server takes it more and more slowly, or ends the channel.
    flooding = threading.Thread(target=flood, daemon=True)
    flooding.start()
    flooding.join(5)
    print(run(client(), "echo in"))
    closed.close()
    print(run(transport, "while pgrep -x idle; do sleep 0.1; done; echo gone"))


def unknown():
    """Requests, channels and messages that do not exist: answered, or the end of that connection alone."""
    transport = client()
    channel = transport.open_session()
    print(transport.global_request("nosuch@example.com", wait=True))
    for request in ["nosuch@example.com", "break", "auth-agent-req@openssh.com"]:
        transport._send_user_message(packet(REQUEST, channel.remote_chanid, request, True))
    try:
        transport.open_channel("nosuch@example.com")
    except paramiko.ChannelException:
        print("refused")
    print(run(transport, "echo in"))
    for message in [
        packet(DATA, 9999, b"x"),
        packet(CLOSE, 9999),
        packet(ADJUST, 9999, 1),
        packet(REQUEST, 9999, "exec", True, "touch wrong"),
        packet(OPEN, "session"),
        packet(REQUEST, 0xFFFFFFFF),
        packet(REQUEST, 0, "x11-req", True),
        packet(REQUEST, 0, "pty-req", True, "x" * 30_000),
        packet(GLOBAL, 0xFFFFFFFF, 0xFFFFFFFF),
        packet(200, b"x"),
        packet(21),
        packet(50, "root", "ssh-connection", "password", False, "guess"),
    ]:
        other = client()
        other.open_session()
        other._send_user_message(message)
        run(other, "true")
        other.close()
    print(run(client(), "[ -e wrong ] || echo in"))


def paths():
    """Paths and handles that a server of files cannot have, each answered, and the next request too."""
    sftp = paramiko.SFTPClient.from_transport(client())
    sftp.mkdir("folder")
    with sftp.open("folder/file", "w") as file:
        file.write("text")
    for path in ["p" * 4096, "d/" * 3000, "a\0b", "folder/file/x"]:
        try:
            print("found", sftp.stat(path))
        except OSError as error:
            print(path[:10].encode(), error.errno)
    try:
        sftp.open("folder/../../../../../etc/shadow")
    except OSError as error:
        print(error.errno)
    print(sftp.normalize("folder/../folder") == sftp.normalize("folder"))
    for kind in [paramiko.sftp.CMD_READ, paramiko.sftp.CMD_READDIR, paramiko.sftp.CMD_FSTAT, paramiko.sftp.CMD_CLOSE]:
        try:
            parts = [int64(0), 10] if kind == paramiko.sftp.CMD_READ else []
            print("done", sftp._request(kind, b"no such handle", *parts))
        except OSError as error:
            print(error.errno)
    with sftp.open("folder/file") as file:
        file.seek(2**62)
        print(file.read(10))
        file.seek(2)
        print(file.read(2**31))


globals()[name]()
