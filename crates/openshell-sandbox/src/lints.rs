//! What in a policy is valid and yet cannot be what its author means, each with a remedy.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::net::IpAddr;
use std::path::Path;

use openshell_policy::address::AddressClass;
use openshell_policy::network::NetworkPolicy;
use openshell_policy::policy::Policy;
use openshell_supervisor::resolve::resolve;

/// Everything doubtful about the network policies of `policy`, a line each.
pub(crate) fn lints(policy: &Policy) -> Vec<String> {
    let of = |name: &str, problem: String| format!("network_policies.{name}{problem}");
    policy
        .network()
        .iter()
        .flat_map(|(name, network)| of_network(network).map(move |problem| of(name.as_str(), problem)))
        .collect()
}

fn of_network(network: &NetworkPolicy) -> impl Iterator<Item = String> {
    let empty = [("endpoints", network.endpoints.is_empty()), ("binaries", network.binaries.is_empty())];
    let empty = empty.into_iter().filter(|(_, is_empty)| *is_empty);
    let empty = empty.map(|(what, _)| format!(": it has no {what}, so it permits nothing"));
    let binaries = network.binaries.iter().enumerate().filter_map(|(index, binary)| {
        of_binary(&binary.to_string()).map(|problem| format!(".binaries[{index}]: {problem}"))
    });
    let endpoints = network.endpoints.iter().enumerate().filter_map(|(index, endpoint)| {
        let host = endpoint.host()?.to_string();
        of_host(&host).map(|problem| format!(".endpoints[{index}]: {problem}"))
    });
    empty.chain(binaries.collect::<Vec<_>>()).chain(endpoints.collect::<Vec<_>>())
}

fn of_binary(path: &str) -> Option<String> {
    if path.contains('*') {
        return None;
    }
    let file = match resolve(Path::new(path)) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Some(format!("{path} does not exist; it matches nothing until it does"));
        }
        Err(error) => return Some(format!("{path} stands for nothing else: {error}")),
    };
    let interpreter = interpreter(&file)?;
    Some(format!("{path} is a script, and what runs is {interpreter}; list that, or the command that starts it"))
}

/// The first word behind the `#!` of a script.
fn interpreter(path: &Path) -> Option<String> {
    let mut head = [0; 256];
    let mut file = File::open(path).ok().filter(|file| file.metadata().is_ok_and(|data| data.is_file()))?;
    file.seek(SeekFrom::Start(0)).ok()?;
    let filled = file.read(&mut head).ok()?;
    let line = head.get(..filled)?.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let words = std::str::from_utf8(line).ok()?.split_ascii_whitespace().map(str::to_owned).collect::<Vec<_>>();
    match words.as_slice() {
        // `env` looks for it in PATH, which is the workload's.
        [env, name, ..] if env.ends_with("/env") && !name.starts_with('-') => Some(format!("the `{name}` in PATH")),
        [first, ..] => {
            Some(resolve(Path::new(first)).map_or_else(|_| first.clone(), |file| file.display().to_string()))
        }
        [] => None,
    }
}

fn of_host(host: &str) -> Option<String> {
    let address: IpAddr = host.parse().ok()?;
    let is_blocked = AddressClass::of(address).is_always_blocked();
    is_blocked.then(|| {
        format!("{host} is never reachable, whatever a policy says; a server inside the sandbox needs no policy")
    })
}

#[cfg(test)]
mod tests {
    use super::lints;

    fn of(policies: &str) -> Vec<String> {
        let (policy, _) = openshell_policy::yaml::policy(&format!("network_policies: {policies}")).unwrap();
        lints(&policy)
    }

    #[test]
    fn what_matches_nothing_is_named_with_a_remedy() {
        let found = of(
            "{a: {endpoints: [{host: 127.0.0.1, port: 1}], binaries: [{path: /no/such}]}, b: {endpoints: [{host: x.test, port: 1}]}}",
        );
        let expected = [
            ("network_policies.a.binaries[0]: /no/such does not exist", "until it does"),
            ("network_policies.a.endpoints[0]: 127.0.0.1 is never reachable", "needs no policy"),
            ("network_policies.b: it has no binaries", "permits nothing"),
        ];
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (line, (start, end)) in found.iter().zip(expected) {
            assert!(line.starts_with(start) && line.ends_with(end), "{line}");
        }
    }

    #[test]
    fn a_script_is_named_with_its_interpreter() {
        let folder = std::env::temp_dir().join(format!("openshell-lints-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for (name, first, expected) in [
            ("sh", "#!/bin/sh -e\n", std::fs::canonicalize("/bin/sh").unwrap().display().to_string()),
            ("env", "#!/usr/bin/env node\n", "the `node` in PATH".to_owned()),
            ("gone", "#! /no/such\n", "/no/such".to_owned()),
        ] {
            let script = folder.join(name);
            std::fs::write(&script, first).unwrap();
            let found = of(&format!(
                "{{a: {{endpoints: [{{host: x.test, port: 1}}], binaries: [{{path: {}}}]}}}}",
                script.display()
            ));
            assert!(found[0].contains(&format!("is a script, and what runs is {expected};")), "{found:?}");
        }
        std::fs::remove_dir_all(folder).unwrap();
        assert_eq!(
            of("{a: {endpoints: [{host: x.test, port: 1}], binaries: [{path: /bin/sh}, {path: \"/usr/**\"}]}}"),
            Vec::<String>::new()
        );
    }
}
