//! The keys of an endpoint, while they are read.

use crate::violation::ViolationKind;
use crate::yaml::reader::{At, Fields, Reader};

/// Keys of an endpoint and their state.
pub(super) struct Keys<'n> {
    fields: Fields<'n>,
    written: Vec<&'static str>,
    /// Keys with an invalid value.
    invalid: Vec<&'static str>,
}

impl<'n> Keys<'n> {
    /// Returns the keys `fields`, none of which was read.
    pub(super) fn new(fields: Fields<'n>) -> Self {
        Self {
            fields,
            written: Vec::new(),
            invalid: Vec::new(),
        }
    }

    /// Reads the value of `key` by `read`, if it is written.
    pub(super) fn read<T>(
        &mut self,
        reader: &mut Reader,
        key: &'static str,
        read: impl FnOnce(&mut Reader, &At<'n>) -> Option<T>,
    ) -> Option<T> {
        let at = self.fields.take(key)?;
        let before = reader.violation_count();
        let part = read(reader, &at);
        self.written.push(key);
        if reader.violation_count() > before {
            self.invalid.push(key);
        }
        part
    }

    /// Filters the contradictions between keys: drops those that follow from an invalid value, and
    /// adds those that an invalid value hides.
    pub(super) fn contradictions(&self, mut violations: Vec<ViolationKind>) -> Vec<ViolationKind> {
        violations.retain(|violation| {
            let about: &[&str] = match violation {
                ViolationKind::EndpointWithoutHost => &["host", "allowed_ips"],
                ViolationKind::TcpWithoutHost => &["host"],
                ViolationKind::PortMissing => &["port", "ports"],
                ViolationKind::RulesEmpty => &["rules"],
                ViolationKind::ProtocolWithoutRules | ViolationKind::RpcWithoutRules => {
                    &["rules", "access"]
                }
                ViolationKind::NeedsProtocol(_) => &["protocol"],
                _ => &[],
            };
            !about.iter().any(|key| self.invalid.contains(key))
        });
        for (pair, violation) in [
            (["port", "ports"], ViolationKind::PortAndPorts),
            (["rules", "access"], ViolationKind::RulesAndAccess),
        ] {
            let is_hidden = pair.iter().any(|key| self.invalid.contains(key))
                && !violations.contains(&violation);
            if is_hidden && pair.iter().all(|key| self.written.contains(key)) {
                violations.push(violation);
            }
        }
        violations
    }
}
