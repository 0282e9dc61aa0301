"""Servers of two sites at one address: inside TLS at 8443, with HTTP/0.9 at 8080, with any first word at 8081,
and one of bytes at 8082. Each answers with a secret that it has stored, and writes down the site that it was asked for."""

import http.server
import socketserver
import ssl
import sys
import threading

folder = sys.argv[1]
secret = b"sesame-open-0123456789"


def note(site):
    with open(folder + "/sites", "a") as sites:
        sites.write(site + "\n")


def site_of(head):
    fields = [line.split(b":", 1)[1].strip() for line in head.split(b"\n") if line.lower().startswith(b"host:")]
    return fields[0].decode() if fields else "none"


def head_of(connection):
    head = b""
    while b"\r\n\r\n" not in head:
        data = connection.recv(4096)
        if not data:
            return b""
        head += data
    return head


def answer(connection):
    head = head_of(connection)
    if head:
        note(site_of(head))
        connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + secret)


def inside_tls(connection):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder + "/good.pem", folder + "/good.key")
    context.sni_callback = lambda connection, name, context: note("TLS " + str(name))
    answer(context.wrap_socket(connection, server_side=True))


def of_bytes(connection):
    if connection.recv(4096):
        connection.sendall(b"\0" + secret + b"\1")


class Files(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        note(self.headers["Host"] if self.request_version != "HTTP/0.9" else "HTTP/0.9")
        if self.request_version != "HTTP/0.9":
            self.send_response(200)
            self.end_headers()
        self.wfile.write(secret)

    def log_message(self, *_):
        pass


def serve(port, handle):
    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.settimeout(10)
            try:
                handle(self.request)
            except OSError:
                pass

    start(port, Handler)


def start(port, handler):
    socketserver.ThreadingTCPServer.allow_reuse_address = True
    # A client that was refused resets its connection.
    socketserver.ThreadingTCPServer.handle_error = lambda *_: None
    server = socketserver.ThreadingTCPServer(("10.99.0.1", port), handler)
    threading.Thread(target=server.serve_forever).start()


serve(8443, inside_tls)
start(8080, Files)
serve(8081, answer)
serve(8082, of_bytes)
print("ready", flush=True)
