# What the proxy asks of the rules. In a package of its own a rule that custom rules lack is undefined instead of an error.
package openshell.query

import rego.v1

# --- decisions: one evaluation answers all parts, each under the name of its rule -------------------------------------

connection contains ["is_permitted", true] if data.openshell.sandbox.network_action == "allow"

connection contains ["matched_network_policy", name] if {
	data.openshell.sandbox.network_action == "allow"
	name := data.openshell.sandbox.matched_network_policy
}

connection contains ["nearest_policy", policy] if {
	not data.openshell.sandbox.network_action == "allow"
	policy := data.openshell.sandbox.nearest_policy
}

request contains ["is_permitted", true] if data.openshell.sandbox.allow_request == true

request contains ["allowing_policy", name] if {
	data.openshell.sandbox.allow_request == true
	name := data.openshell.sandbox.allowing_policy
}

request contains ["denying_policy", name] if {
	not data.openshell.sandbox.allow_request == true
	name := data.openshell.sandbox.denying_policy
}

request contains ["request_deny_reason", reason] if {
	not data.openshell.sandbox.allow_request == true
	reason := data.openshell.sandbox.request_deny_reason
}

message contains ["is_permitted", true] if data.openshell.sandbox.allow_message == true

message contains ["message_allowing_policy", name] if {
	data.openshell.sandbox.allow_message == true
	name := data.openshell.sandbox.message_allowing_policy
}

message contains ["message_denying_policy", name] if {
	not data.openshell.sandbox.allow_message == true
	name := data.openshell.sandbox.message_denying_policy
}

message contains ["message_deny_reason", reason] if {
	not data.openshell.sandbox.allow_message == true
	reason := data.openshell.sandbox.message_deny_reason
}

# --- what is asked alone ----------------------------------------------------------------------------------------------

matched_endpoints := data.openshell.sandbox.matched_endpoints

matched_endpoint_configs := data.openshell.sandbox.matched_endpoint_configs

matched_endpoint_config := data.openshell.sandbox.matched_endpoint_config

deny_reason := data.openshell.sandbox.deny_reason

filesystem_policy := data.openshell.sandbox.filesystem_policy

landlock_policy := data.openshell.sandbox.landlock_policy

process_policy := data.openshell.sandbox.process_policy
