"""Servers of several hosts at one address, plain and inside TLS: `hosts.py FOLDER CERTIFICATE ADDRESS`. FOLDER/HOST has the files of a
host, and CERTIFICATE is the path of a certificate and its key without `.pem` and `.key`. What is posted to the API of a model goes to
the tests' backend of models. Each request is a line of FOLDER/seen."""

import http.client, http.server, ssl, sys, threading

folder, certificate, address = sys.argv[1:]
MODELS = ['api.anthropic.com', 'api.openai.com']


class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def host(self):
        return self.headers['Host'].partition(':')[0]

    def note(self):
        with open(folder + '/seen', 'a') as seen: seen.write(f'{self.command} {self.host()}{self.path}\n')

    def translate_path(self, path):
        self.directory = f'{folder}/{self.host()}'
        return super().translate_path(path)

    def do_GET(self):
        self.note()
        if 'Upgrade' in self.headers: self.send_error(426)
        else: super().do_GET()

    def do_HEAD(self):
        self.note()
        super().do_HEAD()

    def take(self):
        self.note()
        status, kind, content = 200, 'application/json', b'{}'
        body = self.rfile.read(int(self.headers.get('Content-Length', 0)))
        if self.host() in MODELS:
            backend = http.client.HTTPConnection('10.99.0.1', 9000)
            backend.request('POST', '/agent' + self.path, body)
            answer = backend.getresponse()
            status, kind, content = answer.status, answer.headers['Content-Type'], answer.read()
        self.send_response(status)
        self.send_header('Content-Type', kind)
        self.send_header('Content-Length', str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_PUT = do_PATCH = do_DELETE = take

    def log_message(self, *words): pass


plain, tls = (http.server.ThreadingHTTPServer((address, port), Handler) for port in (80, 443))
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate + '.pem', certificate + '.key')
tls.socket = context.wrap_socket(tls.socket, server_side=True)
threading.Thread(target=plain.serve_forever, daemon=True).start()
print('ready', flush=True)
tls.serve_forever()
