"""Runs a conformance client in a sandbox, where localhost has the name web.test: `sandboxed.py NODE CLIENT URL`. SANDBOX has the words that
start a sandbox, FOLDERS what it may read. Every port on which somebody listens is permitted: messages of MCP at the path of the URL, and
all requests elsewhere."""
import json
import os
import sys
import tempfile
from urllib.parse import urlsplit


def listening():
    for family in ["tcp", "tcp6"]:
        with open(f"/proc/net/{family}") as sockets:
            for line in list(sockets)[1:]:
                fields = line.split()
                if fields[3] == "0A":
                    yield int(fields[1].rsplit(":", 1)[1], 16)


path = urlsplit(sys.argv[-1]).path or "/"
place = {"host": "web.test", "ports": sorted(set(listening())), "allowed_ips": ["10.99.0.1"], "enforcement": "enforce"}
messages = {"strict_tool_names": False, "allow_all_known_mcp_methods": True}
endpoints = [{**place, "protocol": "rest", "access": "full"}, {**place, "path": path, "protocol": "mcp", "mcp": messages}]
policy = {
    "process": {"run_as_user": os.environ["USER_INSIDE"]},
    "filesystem_policy": {"read_only": os.environ["FOLDERS"].split()},
    "network_policies": {"suite": {"endpoints": endpoints, "binaries": [{"path": "/**"}]}},
}
with tempfile.NamedTemporaryFile("w", suffix=".yaml", dir=os.environ["CONFORMANCE"], delete=False) as file:
    json.dump(policy, file)
os.chmod(file.name, 0o644)
names = ["PACKAGES", "LOCALHOST", "MCP_CONFORMANCE_SCENARIO", "MCP_CONFORMANCE_CONTEXT", "MCP_CONFORMANCE_PROTOCOL_VERSION"]
variables = [word for name in names if name in os.environ for word in ["--env", f"{name}={os.environ[name]}"]]
words = os.environ["SANDBOX"].split() + ["--policy-data", file.name, "--log-level", "error", *variables, "--", *sys.argv[1:]]
os.execvp(words[0], words)
