"""A server of MCP with odd lists of tools, by the cursor that it is asked for: `odd.py ADDRESS PORT`."""
import gzip
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MIB = 1 << 20


def listed(id, *names):
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
    return json.dumps({"jsonrpc": "2.0", "id": id, "result": {"tools": tools}})


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *words):
        pass

    def answer(self, kind, body, **fields):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in fields.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        cursor = message.get("params", {}).get("cursor")
        one = listed(1, "get_issue", "delete_repo")
        if cursor == "many":
            names = ["get_issue", *(f"tool_{n}" for n in range(50_000))]
            self.answer("application/json", listed(1, *names).encode())
        elif cursor == "long":
            long = json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": "x" * 17 * MIB})
            self.answer("text/event-stream", f"data: {long}\n\ndata: {one}\n\n".encode())
        elif cursor == "endless":
            self.answer("text/event-stream", b"data: " + b"x" * 40 * MIB)
        elif cursor == "other":
            other = listed(999, "delete_repo")
            self.answer("text/event-stream", f"data: {other}\n\ndata: {one}\n\n".encode())
        elif cursor == "broken":
            twice = one.replace('"result"', '"result": {}, "result"')
            self.answer("application/json", twice.encode())
        elif cursor == "gzip":
            self.answer("application/json", gzip.compress(one.encode()), Content_Encoding="gzip")
        else:
            self.answer("application/json", one.encode())


server = ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Handler)
print("starts", flush=True)
server.serve_forever()
