//! Two sites at one address: a permitted name leads to its own, whatever a client says first.

use std::os::unix::fs::PermissionsExt as _;

use lab::Lab;

use super::origin::Origin;

const SECRET: &str = "sesame-open-0123456789";

// A client that speaks first, at every door, on endpoints without rules.
#[test]
fn no_first_bytes_lead_to_another_site_nor_to_a_secret_in_clear() {
    let lab = Lab::with_web();
    let sites = Origin::of(
        &lab,
        "sites.py",
        include_str!("data/sites.py"),
        &["/usr/bin/python3"],
    );
    let client = include_str!("data/sites_client.py");
    let path = lab.file("client.py", client);
    // What the servers take from a client that nothing stands before.
    let direct = lab.shell(&format!("/usr/bin/python3 {} direct", path.display()));
    let reached = sites.file("sites");
    for site in ["TLS other.test\nother.test", "HTTP/0.9"] {
        assert!(reached.contains(site), "{reached}\n{direct}");
    }
    assert!(direct.matches(SECRET).count() >= 8, "{direct}");
    let ports = [8080, 8081, 8082, 8443];
    let endpoints: Vec<_> = ports
        .iter()
        .map(|port| format!("{{host: web.test, port: {port}, allowed_ips: [10.99.0.1]}}"))
        .collect();
    let network = format!(
        "{{web: {{endpoints: [{}], binaries: [{{path: \"/**\"}}]}}}}",
        endpoints.join(", ")
    );
    let credentials = lab.file(
        "credentials.yaml",
        format!("credentials: {{KEY: {{value: {SECRET}, hosts: [web.test]}}}}"),
    );
    std::fs::set_permissions(&credentials, std::fs::Permissions::from_mode(0o600)).unwrap();
    let before = sites.file("sites");
    let sandbox = lab.sandbox(&super::policy(&network));
    let flags = [
        "--upstream-ca-file",
        &sites.authority(),
        "--credentials",
        credentials.to_str().unwrap(),
    ];
    let finished = sandbox
        .args(&flags)
        .python(client, &["name", "connect", "socks"]);
    let said = finished.ok();
    assert_eq!(said.lines().count(), 3 * (4 + 24 + 3 + 1), "{said}");
    assert!(!said.contains(SECRET), "{said}");
    assert!(
        said.contains(&"*".repeat(SECRET.len())),
        "what is relayed as bytes is masked: {said}"
    );
    let reached = sites.file("sites").replacen(&before, "", 1);
    assert!(
        !reached.contains("other.test") && !reached.contains("HTTP/0.9"),
        "{reached}\n{said}"
    );
}
