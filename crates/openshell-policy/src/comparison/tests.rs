use super::{cover, differences};
use crate::policy::Policy;
use crate::yaml;

fn policy(text: &str) -> Policy {
    yaml::policy(text)
        .unwrap_or_else(|violations| panic!("{text}: {violations}"))
        .0
}

/// Returns the differences between two policies, each with its sign.
fn compared(before: &str, after: &str) -> Vec<String> {
    let found = differences(&policy(before), &policy(after));
    found
        .into_iter()
        .map(|found| format!("{} {}", if found.is_more { '+' } else { '-' }, found.words))
        .collect()
}

fn web(endpoint: &str, binaries: &str) -> String {
    format!("network_policies: {{web: {{endpoints: [{endpoint}], binaries: [{binaries}]}}}}")
}

const CURL: &str = "{path: /usr/bin/curl}";

/// Checks that `before` permits everything that `after` permits but not the reverse, and that
/// `words` describe the difference.
fn narrower(before: &str, after: &str, words: &str) {
    assert_eq!(
        compared(before, after),
        [format!("- {words}")],
        "{before}\n{after}"
    );
    assert_eq!(
        compared(after, before),
        [format!("+ {words}")],
        "{before}\n{after}"
    );
    assert_eq!(compared(before, before), Vec::<String>::new());
}

#[test]
fn hosts_ports_programs_and_addresses_are_compared() {
    let none = "network_policies: {}";
    let one = web("{host: a.test, port: 443}", CURL);
    narrower(&one, none, "/usr/bin/curl may reach a.test:443");
    let wider = web("{host: '*.b.test', port: 443}", CURL);
    narrower(
        &wider,
        &web("{host: x.b.test, port: 443}", CURL),
        "/usr/bin/curl may reach *.b.test:443",
    );
    let all = web("{host: a.test, port: 443}", "{path: '/usr/**'}");
    narrower(&all, &one, "/usr/** may reach a.test:443");
    let two = web("{host: a.test, ports: [443, 80]}", CURL);
    narrower(&two, &one, "/usr/bin/curl may reach a.test:80");
    let exact = web(
        "{host: a.test, port: 443}",
        "{path: /usr/bin/curl, exact: true}",
    );
    narrower(&one, &exact, "/usr/bin/curl may reach a.test:443");
    let broad = "10.0.0.0/8";
    let small = "10.1.0.0/16";
    let ranged = |range: &str| {
        web(
            &format!("{{host: a.test, port: 443, allowed_ips: [{range}]}}"),
            CURL,
        )
    };
    narrower(
        &ranged(broad),
        &ranged(small),
        "/usr/bin/curl may reach a.test:443 at 10.0.0.0/8",
    );
    // Public addresses are not in a private range, and the reverse.
    assert_eq!(compared(&one, &ranged(broad)).len(), 2);
    let both = web(
        "{host: a.test, port: 443}",
        "{path: /usr/bin/curl}, {path: /usr/bin/wget}",
    );
    assert_eq!(
        compared(none, &both),
        ["+ /usr/bin/curl, /usr/bin/wget may reach a.test:443"]
    );
}

#[test]
fn requests_are_compared_by_methods_paths_and_queries() {
    let rest = |more: &str| {
        web(
            &format!("{{host: a.test, port: 443, protocol: rest, enforcement: enforce, {more}}}"),
            CURL,
        )
    };
    let rules = |rules: &str| rest(&format!("rules: [{rules}]"));
    narrower(
        &rest("access: read-write"),
        &rest("access: read-only"),
        "/usr/bin/curl may send to a.test:443: POST **; PUT **; PATCH **",
    );
    let wide = "{allow: {method: GET, path: '/a/**'}}";
    let narrow = "{allow: {method: GET, path: '/a/*/x'}}";
    narrower(
        &rules(wide),
        &rules(narrow),
        "/usr/bin/curl may send to a.test:443: GET /a/**",
    );
    let keyed = "{allow: {method: GET, path: '/a/**', query: {v: '1'}}}";
    narrower(
        &rules(wide),
        &rules(keyed),
        "/usr/bin/curl may send to a.test:443: GET /a/**",
    );
    let denied = rest("access: full, deny_rules: [{method: DELETE, path: '/repos/*'}]");
    narrower(
        &rest("access: full"),
        &denied,
        "/usr/bin/curl may send to a.test:443: DELETE /repos/*, which was denied",
    );
    let audited = web(
        "{host: a.test, port: 443, protocol: rest, enforcement: audit, access: read-only}",
        CURL,
    );
    narrower(
        &audited,
        &rest("access: read-only"),
        "/usr/bin/curl may send to a.test:443: every request",
    );
    let plain = web("{host: a.test, port: 443}", CURL);
    narrower(
        &plain,
        &rest("access: full"),
        "/usr/bin/curl may reach a.test:443 without rules for requests",
    );
    let skipped = web("{host: a.test, port: 443, tls: skip}", CURL);
    narrower(
        &skipped,
        &plain,
        "/usr/bin/curl may reach a.test:443 without inspection",
    );
    let leaking = web("{host: a.test, port: 443, leaks: allow}", CURL);
    narrower(
        &leaking,
        &plain,
        "/usr/bin/curl may send secrets to a.test:443 (leaks: allow)",
    );
    // An entry for one program refuses what the entry for all programs permits.
    let all = "{all: {endpoints: [{host: a.test, port: 443}], binaries: [{path: '/usr/**'}]}}";
    let both = all.replace(
        "}]}}",
        "}]}, curl: {endpoints: [{host: a.test, port: 443, protocol: \
                                    rest, enforcement: enforce, access: read-only}], binaries: \
                                    [{path: /usr/bin/curl}]}}",
    );
    let all = format!("network_policies: {all}");
    let both = format!("network_policies: {both}");
    narrower(
        &all,
        &both,
        "/usr/** may reach a.test:443 without rules for requests",
    );
    let sensitive = rest(
        "access: full, deny_rules: [{method: DELETE, path: '/repos/*', case_sensitive: true}]",
    );
    narrower(
        &sensitive,
        &denied,
        "/usr/bin/curl may send to a.test:443: DELETE /repos/*, which was denied",
    );
    let slashes = rules(&format!(
        "{wide}], allow_encoded_slash: true, deny_rules: [{{method: GET, path: /none}}"
    ));
    let without = slashes.replace("allow_encoded_slash: true, ", "");
    narrower(
        &slashes,
        &without,
        "/usr/bin/curl may send to a.test:443: paths with %2F (allow_encoded_slash)",
    );
    let switching = slashes.replace("allow_encoded_slash: true", "upgrades: [tcp]");
    narrower(
        &switching,
        &without,
        "/usr/bin/curl may switch to tcp at a.test:443 (upgrades)",
    );
    // Rules of several policies add up.
    let split = "network_policies: {one: {endpoints: [{host: a.test, port: 443, protocol: rest, \
                 enforcement: enforce, rules: [{allow: {method: GET, path: '/a/**'}}]}], binaries: \
                 [{path: /usr/bin/curl}]}, two: {endpoints: [{host: a.test, port: 443, protocol: \
                 rest, enforcement: enforce, rules: [{allow: {method: POST, path: '/b'}}]}], \
                 binaries: [{path: /usr/bin/curl}]}}";
    let joined =
        rules("{allow: {method: GET, path: '/a/**'}}, {allow: {method: POST, path: '/b'}}");
    assert_eq!(compared(split, &joined), Vec::<String>::new());
    assert_eq!(compared(&joined, split), Vec::<String>::new());
}

#[test]
fn paths_of_endpoints_are_compared_and_nothing_new_is_left_out() {
    let at = |endpoints: &[&str]| {
        let endpoint = |parts: &&str| {
            format!("{{host: a.test, port: 443, protocol: rest, enforcement: enforce, {parts}}}")
        };
        let endpoints: Vec<_> = endpoints.iter().map(endpoint).collect();
        web(&endpoints.join(", "), CURL)
    };
    let all = at(&["access: full"]);
    let api = at(&["path: \"/api/**\", access: full"]);
    narrower(
        &all,
        &api,
        "/usr/bin/curl may send to a.test:443: every method **",
    );
    let one = at(&["path: /api/one, access: full"]);
    narrower(
        &api,
        &one,
        "/usr/bin/curl may send to a.test:443: every method ** (path: /api/**)",
    );
    // A path with narrower rules takes requests away from the endpoint without one.
    let shadowed = at(&["access: full", "path: \"/api/**\", access: read-only"]);
    assert_eq!(
        compared(&shadowed, &all),
        ["+ /usr/bin/curl may send to a.test:443: every method **"]
    );
    let with_own = at(&[
        "access: full",
        "path: \"/api/**\", access: read-only",
        "path: /api/x, access: full",
    ]);
    assert_eq!(
        compared(&shadowed, &with_own)[0],
        "+ /usr/bin/curl may send to a.test:443: every method ** (path: /api/x)"
    );
    let audited = |path: &str| {
        web(
            &format!(
                "{{host: a.test, port: 443, protocol: rest, enforcement: audit, access: full{path}}}"
            ),
            CURL,
        )
    };
    assert_eq!(
        compared(&audited(", path: \"/api/**\""), &audited("")),
        ["+ /usr/bin/curl may send to a.test:443: every request"]
    );
    let mixed = at(&["path: /x, access: read-only"]).replace(
        "endpoints: [",
        "endpoints: [{host: a.test, port: 443, protocol: rest, enforcement: audit, access: full}, ",
    );
    assert_eq!(compared(&mixed, &mixed), [""; 0]);
    let upgrade = at(&[
        "path: \"/api/**\", access: full",
        "path: /ws, access: full, upgrades: [tcp]",
    ]);
    let plain = at(&["path: \"/api/**\", access: full", "path: /ws, access: full"]);
    assert_eq!(
        compared(&plain, &upgrade),
        ["+ /usr/bin/curl may switch to tcp at a.test:443 (upgrades)"]
    );
    let wildcard = |host: &str| web(&format!("{{host: '{host}', port: 443}}"), CURL);
    assert_eq!(
        compared(
            &wildcard("**.s3.*.amazonaws.com"),
            &wildcard("s3.eu.amazonaws.com")
        )
        .len(),
        2
    );
    let denied = at(&[
        "access: full",
        "path: \"/api/**\", access: full, deny_rules: [{method: PUT, path: \"**\"}]",
    ]);
    let freed = at(&["access: full", "path: \"/api/**\", access: full"]);
    assert_eq!(
        compared(&denied, &freed),
        ["+ /usr/bin/curl may send to a.test:443: PUT ** (path: /api/**), which was denied"]
    );
}

#[test]
fn files_users_and_modes_are_compared() {
    let files = |more: &str| format!("filesystem_policy: {{{more}}}\nnetwork_policies: {{}}");
    narrower(
        &files("read_write: [/data]"),
        &files("read_only: [/data]"),
        "the command may write to /data",
    );
    narrower(
        &files("read_only: [/data]"),
        &files(""),
        "the command may read /data",
    );
    narrower(
        &files("read_write: [/data]"),
        &files("read_write: [/data], read_only: [/data/x]"),
        "the command may write to /data/x",
    );
    // Grants of one path add up.
    narrower(
        &files("read_write: [/data], read_only: [/data]"),
        &files("read_only: [/data]"),
        "the command may write to /data",
    );
    narrower(
        &files("read_write: [/data]"),
        &files("read_write: [/data], hidden: [/data/x]"),
        "the command may write to /data/x",
    );
    narrower(
        &files("read_write: [/data]"),
        &files("read_write: [/data], hidden: ['**/.env']"),
        "the command may read **/.env",
    );
    narrower(
        &files("read_write: [/data]"),
        &files("read_write: [/data], noexec: [/data/x]"),
        "the command may execute what is in /data/x",
    );
    narrower(
        &files(""),
        &files("include_workdir: false"),
        "the command may write to the working directory (--workdir)",
    );
    // What the baseline grants is not new.
    assert_eq!(
        compared(&files(""), &files("read_only: [/usr/share, /etc]")),
        Vec::<String>::new()
    );
    let hard = format!(
        "landlock: {{compatibility: hard_requirement}}\n{}",
        files("")
    );
    narrower(
        &files(""),
        &hard,
        "the sandbox starts even if the kernel cannot restrict some rights (best_effort)",
    );
    let traced = format!("process: {{debug: true}}\n{}", files(""));
    narrower(&traced, &files(""), "commands may trace each other");
    let user = format!("process: {{run_as_user: agent}}\n{}", files(""));
    assert_eq!(
        compared(&files(""), &user),
        ["+ the command runs as user agent, and not as the caller"]
    );
}

#[test]
fn globs_cover_what_they_match_and_nothing_else() {
    for (one, other, expected) in [
        ("/a/**", "/a/b", true),
        ("/a/**", "/a/*/c", true),
        ("/a/**", "/a", false),
        ("/a/**", "/**", false),
        ("/a/*", "/a/b", true),
        ("/a/*", "/a/b/c", false),
        ("/a/*", "/a/**", false),
        ("/a/*", "/a/b*", true),
        ("/a/b*", "/a/*", false),
        ("/a/**/z", "/a/z", true),
        ("/a/**/z", "/a/b/c/z", true),
        ("/a/**/z", "/a/b/c", false),
        ("/**/x", "/**/x", true),
        ("/{a,b}", "/a", true),
        ("/{a,b}", "/c", false),
        ("/[ab]", "/b", true),
    ] {
        assert_eq!(cover::glob(one, other, '/'), expected, "{one} {other}");
    }
    let deep = "/**".repeat(30);
    assert!(cover::glob(&deep, &deep, '/') && !cover::glob(&format!("{deep}/x"), &deep, '/'));
}

/// Pairs of policies of which the second permits more, in a way that is easily missed.
#[test]
fn nothing_that_is_new_is_left_out() {
    let files = |more: &str| format!("filesystem_policy: {{{more}}}\nnetwork_policies: {{}}");
    let two = |one: &str, other: &str| format!("network_policies: {{one: {one}, two: {other}}}");
    let entry = |endpoint: &str, binary: &str| {
        format!("{{endpoints: [{endpoint}], binaries: [{{path: {binary}}}]}}")
    };
    let rest = |host: &str, more: &str| {
        format!("{{host: '{host}', port: 443, protocol: rest, enforcement: enforce, {more}}}")
    };
    let full = rest("a.test", "access: full");
    let denying = rest(
        "a.test",
        "access: full, deny_rules: [{method: DELETE, path: '/**'}]",
    );
    let globs = |path: &str| {
        web(
            &rest(
                "a.test",
                &format!("rules: [{{allow: {{method: GET, path: '{path}'}}}}]"),
            ),
            CURL,
        )
    };
    for (before, after) in [
        (
            web("{host: '**.a.example', port: 443}", CURL),
            web("{host: a.example, port: 443}", CURL).replace("a.example", "x.example"),
        ),
        (
            web("{host: '**.b.example', port: 443}", CURL),
            web("{host: b.example, port: 443}", CURL),
        ),
        (
            files("read_write: [/home/kim], hidden: [~/.ssh]"),
            files("read_write: [/home/kim]"),
        ),
        (files("hidden: [$WORKDIR/secrets]"), files("")),
        (files("read_only: [$WORKDIR/.git]"), files("")),
        (
            files("read_write: [/proj]"),
            files("read_write: [/proj, /proj/.git/hooks]"),
        ),
        (files(""), files("read_write: [/tmp]")),
        (files(""), files("read_only: [/dev/shm/x]")),
        (
            files("read_write: [/data], read_only: ['/data/*/x']"),
            files("read_write: [/data, /data/a/x/y], read_only: ['/data/*/x']"),
        ),
        // The entry of bash denies DELETE to the programs that bash starts.
        (
            two(
                &entry(&full, "/usr/bin/curl"),
                &entry(&denying, "/usr/bin/bash"),
            ),
            two(
                &entry(&full, "/usr/bin/curl"),
                &entry("{host: c.test, port: 443}", "/usr/bin/bash"),
            ),
        ),
        (
            web(
                "{host: a.test, port: 443, protocol: rest, enforcement: audit, access: full}",
                CURL,
            ),
            web(
                "{host: a.test, port: 443, protocol: sql, access: full}",
                CURL,
            ),
        ),
        // Before, every connection is refused because neither endpoint can be honoured; after, one
        // can.
        (
            two(
                &entry("{host: a.b.example, port: 443, tls: skip}", "/usr/bin/curl"),
                &entry(&rest("*.b.example", "access: read-only"), "/usr/bin/curl"),
            ),
            two(
                &entry("{host: c.test, port: 443}", "/usr/bin/curl"),
                &entry(&rest("*.b.example", "access: read-only"), "/usr/bin/curl"),
            ),
        ),
        (
            two(
                &entry(&rest("*.ab.x.example", "access: full"), "/usr/bin/curl"),
                &entry(
                    &rest(
                        "*.a*.x.example",
                        "access: full, deny_rules: [{method: DELETE, path: '/**'}]",
                    ),
                    "/usr/bin/curl",
                ),
            ),
            web(&rest("*.ab.x.example", "access: full"), CURL),
        ),
        (globs("/a/*/*"), globs("/a/{b,c/d}")),
        (globs("/{a/*/c}"), globs("/{a/b,d/c}")),
    ] {
        let found = differences(&policy(&before), &policy(&after));
        assert!(
            found.iter().any(|found| found.is_more),
            "{before}\n{after}\n{found:?}"
        );
        assert_eq!(
            differences(&policy(&before), &policy(&before)),
            [],
            "{before}"
        );
        assert_eq!(differences(&policy(&after), &policy(&after)), [], "{after}");
    }
    // Each kind of difference is reported.
    let after = rest(
        "a.test",
        "access: read-write, allow_encoded_slash: true, leaks: allow",
    );
    let before = rest(
        "a.test",
        "access: read-only, deny_rules: [{method: GET, path: /x}]",
    );
    let found = compared(&web(&before, CURL), &web(&after, CURL)).join("\n");
    for part in ["POST **", "GET /x, which was denied", "%2F", "leaks: allow"] {
        assert!(found.contains(part), "{part}: {found}");
    }
    let found = compared("network_policies: {}", &web(&after, CURL)).join("\n");
    assert!(found.contains("send secrets to a.test:443"), "{found}");
}
