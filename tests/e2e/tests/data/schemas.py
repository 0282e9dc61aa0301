"""Compares the schemas of data/schema with the program's reader: schemas.py REPOSITORY PROGRAM SCRATCH [-v].

1. Every policy, credentials file and route file of the repository is valid by its schema, and `check` accepts it.
2. The documents below use every key of the schemas. Each change of one thing in them is refused by both sides or by neither; the
   exceptions are in two tables. The same holds for texts whose form a pattern describes.
3. Where the reader names the keys and words that it knows, the schema has the same.

Prints each disagreement, and ends with 1 if there is one. With -v it also prints how much it compared."""
import collections
import copy
import json
import os
import pathlib
import re
import subprocess
import sys

import jsonschema
import yaml

KINDS = ["policy", "credentials", "routes"]

FILES = r"""
version: 1
filesystem_policy:
  include_workdir: true
  read_only: [/usr, ~/.config/git/, "~/.tool*", $WORKDIR/docs]
  read_write: [/srv/data, ~/.cache]
  hidden: ["**/.env", /srv/data/keys]
  noexec: [$WORKDIR/downloads/]
landlock: {compatibility: hard_requirement}
process: {run_as_user: nobody, run_as_group: 65534, debug: false}
approvals: {hold: 5m}
"""

NETWORK = r"""
network_policies:
  web:
    name: The web
    endpoints:
      - host: api.one.test
        port: 443
        protocol: rest
        enforcement: enforce
        allowed_ips: [10.0.5.0/24, "fd00:5::1"]
        allow_encoded_slash: false
        upgrades: [spdy/3.1]
        leaks: allow
        rules:
          - allow: {method: GET, path: "/repos/**", query: {ref: main, sort: {glob: "a*"}, tag: {any: ["v1*"]}}}
        deny_rules:
          - {method: "*", path: "/repos/*/hooks/**", query: {key: "**"}, case_sensitive: true}
      - {ports: [80, 8080], allowed_ips: [10.0.6.1], resolve: ["*.two.test"]}
      - {host: db.three.test, port: 5432, protocol: sql, enforcement: audit, access: full}
      - {host: db.four.test, port: 5433, protocol: tcp}
      - {host: "**.five.test", port: 443, tls: skip}
      - {host: "*-a.*.six.test", port: 443, path: "/v1/**", protocol: rest, enforcement: enforce, access: full}
      - host: seven.test
        port: 443
        path: /mcp
        protocol: mcp
        enforcement: enforce
        mcp: {max_body_bytes: 4096, strict_tool_names: true, allow_all_known_mcp_methods: false, versions: ["2025-11-25"], filter_lists: false}
        rules:
          - allow: {method: initialize}
          - allow: {method: tools/call, tool: {any: ["a*", b]}}
          - allow: {method: tools/call, params: {name: c}, arguments: {repo: {in: [a, 1, null], optional: true}, "x[*].y": {glob: "a*"}, n: {range: [1, null]}, t: {max_length: 9, any: [a]}, u: {absent: true}, v: {equals: 1.5}}, other_arguments: deny}
          - allow: {method: resources/read, uri: "file:///a/**"}
          - allow: {method: prompts/get, name: "a*"}
        deny_rules: [{method: tools/call, tool: "b*"}]
      - {host: eight.test, port: 443, protocol: mcp, enforcement: enforce, mcp: {allow_all_known_mcp_methods: true}, deny_rules: [{tool: a}]}
      - {host: nine.test, port: 443, protocol: json-rpc, enforcement: enforce, json_rpc: {max_body_bytes: 1024}, rules: [{allow: {method: "*"}}], deny_rules: [{method: a}]}
    binaries:
      - {path: /usr/bin/git, exact: true, pinned: false, harness: true}
"""

CREDENTIALS = r"""
credentials:
  ONE: {env: TOKEN, hosts: [api.one.test, "*.two.test:8443", "http://three.test:8080"], path: /v1/}
  TWO: {file: /etc/token}
  THREE: {value: correct-horse-battery, hosts: ["[::1]:443"]}
"""

ROUTES = r"""
max_request_bytes: 1048576
routes:
  - name: one
    endpoint: https://models.one.test:8443/v1
    model: large
    provider_type: anthropic
    protocols: [anthropic_messages, model_discovery]
    tools: local
    api_key_env: KEY
    timeouts: {connect: 30, first_byte: 600, idle: 600}
    budget: {max_requests: 1000, max_tokens: 1000000}
  - {name: two, endpoint: "http://127.0.0.1:8000", model: small, protocols: [openai_responses], api_key: correct-horse-battery}
  - {name: three, endpoint: "https://three.test", model: small, protocols: [openai_completions], api_key_file: /etc/key}
  - {name: four, endpoint: "mock://four", model: none, protocols: [openai_embeddings, openai_chat_completions]}
"""

DOCUMENTS = [("policy", FILES), ("policy", NETWORK), ("credentials", CREDENTIALS), ("routes", ROUTES)]

# Texts for values whose form a pattern describes: the kind of document, the document with `@` in place of the value, the texts.
PATH_TEXTS = ["/", "//a", "/.", "a", "./a", "/a/../b", "/..", "/..a", "~", "~/", "~a", "~/..", "$WORKDIR", "$WORKDIRS", "$WORKDIR/..", "**", "**/", "**/.", "**/a",
              "**a", "*/a", "/*", "/a*/{b}", "/a{b}", "/a[b]", "/a*\\b", "/a\\b", "/a?", "/a/**/b", "/a\u0000", "/dev", "/dev/", "/dev/shm", "//dev/.", "/proc", "/proc/1",
              "/./proc/", "/process", "/devices", "/b\u00fccher"]
HOST_TEXTS = ["*", "*.test", "**", "*.*", "a*.one.test", "*.one.test", "**.one.test.", "*.a*.one.test", "*.one.*", "*.one.1", "one.*.test", "one test", "one.test ",
              "one.test:443", "*.one.test:443", "https://one.test", "one.test/a", "one..test", ".one.test", "one.test.", "one.test..", "-one.test", "one_a.test", "one!.test", "localhost",
              "1", "one.1", "one.0x1f", "0x", "one.1a", "127.1", "10.0.0.1", "10.0.0.1.", "10.0.0.256", "010.0.0.1", "::1", "[::1]", "[::1", "2001:db8::443", "1::", "a:b",
              "b\u00fccher.test", "*.b\u00fccher.test", "a" * 63 + ".test", "a" * 64 + ".test", "*.", "**.", "*..one.test", "*.a:b.one.test", "*.a$b.one.test"]
PROBES = [
    ("policy", "filesystem_policy: {read_only: [@]}", PATH_TEXTS),
    ("policy", "filesystem_policy: {read_write: [@]}", PATH_TEXTS),
    ("policy", "filesystem_policy: {hidden: [@]}", PATH_TEXTS),
    ("policy", "network_policies: {a: {endpoints: [{host: @, port: 443}]}}", HOST_TEXTS),
    ("policy", "network_policies: {a: {endpoints: [{port: 443, allowed_ips: [@]}]}}",
     ["10.0.0.1", "10.0.0.0/8", "10.0.0.0/33", "10.0.0", "10.0.0.0/", "010.0.0.1", "010.0.0.0/8", "fd00::/8", "fd00::1", "fd00::/129", "one.test", "10.0.0.1-10.0.0.9", "[fd00::1]"]),
    ("policy", "network_policies: {a: {endpoints: [{host: one.test, port: 443, protocol: rest, access: full, upgrades: [@]}]}}",
     ["tcp", "TCP", "spdy/3.1", "spdy/", "/3.1", "a/b/c", "websocket", "WebSocket/13", "websockets", "h2c", "HTTP/2.0", "httpx", "tls/1.3", "a b"]),
    ("policy", "network_policies: {a: {endpoints: [{host: one.test, port: 443, protocol: rest, rules: [{allow: {method: @, path: /}}]}]}}",
     ["*", "get", "GET", "REPORT", "A B", "A/B", "A,B", "M-SEARCH"]),
    ("policy", "network_policies: {a: {binaries: [{path: @}]}}", ["/a", "a", "a*", "*", "./a", "~/a", "/a\u0000", "*\u0000"]),
    ("policy", "process: {run_as_user: @}", ["root", "roots", "0", "00", "1", "007", "65534", "a b", "a:b", "a/b", "-a", "-1", "a-b", "12a", "1\u0007"]),
    ("policy", "approvals: {hold: @}", ["4", "4s", "5", "5s", "05", "3600", "3601", "99", "999s", "2999s", "3599s", "3600s", "1m", "60m", "61m", "0m", "1h", "2h", "1h30m", "5 s", "s", "+5", "5S"]),
    ("policy", "network_policies: {@: {}}", ["a", "A.b_c-9", "", "a b", "a/b", "a" * 128, "a" * 129, "\u00fc"]),
    ("credentials", "credentials: {A: {env: A, hosts: [@]}}",
     [*HOST_TEXTS, "one.test:0", "one.test:65535", "one.test:65536", "one.test:", "one.test:0443", "one.test:a", "http://one.test", "https://one.test:80", "HTTP://one.test",
      "ftp://one.test", "[::1]:80", "::1:80", "*.one.test:80", "*.test:80", "10.0.0.1:80"]),
    ("credentials", "credentials: {A: {env: A, path: @}}", ["/", "/a", "/a/", "//", "/a//b", "/.", "/a/..", "/a/..b", "/...", "/a?b", "/a%20", "a", "/a b", "/a:b@c"]),
    ("credentials", "credentials: {A: {value: @}}", ["a", " ", "a\nb", "a\u0000", "openshell:resolve:env:", "a openshell:resolve:env:B", "openshell:resolve"]),
    ("credentials", "credentials: {A: {env: @}}", ["a b", "=", "A=B", "A\u0000", "0"]),
    ("credentials", "credentials: {@: {env: A}}", ["A", "_", "a9", "9a", "A-B", "", "A" * 128, "A" * 129, "\u00c4"]),
    ("routes", "routes: [{name: a, model: a, protocols: [model_discovery], api_key_env: A, endpoint: @}]",
     ["http://a", "HTTPS://a/", " http://a ", "http://a:80", "http://a:0", "http://a:65536", "http://a:", "http://a:+80", "http://", "http:///a", "a", "ftp://a", "http://a/b/../c", "http://a/.",
      "http://a/..b", "http://a//b", "http://a?b", "http://a/?b", "http://a/#b", "http://a/%2e", "http://u:p@a", "http://a/@b", "http://[::1]:1", "http://::1", "http://10.0.0.1/b", "http://10.1",
      "http://0x1", "http://*.a", "http://a b", "http://a_b.test.", "mock://", "MOCK://a b", "mock:a", "http://\u00fc"]),
    ("routes", "routes: [{name: a, model: a, protocols: @, api_key_env: A, endpoint: http://a}]",
     [[""], ["", "model_discovery"], [" Model_Discovery "], ["model_discovery", "model_discovery"], ["discovery"], [" "]]),
    ("routes", "routes: [{name: @, model: a, protocols: [model_discovery], api_key_env: A, endpoint: http://a}]", ["a b", " ", "a\tb", "\u0085", "sandbox-system"]),
]

# What the reader refuses and no schema can: a pattern of the change and the reader's message, the reason, and a document of that kind.
EXCEPTIONS = [
    (r"is not read-only: ", "Two lists contradict each other: `read_only` and `read_write` have the same path.",
     "policy", "landlock: {compatibility: hard_requirement}\nfilesystem_policy: {read_only: [/srv], read_write: [/srv]}"),
    (r" is hidden, and .* is granted", "Two lists contradict each other: a path is granted inside a path that is hidden.",
     "policy", "filesystem_policy: {read_only: [/srv/a], hidden: [/srv]}"),
    (r"^example .*`tls: skip` hides the requests", "Two endpoints contradict each other: the same host and port with `tls: skip` and with rules.",
     "policy", "network_policies: {a: {endpoints: [{host: a.test, port: 1, tls: skip}, {host: a.test, ports: [1], protocol: rest, access: full}]}}"),
    (r"a pattern of tools needs names|a rule for every `tools/call` stands beside", "Several rules, or a rule and a setting, contradict each other.",
     "policy", "network_policies: {a: {endpoints: [{host: a.test, port: 1, protocol: mcp, rules: [{allow: {method: tools/call, tool: a}}, {allow: {method: tools/call}}]}]}}"),
    (r"has more than 15 digits|expected `\[LOW, HIGH\]`", "The order and the precision of numbers are arithmetic.",
     "policy", "network_policies: {a: {endpoints: [{host: a.test, port: 1, protocol: mcp, rules: [{allow: {method: tools/call, tool: a, arguments: {a: {range: [2, 1]}}}}]}]}}"),
    (r"overlaps addresses that are never reachable", "Whether ranges overlap is arithmetic.",
     "policy", "network_policies: {a: {endpoints: [{host: a.test, port: 1, allowed_ips: [127.0.0.1]}]}}"),
    (r"glob `.*`: ", "Whether the brackets and braces of a glob match takes a parser.",
     "policy", "network_policies: {a: {binaries: [{path: '/usr/bin/*{a'}]}}"),
    (r"cannot be converted to a DNS name", "Which characters a name in another script can have is in the tables of UTS 46.",
     "policy", "network_policies: {a: {endpoints: [{host: \"a\\u200db.test\", port: 1}]}}"),
    (r"^example .*is longer than 253 characters", "A pattern limits each label, not the sum and the wildcard at once.",
     "policy", "network_policies: {a: {endpoints: [{host: %s, port: 1}]}}" % ".".join(["a" * 60] * 5)),
    (r"is a variable that the sandbox sets or removes itself", "The list of these variables is the program's, and grows with it.",
     "credentials", "credentials: {HTTPS_PROXY: {env: A}}"),
    (r"Sandbox (user|group) not found", "Which users and groups there are is a question of the host.",
     "policy", "{process: {run_as_user: no-such-user}, filesystem_policy: {read_only: [~/a]}}"),
    (r"the text has \d+ bytes; at most 65536 are allowed", "A schema counts characters, not bytes.",
     "policy", "network_policies: {a: {name: %s}}" % ("a" * 65537)),
    (r"^example .*a port is a whole number", "A schema takes 443.0 for the whole number 443.",
     "policy", "network_policies: {a: {endpoints: [{host: a.test, port: 443.0}]}}"),
    (r"^example .*number below 4294967295", "A number in quotes is a text, whose pattern only counts its digits.",
     "policy", "process: {run_as_user: '4294967295'}"),
]

# What a schema refuses although the reader accepts it: the same, with the change in place of the message.
STRICTER = [
    (r"\.harness: true becomes ", "The reader ignores the value of this obsolete key.",
     "policy", "network_policies: {a: {binaries: [{path: /a, harness: 1}]}}"),
    (r'with "\*\.a[:$]b', "The reader takes any character behind a wildcard; with these, no host matches.",
     "policy", "network_policies: {a: {endpoints: [{host: '*.a:b.one.test', port: 1}]}}"),
]

TYPES = ["text", 7, 1.5, True, None, [], {}]
UNKNOWN = "unknown_key"


class Loader(yaml.SafeLoader):
    """Reads booleans as YAML 1.2 does, and so the program."""


Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"] for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()}
Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))

faults = []
counts = collections.Counter()


def fault(text):
    faults.append(text)
    print(text)


def shown(value):
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 100 else text[:97] + "..."


# Documents as trees: a path is a tuple of keys and indices.


def nodes(value, path=()):
    yield path, value
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else []
    for key, child in children:
        yield from nodes(child, path + (key,))


def at(document, path):
    for key in path:
        document = document[key]
    return document


def changed(document, path, edit):
    """Returns a copy in which `edit` got the parent of `path` and its last key."""
    document = {"root": copy.deepcopy(document)}
    path = ("root",) + path
    edit(at(document, path[:-1]), path[-1])
    return document["root"]


def replaced(document, path, value):
    return changed(document, path, lambda parent, key: parent.__setitem__(key, value))


# Schemas as trees.


class Schema:
    def __init__(self, path):
        self.document = json.loads(path.read_text())
        jsonschema.Draft7Validator.check_schema(self.document)
        self.validator = jsonschema.Draft7Validator(self.document)
        self.bounds = sorted({bound for _, node in nodes(self.document) if isinstance(node, dict)
                              for key, by in (("minimum", -1), ("maximum", 1)) if isinstance(node.get(key), int) for bound in (node[key], node[key] + by)})
        self.keys = {}
        self.collect(self.document, "")

    def refuses(self, value):
        error = jsonschema.exceptions.best_match(self.validator.iter_errors(value))
        return error and f"{'.'.join(map(str, error.absolute_path))}: {error.message[:200]}"

    def resolved(self, node, pointer):
        while "$ref" in node:
            pointer = node["$ref"]
            node = at(self.document, tuple(pointer.removeprefix("#/").split("/")))
        return node, pointer

    def parts(self, node, pointer):
        """Returns the schemas that describe the same value: this one and its alternatives, without conditions."""
        node, pointer = self.resolved(node, pointer)
        found = [(node, pointer)]
        for word in ("anyOf", "oneOf", "allOf"):
            for index, part in enumerate(node.get(word, [])):
                if "$ref" in part or "type" in part or "pattern" in part:
                    found += self.parts(part, f"{pointer}/{word}/{index}")
        return found

    def collect(self, node, pointer, seen=None):
        """Notes each key with the place of its object."""
        seen = set() if seen is None else seen
        for node, pointer in self.parts(node, pointer):
            if pointer in seen:
                continue
            seen.add(pointer)
            for key, child in node.get("properties", {}).items():
                self.keys[pointer, key] = child
                if not any("description" in part for part, _ in self.parts(child, "")):
                    fault(f"schema: {pointer}.{key} has no description")
                self.collect(child, f"{pointer}/properties/{key}", seen)
            if node.get("type") == "object" and "additionalProperties" not in node:
                fault(f"schema: {pointer} does not say which other keys are allowed")
            for word in ("items", "additionalProperties"):
                if isinstance(node.get(word), dict):
                    self.collect(node[word], f"{pointer}/{word}", seen)

    def places(self, value, node=None, pointer="", path=()):
        """Yields the path of each value of a document, with a schema of it and the place of that."""
        for part, place in self.parts(self.document if node is None else node, pointer):
            kind = {"object": dict, "array": list, "string": str}.get(part.get("type"))
            if kind and not isinstance(value, kind):
                continue
            yield path, part, place
            if isinstance(value, dict):
                for key, child in value.items():
                    if key in part.get("properties", {}):
                        yield from self.places(child, part["properties"][key], f"{place}/properties/{key}", path + (key,))
                    elif isinstance(part.get("additionalProperties"), dict):
                        yield from self.places(child, part["additionalProperties"], f"{place}/additionalProperties", path + (key,))
            if isinstance(value, list) and isinstance(part.get("items"), dict):
                for index, child in enumerate(value):
                    yield from self.places(child, part["items"], f"{place}/items", path + (index,))


# The program's answers.


class Reader:
    def __init__(self, program, folder):
        self.program = program
        self.folder = folder
        os.umask(0o077)
        (folder / "empty.yaml").write_text("version: 1\n")

    def run(self, *words):
        finished = subprocess.run([self.program, "check", *words], cwd=self.folder, capture_output=True, text=True, errors="replace", timeout=120)
        blocks = []
        for line in finished.stderr.splitlines():
            if line.startswith("openshell-sandbox: "):
                blocks.append([line])
            elif blocks:
                blocks[-1].append(line)
        return finished.stdout.splitlines(), blocks

    def answers(self, kind, texts):
        """Returns for each document None if the program accepts it, else the violations."""
        names = [f"{kind}-{index}.yaml" for index in range(len(texts))]
        for name, text in zip(names, texts):
            (self.folder / name).write_text(text)
        printed, blocks = [], []
        if kind == "policy":
            calls = [names[start:start + 300] for start in range(0, len(names), 300)]
        else:
            flag = {"credentials": "--credentials", "routes": "--inference-routes"}[kind]
            calls = [[flag, name, "empty.yaml"] for name in names]
        for call in calls:
            lines, found = self.run(*call)
            printed += lines
            blocks += found
        accepted = {line.split(":")[0] for line in printed if re.match(r"\S+: \d+ (network polic|credential|route)", line)}
        refused = {}
        for block in blocks:
            name = next(iter(re.findall(rf"\b{kind}-\d+\.yaml", block[0])), None)
            refused[name] = [line.strip() for line in block[1:]] or block
        for name in names:
            if (name in accepted) == (name in refused):
                fault(f"check says nothing clear about {name}: {refused.get(name)}")
            (self.folder / name).unlink()
        return [refused.get(name) for name in names]


# The comparison.


class Comparison:
    def __init__(self, schemas, reader):
        self.schemas = schemas
        self.reader = reader
        self.known = set()

    def compare(self, kind, changes):
        """Compares both sides for (what was changed, document); returns the reader's answers."""
        new = []
        for what, document in changes:
            text = json.dumps(document, ensure_ascii=True)
            if (kind, text) not in self.known:
                self.known.add((kind, text))
                new.append((what, document, text))
        answers = self.reader.answers(kind, [text for _, _, text in new])
        counts[f"{kind} documents compared"] += len(new)
        for (what, document, _), violations in zip(new, answers):
            counts["refused" if violations else "accepted"] += 1
            schema = self.schemas[kind].refuses(document)
            if schema and not violations:
                if any(re.search(pattern, what) for pattern, *_ in STRICTER):
                    counts["refused by the schema only"] += 1
                else:
                    fault(f"{kind}: {what}: check accepts it, the schema refuses it: {schema}")
            if violations and not schema:
                strange = [line for line in violations if not any(re.search(pattern, f"{what} {line}") for pattern, *_ in EXCEPTIONS)]
                if strange:
                    fault(f"{kind}: {what}: the schema accepts it, check refuses it: {' | '.join(strange)}")
                else:
                    counts["refused by the reader only"] += 1
        return [(what, document, violations) for (what, document, _), violations in zip(new, answers)]


def repository(root, comparison):
    """Checks the documents of the repository."""
    found = collections.Counter()
    files = [file for folder in ("examples", "presets", "images", "kubernetes", "registries") for file in sorted((root / "data" / folder).rglob("*.yaml"))]
    for file in [*files, root / "data/credentials.yaml"]:
        text = file.read_text()
        place = file.relative_to(root)
        folder = place.parts[1]
        # In the recipes of registries, this stands for the registry's host and port.
        text = text.replace("$REGISTRY", 'host: "registry.test", port: 443')
        documents = list(yaml.load_all(text, Loader))
        if any(isinstance(document, dict) and "kind" in document for document in documents):
            continue  # Kubernetes' own.
        kind = "credentials" if "credentials" in documents[0] else "routes" if "routes" in documents[0] else "policy"
        found[folder, kind] += 1
        [violations] = comparison.reader.answers(kind, [text])
        for side, refusal in (("the schema", comparison.schemas[kind].refuses(documents[0])), ("check", violations)):
            if refusal:
                fault(f"{place}: {side} refuses it: {refusal}")
        if folder in ("examples", "presets"):
            comments = [line for line in text.splitlines() if line.startswith("#")]
            named = [line.partition("$schema=")[2] for line in comments if line.startswith("# yaml-language-server: $schema=")]
            if [(file.parent / name).resolve() for name in named] != [(root / f"data/schema/{kind}.schema.json").resolve()]:
                fault(f"{place}: no line `# yaml-language-server: $schema=../schema/{kind}.schema.json`")
    for least in [("examples", "policy"), ("presets", "policy"), ("images", "policy"), ("kubernetes", "policy"), ("kubernetes", "credentials")]:
        if not found[least]:
            fault(f"no {least[1]} in data/{least[0]}: has it moved?")
    counts["documents of the repository"] = sum(found.values())


def changes(schema, document):
    """Yields every change of one thing."""
    places = list(schema.places(document))
    words = collections.defaultdict(list)
    alike = collections.defaultdict(dict)
    for path, part, place in places:
        words[path] += part.get("enum", [])
        if isinstance(at(document, path), dict):
            for key, value in at(document, path).items():
                alike[place].setdefault(key, value)
    for path, value in nodes(document):
        here = ".".join(map(str, path)) or "the document"
        others = TYPES + [word for word in words[path]]
        if isinstance(value, str):
            others += ["", value.upper(), value + " x", "/" + value]
        if type(value) is int:
            others += [bound for bound in schema.bounds]
        if path:
            others += [[value], {path[-1]: value} if isinstance(path[-1], str) else {"item": value}]
        for other in others:
            if type(other) is not type(value) or other != value:
                yield f"{here}: {shown(value)} becomes {shown(other)}", replaced(document, path, copy.deepcopy(other))
        if isinstance(value, dict):
            yield f"{here}: {UNKNOWN} is added", changed(document, path, lambda parent, key: parent[key].__setitem__(UNKNOWN, 1))
        if path and isinstance(path[-1], str):
            key = path[-1]
            yield f"{here} is removed", changed(document, path, lambda parent, key: parent.__delitem__(key))
            yield f"{here} is renamed", changed(document, path, lambda parent, key: parent.__setitem__(key + "_", parent.pop(key)))
            if isinstance(value, (dict, list)):
                ups = [path[:end] for end in range(len(path) - 2, -1, -1) if isinstance(at(document, path[:end]), dict)]
                if ups and key not in at(document, ups[0]):
                    moved = changed(document, path, lambda parent, key: parent.__delitem__(key))
                    at(moved, ups[0])[key] = copy.deepcopy(value)
                    yield f"{here} moves up", moved
                below = [name for name, other in at(document, path[:-1]).items() if name != key and isinstance(other, dict)]
                if below:
                    moved = changed(document, path, lambda parent, key: parent.__delitem__(key))
                    at(moved, path[:-1] + (below[0],))[key] = copy.deepcopy(value)
                    yield f"{here} moves down into {below[0]}", moved
        if isinstance(value, list) and value:
            yield f"{here}: the first item stands for the list", replaced(document, path, copy.deepcopy(value[0]))
    # Keys that other objects of the same kind have.
    for path, part, place in places:
        value = at(document, path)
        if isinstance(value, dict) and "properties" in part:
            for key in alike[place]:
                if key not in value:
                    more = copy.deepcopy(alike[place][key])
                    yield (f"{'.'.join(map(str, path))}: {key} is added: {shown(more)}",
                           changed(document, path, lambda parent, name: parent[name].__setitem__(key, more)))


def main():
    root, program, scratch = (pathlib.Path(word).resolve() for word in sys.argv[1:4])
    schemas = {kind: Schema(root / f"data/schema/{kind}.schema.json") for kind in KINDS}
    comparison = Comparison(schemas, Reader(program, scratch))
    repository(root, comparison)
    bases = [(kind, yaml.load(text, Loader)) for kind, text in DOCUMENTS]
    used = set()
    for kind, document in bases:
        for _, _, violations in comparison.compare(kind, [("a complete document", document)]):
            if violations:
                fault(f"{kind}: check refuses a complete document: {violations}")
        used |= {(kind, place, key) for path, part, place in schemas[kind].places(document) for key in part.get("properties", {})
                 if isinstance(at(document, path), dict) and key in at(document, path)}
    for kind, schema in schemas.items():
        counts["keys of the schemas"] += len(schema.keys)
        for place, key in schema.keys:
            if (kind, place, key) not in used:
                fault(f"{kind}: no document here uses {place or '#'}.{key}")
    for kind, document in bases:
        answers = comparison.compare(kind, changes(schemas[kind], document))
        further = []
        for what, other, violations in answers:
            for line in violations or []:
                # The reader names the keys that it knows, and the words.
                keys = re.search(rf"unknown key `{UNKNOWN}`.* known here: ([a-z0-9_, ]*[a-z0-9_])", line)
                if keys:
                    path = next(path for path, value in nodes(other) if isinstance(value, dict) and UNKNOWN in value)
                    # Rules of different protocols are alternatives, each with keys of its own.
                    parts = [set(part.get("properties", {})) for here, part, _ in schemas[kind].places(document) if here == path]
                    own = set().union(*parts)
                    if set(keys[1].split(", ")) not in [own, *parts]:
                        fault(f"{kind}: {what}: the reader knows {keys[1]}, the schema {', '.join(sorted(own))}")
                    counts["objects whose keys are the same"] += 1
                known = re.search(r"`text` is not one of ([^(]*)", line)
                if known:
                    path = next((path for path, value in nodes(other) if value == "text"))
                    for word in known[1].strip().split(", "):
                        if " " not in word:
                            further.append((f"{'.'.join(map(str, path))} becomes {word}", replaced(document, path, word)))
        comparison.compare(kind, further)
    for kind, text, texts in PROBES:
        comparison.compare(kind, [(f"{text} with {shown(value)}", yaml.load(text.replace("@", json.dumps(value)), Loader)) for value in texts])
    for table, is_refused in ((EXCEPTIONS, True), (STRICTER, False)):
        for pattern, reason, kind, text in table:
            document = yaml.load(text, Loader)
            [violations] = comparison.reader.answers(kind, [text])
            found = [line for line in violations or [] if re.search(pattern, f"example {line}")]
            if is_refused and (not found or schemas[kind].refuses(document)):
                fault(f"the exception {pattern!r} is none any more: check says {violations}, the schema {schemas[kind].refuses(document)}")
            if not is_refused and (violations or not schemas[kind].refuses(document)):
                fault(f"the exception {pattern!r} is none any more")
    if sys.argv[4:] == ["-v"]:
        for name, count in counts.items():
            print(f"{count} {name}")
    sys.exit(1 if faults else 0)


main()
