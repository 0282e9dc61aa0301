# The built-in rules: connections and requests that a policy document permits.
#
# The document is `data`, described in `docs/policy/reference.md`, with ports in `ports` and presets expanded into `rules`.
# The query is `input`: `exec` (the executables of the caller and of its ancestors, and the absolute paths among their
# arguments), `network` (host in lower case, port) and, for a request inside a connection, `request` (method,
# canonical path, other readings of it, query parameters). For a message of JSON-RPC or MCP in that request there is
# `message` too (protocol, type, method, tool, arguments, URIs, name, the conditions of rules that hold).
package openshell.sandbox

import rego.v1

# --- start-up: passed through unchanged -------------------------------------------------------------------------------

filesystem_policy := data.filesystem_policy

landlock_policy := data.landlock

process_policy := data.process

# --- connections ------------------------------------------------------------------------------------------------------

default allow_network := false

allow_network if count(matching_policies) > 0

default network_action := "deny"

network_action := "allow" if allow_network

# The name in logs: the smallest key.
matched_network_policy := min(matching_policies)

# All endpoints that match the connection; their settings are combined.
matched_endpoint_configs contains endpoint if {
	some name in matching_policies
	some endpoint in data.network_policies[name].endpoints
	endpoint_matches(endpoint)
}

# The same endpoints by policy and index, for a reader that has the document.
matched_endpoints contains [name, index] if {
	some name in matching_policies
	some index, endpoint in data.network_policies[name].endpoints
	endpoint_matches(endpoint)
}

# A policy permits a connection if one of its endpoints and one of its binaries match.
matching_policies contains name if {
	some name in policies_by_endpoint
	name in policies_by_binary
}

policies_by_endpoint contains name if {
	some name, policy in data.network_policies
	some endpoint in policy.endpoints
	endpoint_matches(endpoint)
}

policies_by_host contains name if {
	some name, policy in data.network_policies
	some endpoint in policy.endpoints
	host_matches(endpoint)
}

policies_by_binary contains name if {
	some name, policy in data.network_policies
	some binary in policy.binaries
	binary_matches(binary)
}

binary_matches(binary) if {
	not binary.exact
	some executable in executables
	path_matches(binary.path, executable)
}

# The calling program itself, with no code but its own and the system's.
binary_matches(binary) if {
	binary.exact
	not input.exec.is_modified
	path_matches(binary.path, input.exec.path)
}

# The caller and its ancestors. Arguments never grant anything.
executables contains input.exec.path

executables contains path if some path in input.exec.ancestors

endpoint_matches(endpoint) if {
	input.network.port in endpoint.ports
	host_matches(endpoint)
}

host_matches(endpoint) if name_matches(endpoint.host)

# Without a host the addresses decide. A name is looked up only if the endpoint lists it, as a lookup discloses it to its domain.
host_matches(endpoint) if {
	not endpoint.host
	count(endpoint.allowed_ips) > 0
	input.network.is_address
}

host_matches(endpoint) if {
	not endpoint.host
	count(endpoint.allowed_ips) > 0
	some pattern in endpoint.resolve
	name_matches(pattern)
}

name_matches(pattern) if {
	not contains(pattern, "*")
	lower(pattern) == input.network.host
}

# `*` is one label, `**` one or more.
name_matches(pattern) if {
	contains(pattern, "*")
	labels := [label_glob(label) | some label in split(lower(pattern), ".")]
	glob.match(concat(".", labels), ["."], input.network.host)
}

# Inside a label `*` is one or more characters; in a glob it is also none.
label_glob(label) := label if label in {"*", "**"}

label_glob(label) := replace(label, "*", "?*") if not label in {"*", "**"}

path_matches(pattern, path) if {
	not contains(pattern, "*")
	pattern == path
}

path_matches(pattern, path) if {
	contains(pattern, "*")
	glob.match(pattern, ["/"], path)
}

# --- reasons of refused connections -----------------------------------------------------------------------------------

deny_reason := "missing input.network" if not input.network

deny_reason := "missing input.exec" if {
	input.network
	not input.exec
}

deny_reason := "network connections not allowed by policy" if {
	input.network
	input.exec
	count(data.network_policies) == 0
}

deny_reason := concat("; ", array.concat(missed_endpoints, missed_binaries)) if {
	input.network
	input.exec
	count(data.network_policies) > 0
	not allow_network
}

missed_endpoints := [reason |
	some name, _ in data.network_policies
	not name in policies_by_endpoint
	reason := sprintf("endpoint %s:%d not in policy '%s'", [input.network.host, input.network.port, name])
]

missed_binaries := [reason |
	some name in policies_by_endpoint
	not name in policies_by_binary
	reason := sprintf(
		"binary '%s' not allowed in policy '%s' (ancestors: [%s], cmdline: [%s]). %s",
		[
			input.exec.path, name,
			concat(" -> ", input.exec.ancestors),
			concat(", ", input.exec.cmdline_paths),
			"SYMLINK HINT: a policy names the file that runs, not a link to it; `readlink -f` shows it.",
		],
	)
]

# The policy nearest to permitting the connection, and its part that matches.
nearest_policy := {"name": min(policies_by_endpoint), "matches": "endpoint"} if {
	count(policies_by_endpoint) > 0
} else := {"name": min(policies_by_binary & policies_by_host), "matches": "host_and_binary"} if {
	count(policies_by_binary & policies_by_host) > 0
} else := {"name": min(policies_by_binary), "matches": "binary"} if {
	count(policies_by_binary) > 0
} else := {"name": min(policies_by_host), "matches": "host"} if {
	count(policies_by_host) > 0
}

# --- requests inside a connection -------------------------------------------------------------------------------------

default allow_request := false

# A request is permitted if the most specific matching endpoint allows it and none denies it.
allow_request if {
	count(request_allowed_by) > 0
	count(request_denied_by) == 0
}

request_allowed_by contains name if {
	some [name, index] in request_endpoints
	endpoint := data.network_policies[name].endpoints[index]
	endpoint.protocol == "rest"
	path_rank(endpoint) == highest_rank
	some rule in endpoint.rules
	request_matches(rule.allow)
}

request_denied_by contains name if {
	some [name, index] in matched_endpoints
	endpoint := data.network_policies[name].endpoints[index]
	endpoint.protocol == "rest"
	endpoint_may_count(endpoint)
	some rule in endpoint.deny_rules
	request_hits(rule)
}

# The endpoints that count for the path of the request. The most specific of them allow.
request_endpoints contains [name, index] if {
	some [name, index] in matched_endpoints
	endpoint_counts(data.network_policies[name].endpoints[index])
}

endpoint_counts(endpoint) if {
	endpoint.protocol in judged_protocols
	not endpoint.path
}

endpoint_counts(endpoint) if {
	endpoint.protocol in judged_protocols
	request_path_matches(endpoint.path)
}

judged_protocols := {"rest", "json-rpc", "mcp"}

# What denies counts for other readings of the path too.
endpoint_may_count(endpoint) if endpoint_counts(endpoint)

endpoint_may_count(endpoint) if {
	endpoint.protocol in judged_protocols
	some_reading_matches({"path": endpoint.path, "case_sensitive": false})
}

highest_rank := max([path_rank(data.network_policies[name].endpoints[index]) |
	some [name, index] in request_endpoints
])

# No path, a glob by the length of what is literal before it, a path without a wildcard.
path_rank(endpoint) := 0 if not endpoint.path

path_rank(endpoint) := 1 + count(literal) if {
	literal := regex.split(`[*?\[{\\]`, endpoint.path)[0]
	literal != endpoint.path
}

path_rank(endpoint) := 100000 if {
	endpoint.path
	not regex.match(`[*?\[{\\]`, endpoint.path)
}

# The names in logs and responses: the smallest keys.
allowing_policy := min(request_allowed_by)

denying_policy := min(request_denied_by)

request_deny_reason := sprintf("%s %s not permitted by policy", [input.request.method, input.request.path]) if {
	input.request
	not allow_request
}

request_matches(rule) if {
	method_matches(rule.method, input.request.method)
	request_path_matches(rule.path)
	count(unmatched(object.get(rule, "query", {}))) == 0
}

# The keys without a value in the request, or with one that does not match.
unmatched(query) := [key |
	some key, matcher in query
	not all_values_match(matcher, object.get(input.request.query_params, key, []))
]

all_values_match(matcher, values) if {
	count(values) > 0
	count([value | some value in values; not value_matches(matcher, value)]) == 0
}

# A deny rule matches if one value of a repeated key does.
request_hits(rule) if {
	method_matches(rule.method, input.request.method)
	some_reading_matches(rule)
	count(untouched(object.get(rule, "query", {}))) == 0
}

# The keys without a matching value in the request.
untouched(query) := [key |
	some key, matcher in query
	not some_value_matches(matcher, object.get(input.request.query_params, key, []))
]

some_value_matches(matcher, values) if {
	some value in values
	value_matches(matcher, value)
}

method_matches(wanted, _) if wanted == "*"

method_matches(wanted, method) if upper(wanted) == upper(method)

# A permitted GET permits the HEAD of the same path.
method_matches(wanted, method) if {
	upper(wanted) == "GET"
	upper(method) == "HEAD"
}

request_path_matches(pattern) if pattern == "**"

request_path_matches(pattern) if glob.match(pattern, ["/"], input.request.path)

# The canonical path, and other readings that servers may have.
readings contains input.request.path

readings contains path if some path in input.request.readings

some_reading_matches(rule) if rule.path == "**"

some_reading_matches(rule) if {
	not rule.case_sensitive
	some path in readings
	glob.match(lower(rule.path), ["/"], lower(path))
}

# The same with letters that have several forms in one.
some_reading_matches(rule) if {
	not rule.case_sensitive
	some path in input.request.caseless_readings
	glob.match(lower(rule.path), ["/"], path)
}

some_reading_matches(rule) if {
	rule.case_sensitive
	some path in readings
	glob.match(rule.path, ["/"], path)
}

value_matches(matcher, value) if {
	some pattern in matcher.any
	glob.match(pattern, [], value)
}

# --- messages of JSON-RPC and MCP in a request ------------------------------------------------------------------------

default allow_message := false

# A message is permitted if the most specific matching endpoint allows it, and none denies it or its request.
allow_message if {
	count(message_allowed_by) > 0
	count(message_denied_by | request_denied_by) == 0
}

message_allowed_by contains name if {
	some [name, index] in request_endpoints
	endpoint := data.network_policies[name].endpoints[index]
	endpoint.protocol == input.message.protocol
	path_rank(endpoint) == highest_rank
	message_permitted(endpoint)
}

message_denied_by contains name if {
	some [name, index] in matched_endpoints
	endpoint := data.network_policies[name].endpoints[index]
	endpoint.protocol == input.message.protocol
	endpoint_may_count(endpoint)
	some rule in endpoint.deny_rules
	message_hits(rule)
}

# The names in logs and responses: the smallest keys.
message_allowing_policy := min(message_allowed_by)

message_denying_policy := min(message_denied_by | request_denied_by)

message_permitted(endpoint) if {
	calls_method
	some rule in endpoint.rules
	message_matches(rule.allow)
}

# Without rules: every known method.
message_permitted(endpoint) if {
	calls_method
	not endpoint.rules
	endpoint.mcp.allow_all_known_mcp_methods
	input.message.method in known_methods
}

message_permitted(endpoint) if {
	calls_method
	endpoint.protocol == "mcp"
	input.message.method in methods_beside_initialize
	permits_initialize(endpoint)
}

# A browser asks before a POST; the stream of the server's messages holds what requests have asked for.
message_permitted(_) if input.message.type == "preflight"

message_permitted(endpoint) if {
	endpoint.protocol == "mcp"
	input.message.type in {"stream", "response"}
}

message_permitted(endpoint) if {
	endpoint.protocol == "mcp"
	input.message.type == "end"
	permits_initialize(endpoint)
}

calls_method if input.message.type in {"request", "notification"}

permits_initialize(endpoint) if {
	some rule in endpoint.rules
	method_is(rule.allow, "initialize")
}

permits_initialize(endpoint) if {
	not endpoint.rules
	endpoint.mcp.allow_all_known_mcp_methods
}

methods_beside_initialize := {"ping", "notifications/initialized", "notifications/cancelled", "notifications/progress"}

known_methods := {
	"initialize", "ping", "server/discover",
	"notifications/initialized", "notifications/cancelled", "notifications/progress", "notifications/roots/list_changed",
	"tools/list", "tools/call",
	"resources/list", "resources/templates/list", "resources/read", "resources/subscribe", "resources/unsubscribe",
	"prompts/list", "prompts/get",
	"completion/complete", "logging/setLevel", "subscriptions/listen",
	"tasks/list", "tasks/get", "tasks/result", "tasks/update", "tasks/cancel",
}

message_matches(rule) if {
	method_is(rule, input.message.method)
	tool_matches(rule)
	uris_match(rule)
	name_allowed(rule)
	conditions_hold(rule)
}

message_hits(rule) if {
	method_is(rule, input.message.method)
	tool_hits(rule)
	uri_hits(rule)
	name_hits(rule)
	conditions_hold(rule)
}

method_is(rule, method) if rule.method == method

method_is(rule, method) if {
	contains(rule.method, "*")
	glob.match(rule.method, null, method)
}

method_is(rule, method) if {
	not rule.method
	method in known_methods
}

# Where a rule allows, `*` in names stops at a dot; where it denies, it crosses everything.
tool_matches(rule) if not rule.tool

tool_matches(rule) if {
	some pattern in rule.tool.any
	glob.match(pattern, ["."], input.message.tool)
}

tool_hits(rule) if not rule.tool

tool_hits(rule) if {
	some pattern in rule.tool.any
	glob.match(pattern, null, input.message.tool)
}

name_allowed(rule) if not rule.name

name_allowed(rule) if glob.match(rule.name, ["."], input.message.name)

name_hits(rule) if not rule.name

name_hits(rule) if glob.match(rule.name, null, input.message.name)

uris_match(rule) if not rule.uri

uris_match(rule) if {
	input.message.uris_are_canonical
	count([uri | some uri in input.message.uris; not glob.match(rule.uri, ["/"], uri)]) == 0
}

# What has another form may be what the rule means.
uri_hits(rule) if not rule.uri

uri_hits(rule) if not input.message.uris_are_canonical

uri_hits(rule) if {
	some uri in input.message.uris
	glob.match(rule.uri, ["/"], uri)
}

uri_hits(rule) if {
	some uri in input.message.uris
	glob.match(rule.uri, ["/"], regex.split(`[?#]`, uri)[0])
}

# Conditions on arguments are decided before, because these rules would compare numbers as doubles.
conditions_hold(rule) if not rule.conditions

conditions_hold(rule) if rule.conditions in input.message.conditions

message_deny_reason := sprintf("%s is not permitted by policy%s", [message_words, with_arguments]) if {
	input.message
	not allow_message
}

message_words := sprintf("tool %s", [input.message.tool]) if {
	input.message.tool
} else := sprintf("resource %s", [concat(", ", input.message.uris)]) if {
	count(input.message.uris) > 0
} else := sprintf("prompt %s", [input.message.name]) if {
	input.message.name
} else := sprintf("method %s", [input.message.method]) if {
	input.message.method
} else := sprintf("%s of the protocol", [input.message.type])

default with_arguments := ""

with_arguments := " with these arguments" if {
	count(request_denied_by) == 0
	some [name, index] in request_endpoints
	endpoint := data.network_policies[name].endpoints[index]
	path_rank(endpoint) == highest_rank
	some rule in endpoint.rules
	rule.allow.conditions
	tool_matches(rule.allow)
}
