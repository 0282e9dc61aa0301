use std::net::IpAddr;

use openshell_events::reason::ReasonCode;
use openshell_policy::network::host::Host;

use super::guard::{Destination, check};
use crate::decide::connection::judge;
use crate::decide::snapshot::Snapshot;
use crate::denial::refusal::{Refusal, Subject};
use crate::ground::peer::{Caller, Program};
use crate::ground::target::Target;

/// Returns the guard's answer for `host:port`, permitted by `endpoint`, with these `addresses`.
fn guard(
    endpoint: &str,
    host: &str,
    port: u16,
    addresses: &[&str],
) -> Result<Destination, Refusal> {
    let policy =
        format!("network_policies: {{web: {{endpoints: [{endpoint}], binaries: [{{path: /x}}]}}}}");
    let (policy, _) = openshell_policy::yaml::policy(&policy).unwrap();
    let snapshot = Snapshot::new(1, policy, None, &|_| None).unwrap();
    let program = Program {
        executable: "/x".into(),
        ancestors: Vec::new(),
        cmdline_paths: Vec::new(),
        is_modified: false,
    };
    let caller = Caller {
        pid: 1,
        program: program.into(),
    };
    let target = Target {
        host: Host::parse(host).unwrap(),
        port,
    };
    let permit = judge(&snapshot, &caller, &target, || Ok(())).unwrap();
    check(
        &permit,
        addresses
            .iter()
            .map(|text| text.parse::<IpAddr>().unwrap())
            .collect(),
    )
}

#[track_caller]
fn refused(endpoint: &str, host: &str, addresses: &[&str], code: ReasonCode, tail: &str) {
    let refusal = guard(endpoint, host, 8080, addresses).unwrap_err();
    assert_eq!(refusal.code(), code, "{endpoint} {addresses:?}");
    let target = Target {
        host: Host::parse(host).unwrap(),
        port: 8080,
    };
    let subject = Subject {
        request: format!("CONNECT {target}"),
        target: Some(target.clone()),
        caller: None,
        is_inside: false,
    };
    let detail = refusal.detail(&subject);
    assert!(detail.ends_with(tail), "{detail}");
    let told = format!("{detail}{:?}", refusal.fix(&target, None));
    assert!(
        addresses
            .iter()
            .all(|address| host == *address || !told.contains(address)),
        "{told}"
    );
}

// Conformance: IPS-01, IPS-14.
#[test]
fn names_with_internal_or_no_addresses_are_refused() {
    let web = "{host: web.test, port: 8080}";
    refused(
        web,
        "web.test",
        &["10.99.0.1"],
        ReasonCode::InternalAddress,
        "blocked: internal address",
    );
    refused(
        web,
        "web.test",
        &["8.8.8.8", "10.99.0.1"],
        ReasonCode::InternalAddress,
        "blocked: internal address",
    );
    refused(
        web,
        "web.test",
        &[],
        ReasonCode::DnsFailed,
        "blocked: DNS resolution failed",
    );
    assert!(guard(web, "web.test", 8080, &["8.8.8.8", "2606:4700::1111"]).is_ok());
}

// Conformance: IPS-02, IPS-03, IPS-04.
#[test]
fn allowed_ips_are_the_only_ones() {
    assert!(
        guard(
            "{host: web.test, port: 8080, allowed_ips: [10.99.0.1]}",
            "web.test",
            8080,
            &["10.99.0.1"]
        )
        .is_ok()
    );
    let net = "{host: web.test, port: 8080, allowed_ips: [10.99.0.0/24]}";
    assert!(guard(net, "web.test", 8080, &["10.99.0.1", "::ffff:10.99.0.2"]).is_ok());
    let code = ReasonCode::AddressNotInAllowedIps;
    refused(
        net,
        "web.test",
        &["10.50.0.1"],
        code,
        "blocked: allowed_ips check failed",
    );
    refused(
        net,
        "web.test",
        &["8.8.8.8"],
        code,
        "blocked: allowed_ips check failed",
    );
}

#[test]
fn endpoints_unite_their_addresses() {
    let both =
        "{host: web.test, port: 8080}, {host: web.test, port: 8080, allowed_ips: [10.99.0.1]}";
    assert!(guard(both, "web.test", 8080, &["8.8.8.8", "10.99.0.1"]).is_ok());
    refused(
        both,
        "web.test",
        &["10.99.0.2"],
        ReasonCode::AddressNotInAllowedIps,
        "allowed_ips check failed",
    );
}

// Conformance: IPS-08, IPS-09, IPS-10.
#[test]
fn an_address_in_the_policy_is_its_own_list_unless_it_is_never_reachable() {
    assert!(
        guard(
            "{host: 10.99.0.1, port: 8080}",
            "10.99.0.1",
            8080,
            &["10.99.0.1"]
        )
        .is_ok()
    );
    for blocked in [
        "127.0.0.1",
        "169.254.169.254",
        "::1",
        "0.0.0.0",
        "::ffff:127.0.0.1",
    ] {
        let endpoint = format!("{{host: \"{blocked}\", port: 8080}}");
        refused(
            &endpoint,
            blocked,
            &[blocked],
            ReasonCode::AlwaysBlockedAddress,
            "blocked: internal address",
        );
    }
}

#[test]
fn a_list_beside_an_address_is_the_list() {
    let endpoint = "{host: 10.99.0.1, port: 8080, allowed_ips: [10.99.1.0/24]}";
    let code = ReasonCode::AddressNotInAllowedIps;
    refused(
        endpoint,
        "10.99.0.1",
        &["10.99.0.1"],
        code,
        "blocked: allowed_ips check failed",
    );
}

// Conformance: IPS-18.
#[test]
fn no_list_reaches_what_is_never_reachable() {
    let endpoint = "{host: web.test, port: 8080, allowed_ips: [10.0.0.0/8]}";
    let code = ReasonCode::AlwaysBlockedAddress;
    refused(
        endpoint,
        "web.test",
        &["10.0.0.1", "127.0.0.1"],
        code,
        "blocked: allowed_ips check failed",
    );
}

#[test]
fn control_plane_ports_are_nobodys() {
    for port in [2379, 2380, 6443, 10250, 10255] {
        let endpoint = format!("{{host: web.test, port: {port}, allowed_ips: [10.0.0.1]}}");
        let refusal = guard(&endpoint, "web.test", port, &["10.0.0.1"]).unwrap_err();
        assert_eq!(refusal.code(), ReasonCode::ControlPlanePort);
    }
}
