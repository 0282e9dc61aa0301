"""A client that speaks HTTP/2 frame by frame, well or badly, through the sandbox's proxy. Runs the program that follows it."""

import os, socket, ssl, struct, sys, time

DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED = 1, 1, 4, 8
NAMES = ['DATA', 'HEADERS', 'PRIORITY', 'RST_STREAM', 'SETTINGS', 'PUSH_PROMISE', 'PING', 'GOAWAY', 'WINDOW_UPDATE', 'CONTINUATION']
ERRORS = ['NO_ERROR', 'PROTOCOL_ERROR', 'INTERNAL_ERROR', 'FLOW_CONTROL_ERROR', 'SETTINGS_TIMEOUT', 'STREAM_CLOSED', 'FRAME_SIZE_ERROR',
          'REFUSED_STREAM', 'CANCEL', 'COMPRESSION_ERROR', 'CONNECT_ERROR', 'ENHANCE_YOUR_CALM', 'INADEQUATE_SECURITY', 'HTTP_1_1_REQUIRED']
PREFACE = b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'


def frame(kind, flags=0, stream=0, payload=b''):
    return struct.pack('>I', len(payload))[1:] + bytes([kind, flags]) + struct.pack('>I', stream) + payload


def text(value):
    value = value if isinstance(value, bytes) else value.encode()
    assert len(value) < 0x4000
    prefix = bytes([len(value)]) if len(value) < 127 else bytes([127, (len(value) - 127) & 0x7f | 0x80, (len(value) - 127) >> 7])
    return prefix + value


def block(fields):
    """Literals without indexing (RFC 7541 §6.2.2)."""
    return b''.join(b'\0' + text(name) + text(value) for name, value in fields)


AUTHORITY = 'web.test'


def ask(path='/hello', method='GET', more=(), authority=None, scheme=None):
    return [(':method', method), (':scheme', scheme or CLIENT.scheme), (':authority', authority or CLIENT.authority), (':path', path), *more]


class Client:
    """An HTTP/2 connection through a tunnel of the proxy."""

    def __init__(self, tls=True, preface=True, port=8080):
        global CLIENT
        CLIENT = self
        proxy = os.environ['HTTPS_PROXY'][7:].split(':')
        self.scheme, where = ('https', 'web.test:443') if tls else ('http', f'web.test:{port}')
        self.authority = 'web.test' if tls else where
        self.socket = socket.create_connection((proxy[0], int(proxy[1])), 20)
        self.socket.sendall(f'CONNECT {where} HTTP/1.1\r\nHost: {where}\r\n\r\n'.encode())
        head = b''
        while b'\r\n\r\n' not in head: head += self.socket.recv(1)
        assert b' 200 ' in head, head
        if tls:
            context = ssl.create_default_context(cafile=os.environ['SSL_CERT_FILE'])
            context.set_alpn_protocols(['h2'])
            self.socket = context.wrap_socket(self.socket, server_hostname='web.test')
            assert self.socket.selected_alpn_protocol() == 'h2'
        self.buffer, self.is_ending = b'', False
        # Without a dynamic table each head is complete.
        if preface: self.send(PREFACE + frame(SETTINGS, 0, 0, struct.pack('>HI', 1, 0)))

    def send(self, data): self.socket.sendall(data)

    def request(self, stream, fields, flags=END_STREAM | END_HEADERS): self.send(frame(HEADERS, flags, stream, block(fields)))

    def read(self):
        """Returns the next frame: kind, flags, stream, payload; None at the end."""
        try:
            while len(self.buffer) < 9 or len(self.buffer) < 9 + int.from_bytes(self.buffer[:3], 'big'):
                data = self.socket.recv(65536)
                if not data: return None
                self.buffer += data
        except (ConnectionError, ssl.SSLError): return None
        length = int.from_bytes(self.buffer[:3], 'big')
        kind, flags, stream = self.buffer[3], self.buffer[4], int.from_bytes(self.buffer[5:9], 'big')
        payload, self.buffer = self.buffer[9:9 + length], self.buffer[9 + length:]
        if kind == SETTINGS and not flags & ACK:
            try: self.send(frame(SETTINGS, ACK))
            except OSError: pass
        self.is_ending |= kind == GOAWAY
        if kind == PING and not flags & ACK:
            try: self.send(frame(PING, ACK, 0, payload))
            except OSError: pass
        return kind, flags, stream, payload

    def until(self, *kinds, stream=None):
        """Returns the next frame of one of these kinds as text: the outcome of a stream or of the connection."""
        while True:
            got = self.read()
            if got is None: return 'END'
            kind, flags, which, payload = got
            if kind == SETTINGS and flags & ACK and 'ACK' in kinds: return 'SETTINGS ACK'
            if kind == GOAWAY and (code := int.from_bytes(payload[4:8], 'big')) != 0: return f'GOAWAY {ERRORS[code]}'
            if kind not in kinds or (stream is not None and which != stream): continue
            if kind == RST: return f'RST_STREAM {ERRORS[int.from_bytes(payload, "big")]}'
            if kind == HEADERS: return f'HEADERS {status(payload)}'
            return NAMES[kind] + (' ACK' if kind == PING and flags & ACK else '')


# Huffman codes of digits in HPACK (RFC 7541, appendix B): a status has three.
DIGITS = {'00000': '0', '00001': '1', '00010': '2', '011001': '3', '011010': '4', '011011': '5', '011100': '6', '011101': '7', '011110': '8', '011111': '9'}
INDEXED = {8: '200', 9: '204', 10: '206', 11: '304', 12: '400', 13: '404', 14: '500'}


def status(payload):
    """Returns the status, the first field, in any of its encodings."""
    while payload[0] & 0xe0 == 0x20: payload = payload[1:]
    if payload[0] & 0x80: return INDEXED.get(payload[0] & 0x7f, '?')
    length, value = payload[1] & 0x7f, payload[2:]
    if not payload[1] & 0x80: return value[:length].decode()
    bits, digits, code = ''.join(f'{byte:08b}' for byte in value[:length]), '', ''
    for bit in bits:
        code += bit
        if code in DIGITS: digits, code = digits + DIGITS[code], ''
    return digits[:3]
