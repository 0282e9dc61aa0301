//! Reader of credentials documents.

use crate::credential::{
    Binding, BoundHost, CredentialName, CredentialSpec, MAX_CREDENTIALS, PathPrefix,
    SHORT_SECRET_BYTES, Source, check_secret,
};
use crate::secret::Secret;
use crate::violation::{ViolationKind, WarningKind};
use crate::yaml::reader::{At, Reader};

/// Reads the credentials of a document; rejects names for which `is_taken` returns true.
pub(super) fn credentials(
    reader: &mut Reader,
    at: &At<'_>,
    is_taken: impl Fn(&str) -> bool,
) -> Option<Vec<CredentialSpec>> {
    let Some(at) = reader.mapping(at, &["credentials"])?.take("credentials") else {
        reader.reject(at, ViolationKind::Missing("credentials"));
        return None;
    };
    let entries = reader.entries(&at)?;
    if entries.len() > MAX_CREDENTIALS {
        reader.reject(
            &at,
            ViolationKind::TooManyCredentials {
                count: entries.len(),
                limit: MAX_CREDENTIALS,
            },
        );
        return None;
    }
    let mut specs = Vec::new();
    for (key, at) in entries {
        let name = reader.check(&at, CredentialName::parse(key));
        if is_taken(key) {
            reader.reject(&at, ViolationKind::CredentialNameTaken(key.to_owned()));
        }
        specs.extend(name.and_then(|name| credential(reader, &at, name)));
    }
    Some(specs)
}

fn credential(reader: &mut Reader, at: &At<'_>, name: CredentialName) -> Option<CredentialSpec> {
    let mut fields = reader.mapping(at, &["env", "file", "value", "hosts", "path"])?;
    let before = reader.violation_count();
    let sources = [
        fields
            .take("env")
            .map(|at| reader.text(&at, variable).map(Source::Variable)),
        fields
            .take("file")
            .map(|at| reader.text(&at, |path| Ok(Source::File(path.into())))),
        fields
            .take("value")
            .map(|at| value(reader, &at).map(Source::Value)),
    ];
    let mut sources = sources.into_iter().flatten();
    let (Some(source), None) = (sources.next(), sources.next()) else {
        reader.reject(at, ViolationKind::CredentialSource);
        return None;
    };
    let hosts = fields
        .take("hosts")
        .map(|at| (reader.texts(&at, BoundHost::parse), at));
    if let Some((hosts, at)) = &hosts
        && hosts.is_empty()
        && reader.violation_count() == before
    {
        reader.reject(at, ViolationKind::HostsEmpty);
    }
    if hosts.is_none() {
        reader.warn(at, WarningKind::CredentialUnbound);
    }
    let path = fields
        .take("path")
        .and_then(|at| reader.text(&at, PathPrefix::parse));
    Some(CredentialSpec {
        name,
        source: source?,
        binding: Binding {
            hosts: hosts.map(|(hosts, _)| hosts),
            path,
        },
    })
}

pub(super) fn variable(name: &str) -> Result<String, ViolationKind> {
    if name.is_empty() || name.contains(['=', '\0']) {
        Err(ViolationKind::VariableName)
    } else {
        Ok(name.to_owned())
    }
}

fn value(reader: &mut Reader, at: &At<'_>) -> Option<Secret> {
    let secret = reader.text(at, |text| {
        check_secret(text.as_bytes())?;
        Ok(Secret::new(text.as_bytes().to_vec()))
    })?;
    if secret.expose().len() < SHORT_SECRET_BYTES {
        reader.warn(at, WarningKind::SecretShort);
    }
    Some(secret)
}
