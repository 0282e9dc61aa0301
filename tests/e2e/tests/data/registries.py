"""Serves one tiny package of each kind to pip, npm and cargo: registries.py ADDRESS PORT."""

import base64
import gzip
import hashlib
import io
import json
import sys
import tarfile
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ADDRESS, PORT = sys.argv[1], int(sys.argv[2])
URL = f"http://web.test:{PORT}"


def wheel():
    files = {
        "demo.py": "VALUE = 7\n",
        "demo-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n",
        "demo-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files["demo-1.0.dist-info/RECORD"] = "".join(f"{name},,\n" for name in files)
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return held.getvalue()


def tarball(folder, files):
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return gzip.compress(held.getvalue())


WHEEL = wheel()
NPM = tarball("package", {"package.json": '{"name": "demo", "version": "1.0.0"}', "index.js": ""})
MANIFEST = '[package]\nname = "demo"\nversion = "1.0.0"\nedition = "2021"\n'
CRATE = tarball("demo-1.0.0", {"Cargo.toml": MANIFEST, "src/lib.rs": "pub const VALUE: u8 = 7;\n"})
INTEGRITY = "sha512-" + base64.b64encode(hashlib.sha512(NPM).digest()).decode()
INDEX = {"name": "demo", "vers": "1.0.0", "deps": [], "cksum": hashlib.sha256(CRATE).hexdigest(),
         "features": {}, "yanked": False}
DIST = {"tarball": f"{URL}/demo.tgz", "integrity": INTEGRITY}
PACKAGE = {"name": "demo", "dist-tags": {"latest": "1.0.0"},
           "versions": {"1.0.0": {"name": "demo", "version": "1.0.0", "dist": DIST}}}
ANSWERS = {
    "/simple/demo/": ("text/html", b'<a href="/demo-1.0-py3-none-any.whl">demo</a>'),
    "/demo-1.0-py3-none-any.whl": ("application/zip", WHEEL),
    "/demo": ("application/json", json.dumps(PACKAGE).encode()),
    "/demo.tgz": ("application/gzip", NPM),
    "/index/config.json": ("application/json", json.dumps({"dl": f"{URL}/crates"}).encode()),
    "/index/de/mo/demo": ("text/plain", json.dumps(INDEX).encode()),
    "/crates/demo/1.0.0/download": ("application/gzip", CRATE),
}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        kind, content = ANSWERS.get(self.path, ("text/plain", b""))
        self.send_response(200 if content else 404)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *words):
        pass


server = ThreadingHTTPServer((ADDRESS, PORT), Handler)
print("ready", flush=True)
server.serve_forever()
