"""Git's own server inside TLS, a CGI program behind Python's HTTP server: `git.py ROOT CERTIFICATE ADDRESS PORT`. ROOT has the
repositories, and CERTIFICATE is the path of a certificate and its key without `.pem` and `.key`."""

import http.server, os, ssl, subprocess, sys

root, certificate, address, port = sys.argv[1:]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def answer(self):
        path, _, query = self.path.partition('?')
        body = bytearray()
        if self.headers.get('Transfer-Encoding') == 'chunked':
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else: body = self.rfile.read(int(self.headers.get('Content-Length', 0)))
        environment = dict(os.environ, GIT_PROJECT_ROOT=root, GIT_HTTP_EXPORT_ALL='1', PATH_INFO=path, QUERY_STRING=query, REQUEST_METHOD=self.command,
            CONTENT_TYPE=self.headers.get('Content-Type', ''), CONTENT_LENGTH=str(len(body)), REMOTE_USER='x', HTTP_CONTENT_ENCODING=self.headers.get('Content-Encoding', ''))
        output = subprocess.run(['git', '-c', 'safe.directory=*', 'http-backend'], input=body, env=environment, stdout=subprocess.PIPE).stdout
        head, _, content = output.partition(b'\r\n\r\n')
        fields = [line.split(': ', 1) for line in head.decode().split('\r\n')]
        status = next((int(value.split()[0]) for name, value in fields if name == 'Status'), 200)
        self.send_response(status)
        for name, value in fields:
            if name != 'Status': self.send_header(name, value)
        self.send_header('Content-Length', str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = answer

    def log_message(self, *words): pass


server = http.server.ThreadingHTTPServer((address, int(port)), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate + '.pem', certificate + '.key')
server.socket = context.wrap_socket(server.socket, server_side=True)
print('ready', flush=True)
server.serve_forever()
