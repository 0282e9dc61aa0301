//! Reports of packets that the egress firewall rejected: attempts to bypass the proxy.

use std::net::SocketAddrV4;
use std::sync::Arc;

use openshell_events::denial::Denial;
use openshell_events::event::{Audit, BypassAttempt, Decided, Ends, Event, Finding};
use openshell_events::packet::{RefusedPacket, Transport};
use openshell_events::reason::ReasonCode;
use openshell_events::words::{Confidence, Decision, FindingActivity, Severity};
use openshell_policy::network::host::HostName;

use crate::decide::identify::Witness;
use crate::doors::dns::names::Names;
use crate::ground::peer::Caller;

/// Reports the packets that were refused.
#[derive(Debug)]
pub struct BypassReports {
    /// The address at which the supervisor tests the firewall; packets to it are the supervisor's
    /// own.
    pub probe: Option<SocketAddrV4>,
    /// Gives the name that an address belongs to.
    pub names: Arc<Names>,
    /// Identifies the program that sent a packet.
    pub witness: Arc<dyn Witness>,
    /// Takes the reports.
    pub audit: Arc<dyn Audit>,
}

const REASON: &str = "direct connection bypassed HTTP CONNECT proxy";

/// Returns what the author of the program that sent `packet`, or of the policy, can do; `is_named`
/// is true if the destination is the address of a name.
fn hint(packet: &RefusedPacket, is_named: bool) -> &'static str {
    match (packet.transport, packet.ports) {
        (Transport::Tcp, _) if is_named => "no endpoint of the policy names this port of the host",
        (Transport::Udp, Some([_, 53])) => {
            "DNS queries should route through the sandbox proxy; check resolver configuration"
        }
        (Transport::Tcp, _) => {
            "ensure process honors HTTP_PROXY/HTTPS_PROXY; Node.js does from 22.21 and 24 on \
                 (NODE_USE_ENV_PROXY is set)"
        }
        (Transport::Udp, _) => "UDP traffic must route through the sandbox proxy",
        (Transport::Other(_), _) => "only TCP through the sandbox proxy leaves the sandbox",
    }
}

impl BypassReports {
    /// Reports `packet`, unless it is a test of the firewall by the supervisor itself.
    pub fn report(&self, packet: &RefusedPacket) {
        let port = packet.ports.map(|[_, port]| port);
        let is_proof = |probe: SocketAddrV4| packet.to == *probe.ip() && port == Some(probe.port());
        if self.probe.is_some_and(is_proof) {
            return;
        }
        let name = self.names.name(packet.to);
        let sender = self.witness.sender(packet.mark);
        report(&*self.audit, packet, name.as_ref(), sender.as_ref());
    }
}

fn report(
    audit: &dyn Audit,
    packet: &RefusedPacket,
    name: Option<&HostName>,
    caller: Option<&Caller>,
) {
    let host = name.map_or_else(|| packet.to.to_string(), HostName::to_string);
    let protocol = packet.transport.to_string();
    let hint = hint(packet, name.is_some());
    let port = packet.ports.map(|[_, port]| port);
    let binary = caller.map(|caller| caller.program.executable.as_str());
    let pid = caller.map(|caller| caller.pid);
    let lineage = caller.map(Caller::lineage).unwrap_or_default();
    let code = ReasonCode::DirectConnection;
    audit.event(&Event::Bypass(BypassAttempt {
        ends: Ends {
            binary,
            pid,
            host: Some(&host),
            port,
        },
        lineage,
        decided: Decided {
            severity: code.report().severity,
            action: code.report().action,
            policy: Some("bypass-detect"),
            engine: Some(code.stage().engine()),
            decision: Decision::Deny,
            reason: REASON,
            code: Some(code),
            approval: None,
        },
        protocol: &protocol,
        denial: Some(&denial(packet, &host, hint, caller)),
    }));
    let binary = binary.unwrap_or("-");
    let number = port.unwrap_or(0);
    let pid = pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
    let ancestors = if lineage.ancestors.is_empty() {
        "-".to_owned()
    } else {
        lineage.ancestors.join(" -> ")
    };
    audit.event(&Event::Finding(Finding {
        activity: FindingActivity::Blocked,
        severity: Severity::Medium,
        title: "Proxy Bypass Detected",
        confidence: Confidence::High,
        message: &format!(
            "BYPASS_DETECT {host}:{number} proto={protocol} binary={binary} binary_pid={pid} \
             ancestors={ancestors} action=reject reason={REASON} hint={hint}"
        ),
    }));
}

fn denial(packet: &RefusedPacket, host: &str, hint: &str, caller: Option<&Caller>) -> Denial {
    let program = caller.map(|caller| &caller.program);
    Denial {
        host: host.to_owned(),
        port: packet.ports.map_or(0, |[_, port]| port),
        binary: program.map_or_else(|| "-".to_owned(), |program| program.executable.clone()),
        ancestors: program
            .map(|program| program.ancestors.clone())
            .unwrap_or_default(),
        code: ReasonCode::DirectConnection,
        reason: REASON.to_owned(),
        fix: Some(format!("it went past the proxy: {hint}")),
        request: None,
    }
}

#[cfg(test)]
mod tests {
    use super::{RefusedPacket, Transport, hint};

    // Conformance: NET-10.
    #[test]
    fn the_hints_for_packets_differ() {
        let of = |transport, port| {
            let packet = RefusedPacket {
                mark: 0,
                to: "198.51.100.77".parse().unwrap(),
                ports: Some([0x8000, port]),
                transport,
            };
            hint(&packet, false)
        };
        let hints = [
            of(Transport::Tcp, 443),
            of(Transport::Udp, 53),
            of(Transport::Udp, 123),
            of(Transport::Other(1), 0),
        ];
        let is_new = |(n, hint): (usize, &&str)| !hints[..n].contains(hint);
        assert!(hints.iter().enumerate().all(is_new), "{hints:?}");
    }
}
