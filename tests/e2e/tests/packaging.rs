//! What is delivered: images, the static binary, the Debian package, and descriptions for
//! Kubernetes and systemd. `tests/packaging` makes the images, and runs these tests.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "in a test a failed step is a failed test"
)]

use std::path::{Path, PathBuf};

use lab::Lab;
use lab::container::{Container, DEFAULT, DOCUMENTED, Engine, Files, profile};
use serde_json::Value;

/// Capabilities that the documentation asks for in a container that has no others.
const NEEDED: &[&str] = &[
    "CHOWN",
    "DAC_OVERRIDE",
    "KILL",
    "NET_BIND_SERVICE",
    "SETGID",
    "SETPCAP",
    "SETUID",
];

/// The profile of Debian's containers-common.
const ENGINES: &str = "/usr/share/containers/seccomp.json";

/// Returns a file or folder that `tests/packaging` has made.
fn made(name: &str) -> PathBuf {
    Path::new(&std::env::var_os("PACKAGING").expect("run tests/packaging")).join(name)
}

/// Returns a file of the repository's folder for users.
fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../data")
        .join(name)
}

/// The security contexts that docs/kubernetes.md describes, with the user of the command in each.
/// Root without the capabilities cannot become the user of the demo's policy, so that its policy
/// names none.
fn contexts(image: &str) -> [(&'static str, Container, u32); 4] {
    let files = Files::Image(made(image));
    let own = |capabilities: &[&str]| Some(profile(&data("seccomp.json"), capabilities, None));
    let administrator = [NEEDED, DOCUMENTED].concat();
    let engines = || {
        Some(profile(
            Path::new(ENGINES),
            &administrator,
            Some(Engine::Docker),
        ))
    };
    let privileged = Container {
        files: files.clone(),
        seccomp: engines(),
        is_read_only: true,
        ..Container::new(0, &[NEEDED, DOCUMENTED])
    };
    let user_namespace = Container {
        users: Some((200_000, 65_536)),
        is_masked: false,
        ..privileged.clone()
    };
    let binds = vec![(
        data("examples/first.yaml"),
        "/etc/openshell/policy.yaml".into(),
    )];
    let default = Container {
        files: files.clone(),
        seccomp: own(DEFAULT),
        binds,
        ..Container::new(0, &[DEFAULT])
    };
    let restricted = Container {
        files,
        seccomp: own(&[]),
        is_read_only: true,
        no_new_privileges: true,
        ..Container::new(998, &[])
    };
    [
        ("privileged", privileged, 998),
        ("user-namespace", user_namespace, 998),
        ("default", default, 65_534),
        ("restricted", restricted, 998),
    ]
}

#[test]
fn the_binary_is_static_and_small() {
    let binary = made("supervisor/openshell-sandbox");
    let size = std::fs::metadata(&binary).unwrap().len();
    assert!(size <= 20_100_000, "{size} bytes");
    let lab = Lab::new(&[]);
    let headers = lab.shell(&format!(
        "readelf --file-header --program-headers --dynamic {}",
        binary.display()
    ));
    assert!(
        headers.contains("DYN (Position-Independent Executable file)"),
        "{headers}"
    );
    assert!(
        !headers.contains("INTERP") && !headers.contains("(NEEDED)"),
        "{headers}"
    );
}

#[test]
fn an_image_of_the_binary_alone_runs_it() {
    let lab = Lab::with_web();
    let policy = lab.file(
        "policy.yaml",
        "network_policies: {}\nfilesystem_policy: {read_only: [/openshell-sandbox]}\n",
    );
    for (name, mut container, _) in contexts("supervisor") {
        container
            .binds
            .push((policy.clone(), "/policy.yaml".into()));
        let own = "/openshell-sandbox";
        let printed = container.run(&lab, &[own, "-p", "/policy.yaml", "--", own, "--version"]);
        let version = concat!("openshell-sandbox ", env!("CARGO_PKG_VERSION"), "\n");
        assert!(
            printed.contains(version) && printed.ends_with("\n0\n"),
            "{name}: {printed}"
        );
    }
}

#[test]
fn the_demo_runs_its_tools_in_each_security_context_and_refuses_what_nothing_permits() {
    let lab = Lab::with_web();
    let script = "id -u; git --version; node -p 6*7; python3 -c 'print(6 * 7)'; touch /tmp/x; \
                  touch /etc/x; curl -s -o /dev/null -w '%{http_connect}\\n' https://example.com; \
                  cat /proc/1/comm";
    for (name, container, user) in contexts("demo") {
        let printed = container.run(
            &lab,
            &[
                "openshell-sandbox",
                "--policy-data=/etc/openshell/policy.yaml",
                "sh",
                "-c",
                script,
            ],
        );
        println!("== {name}\n{printed}");
        let expected = format!("{user}\ngit version ");
        assert!(
            printed.contains(&expected) && printed.contains("\n42\n42\n"),
            "{name}: {printed}"
        );
        assert!(
            printed.contains("/etc/x': Permission denied\n403\n")
                || printed.contains("/etc/x': Read-only file system\n403\n"),
            "{name}: {printed}"
        );
    }
}

#[test]
fn doctor_says_what_each_security_context_has() {
    let lab = Lab::with_web();
    for (name, container, _) in contexts("demo") {
        let printed = container.run(
            &lab,
            &["openshell-sandbox", "doctor", "/etc/openshell/policy.yaml"],
        );
        println!("== {name}\n{printed}");
        assert!(printed.ends_with("\n0\n"), "{name}: {printed}");
    }
}

#[test]
fn an_engines_own_profile_is_named_where_it_forbids_the_sandbox() {
    let lab = Lab::with_web();
    for (uid, capabilities) in [(998, &[][..]), (0, DEFAULT)] {
        for engine in [Engine::Podman, Engine::Docker] {
            let seccomp = Some(profile(Path::new(ENGINES), capabilities, Some(engine)));
            let files = Files::Image(made("demo"));
            let binds = vec![(
                data("examples/first.yaml"),
                "/etc/openshell/policy.yaml".into(),
            )];
            let container = Container {
                files,
                seccomp,
                binds,
                ..Container::new(uid, &[capabilities])
            };
            let printed = container.run(
                &lab,
                &[
                    "openshell-sandbox",
                    "-p",
                    "/etc/openshell/policy.yaml",
                    "id",
                    "-u",
                ],
            );
            println!("== {uid} {engine:?}\n{printed}");
            match engine {
                Engine::Podman => assert!(printed.ends_with("\n0\n"), "{uid}: {printed}"),
                Engine::Docker => {
                    let said: Vec<_> = printed
                        .lines()
                        .filter(|line| line.starts_with("openshell-sandbox: "))
                        .collect();
                    let [line] = said[..] else {
                        panic!("one line: {printed}")
                    };
                    assert!(
                        line.contains("seccomp") && printed.ends_with("\n1\n"),
                        "{printed}"
                    );
                }
            }
        }
    }
}

/// Returns the descriptions of pods by overlay, merged and valid by the schemas of Kubernetes.
fn overlays(lab: &Lab) -> Value {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/kubernetes.py");
    let [python, program, folder] = [made("python/bin/python"), program, data("kubernetes")]
        .map(|path| path.display().to_string());
    let printed = lab.shell(&format!("{python} {program} {folder}"));
    serde_json::from_str(&printed).expect(&printed)
}

/// Returns the pod of an overlay.
fn pod(overlays: &Value, overlay: &str) -> Value {
    let resources = overlays[overlay].as_array().unwrap();
    let deployment = resources
        .iter()
        .find(|resource| resource["kind"] == "Deployment")
        .unwrap();
    deployment["spec"]["template"]["spec"].clone()
}

#[test]
fn pods_are_valid_and_as_their_pod_security_levels_demand() {
    let lab = Lab::new(&[]);
    let overlays = overlays(&lab);
    let pod = |overlay: &str| pod(&overlays, overlay);
    let containers = |pod: &Value| {
        [
            pod["initContainers"].as_array().unwrap().clone(),
            pod["containers"].as_array().unwrap().clone(),
        ]
        .concat()
    };
    // Pod Security Standards, "restricted".
    let restricted = pod("restricted");
    assert_eq!(restricted["securityContext"]["runAsNonRoot"], true);
    assert_eq!(
        restricted["securityContext"]["seccompProfile"]["type"],
        "Localhost"
    );
    for container in containers(&restricted) {
        let context = &container["securityContext"];
        assert_eq!(context["allowPrivilegeEscalation"], false, "{container}");
        assert_eq!(
            context["capabilities"],
            serde_json::json!({"drop": ["ALL"]}),
            "{container}"
        );
    }
    let volumes = restricted["volumes"].as_array().unwrap();
    let is_allowed = |volume: &Value| {
        ["emptyDir", "configMap", "secret"]
            .iter()
            .any(|kind| !volume[kind].is_null())
    };
    assert!(volumes.iter().all(is_allowed), "{volumes:?}");
    for overlay in ["user-namespace", "privileged"] {
        let pod = pod(overlay);
        assert_eq!(
            pod["hostUsers"] == false,
            overlay == "user-namespace",
            "{pod}"
        );
        let added: Vec<_> = pod["containers"][0]["securityContext"]["capabilities"]["add"]
            .as_array()
            .unwrap()
            .clone();
        let needed = [NEEDED, DOCUMENTED].concat();
        assert!(
            added.len() == needed.len()
                && added
                    .iter()
                    .all(|name| needed.contains(&name.as_str().unwrap())),
            "{added:?}"
        );
    }
    // Its own limit is longer than drain and grace.
    let arguments = restricted["containers"][0]["args"].to_string();
    assert!(
        arguments.contains("--drain=5") && arguments.contains("--grace=20"),
        "{arguments}"
    );
    assert!(
        restricted["terminationGracePeriodSeconds"].as_u64() > Some(25),
        "{restricted}"
    );
}

/// A folder that holds files as the kubelet lays out a ConfigMap or a Secret, for a user of the
/// node.
struct Volume {
    folder: String,
    owner: String,
    mode: &'static str,
}

impl Volume {
    /// Returns the line of a shell that replaces its files by `files`, in one step (the kubelet's
    /// AtomicWriter).
    fn update(&self, number: u32, files: &[(&str, &str)]) -> String {
        let Self {
            folder,
            owner,
            mode,
        } = self;
        let write = |(name, text): &(&str, &str)| {
            format!(
                "printf %s '{text}' > ..{number}/{name}; chmod {mode} ..{number}/{name}; ln -sfn \
                 ..data/{name} {name}; "
            )
        };
        let files: String = files.iter().map(write).collect();
        format!(
            "mkdir -p {folder}; cd {folder}; mkdir ..{number}; {files} chown -Rh {owner} .; ln -s \
             ..{number} ..new; chown -h {owner} ..new; mv -T ..new ..data; rm -rf ..{}; cd /; ",
            number - 1
        )
    }
}

/// The pod's volumes, arguments and working directory are those of the description, its command is
/// a shell's, and it has an authority and a group for its volumes besides.
#[test]
fn pods_start_with_their_volumes_follow_a_change_and_hide_secrets_from_their_command() {
    let lab = Lab::with_web();
    let overlays = overlays(&lab);
    let text = |name: &str| std::fs::read_to_string(data("kubernetes/base").join(name)).unwrap();
    let authority = lab.folder("authority").join("ca").display().to_string();
    let printed = lab.shell(&format!("{} ca rotate {authority}", lab.binary()));
    assert!(printed.contains("CERTIFICATE"), "{printed}");
    let authority = std::fs::read_to_string(format!("{authority}/ca.pem")).unwrap();
    let (key, certificate) = authority.split_at(authority.find("-----BEGIN CERT").unwrap());
    for (name, mut container, _) in contexts("demo") {
        let overlay = if name == "default" {
            "privileged"
        } else {
            name
        };
        let pod = pod(&overlays, overlay);
        let agent = &pod["containers"][0];
        // Every second pod of root has a group for its volumes, as some clusters demand.
        let has_group = name == "privileged" || !pod["securityContext"]["fsGroup"].is_null();
        let first = container.users.map_or(0, |(first, _)| first);
        let owner = format!("{first}:{}", if has_group { 998 } else { first });
        let folder = |kind: &str| lab.folder(&format!("{name}-{kind}")).display().to_string();
        let mode = if has_group { "0440" } else { "0400" };
        let volume = |kind: &str, mode| Volume {
            folder: folder(kind),
            owner: owner.clone(),
            mode,
        };
        let policy = volume("policy", "0644");
        let secrets = volume("credentials", mode);
        let pair = volume("ca", mode);
        container.binds = vec![(pair.folder.clone().into(), "/etc/openshell/ca".into())];
        container.volumes = vec![];
        for mount in agent["volumeMounts"].as_array().unwrap() {
            let to = mount["mountPath"].as_str().unwrap().to_owned();
            match mount["name"].as_str().unwrap() {
                "program" => container.binds.push((made("supervisor"), to)),
                "policy" => container.binds.push((policy.folder.clone().into(), to)),
                "credentials" => container.binds.push((secrets.folder.clone().into(), to)),
                kind => container.volumes.push((folder(kind).into(), to)),
            }
        }
        container.workdir = agent["workingDir"].as_str().unwrap().to_owned();
        let script = "echo inside; for file in credentials/github-token credentials/other \
                      ca/tls.key; do cat /etc/openshell/$file; done; echo $GITHUB_TOKEN; touch \
                      /work/ready /tmp/x; until test -e /work/go; do sleep 0.02; done; cat \
                      /etc/openshell/credentials/..data/github-token; ls \
                      /etc/openshell/credentials; touch /etc/openshell/policy/policy.yaml";
        let arguments = agent["args"]
            .as_array()
            .unwrap()
            .iter()
            .map(|word| word.as_str().unwrap());
        let arguments = arguments
            .take_while(|word| *word != "--")
            .filter(|word| !word.contains("$("));
        let words: Vec<_> = [agent["command"][0].as_str().unwrap()]
            .into_iter()
            .chain(arguments)
            .collect();
        let words = [
            &words[..],
            &["--ca-dir=/etc/openshell/ca", "--", "sh", "-c", script],
        ]
        .concat();
        // Root without capabilities becomes nobody, whom the policy lets write nowhere else.
        let output = format!("{}/output", folder("output"));
        let work = folder("work");
        let printed = lab.shell(&format!(
            "{}{}{}{}{} > {output} 2>&1 & until test -e {work}/ready || ! kill -0 $!; do sleep \
             0.02; done; {}until grep -q 'reloaded successfully' {output} || ! kill -0 $!; do \
             sleep 0.02; done; {}until test $(grep -c 'reloaded successfully' {output}) = 2 || ! \
             kill -0 $!; do sleep 0.02; done; touch {work}/go; wait $!; echo $?; cat {output}",
            ["work", "tmp", "run"]
                .map(|kind| format!("chmod 1777 {}; ", folder(kind)))
                .concat(),
            policy.update(
                1,
                &[
                    ("policy.yaml", &text("policy.yaml")),
                    ("credentials.yaml", &text("credentials.yaml"))
                ]
            ),
            secrets.update(
                1,
                &[("github-token", "first-secret"), ("other", "other-secret")]
            ),
            pair.update(1, &[("tls.key", key), ("tls.crt", certificate)]),
            container.script(&lab, &words),
            policy.update(
                2,
                &[
                    (
                        "policy.yaml",
                        &text("policy.yaml").replace("read-only", "full")
                    ),
                    ("credentials.yaml", &text("credentials.yaml"))
                ]
            ),
            secrets.update(
                2,
                &[("github-token", "second-secret"), ("other", "other-secret")]
            ),
        ));
        println!("== {name}\n{printed}");
        assert!(
            printed.contains("inside\n") && printed.contains("openshell:resolve:env:"),
            "{name}: {printed}"
        );
        assert!(
            !printed.contains("-secret") && !printed.contains("PRIVATE KEY"),
            "{name}: {printed}"
        );
        assert!(
            !printed.contains("DEGRADED") || name != "privileged",
            "{name}: {printed}"
        );
        assert_eq!(
            printed.matches("reloaded successfully").count(),
            2,
            "{name}: {printed}"
        );
    }
}

#[test]
fn the_policies_and_credentials_of_the_descriptions_pass_check() {
    let lab = Lab::new(&[]);
    let folder = data("kubernetes/base");
    let printed = lab.shell(&format!(
        "{} check {}/policy.yaml --credentials {}/credentials.yaml; echo $?",
        lab.binary(),
        folder.display(),
        folder.display()
    ));
    assert!(printed.ends_with("0\n"), "{printed}");
}

#[test]
fn the_debian_package_runs_sandboxes_by_its_unit_and_leaves_nothing_when_removed() {
    let lab = Lab::new(&[]);
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/systemd.sh");
    let [program, bundle, image, package] = [
        program,
        lab.folder("systemd"),
        made("host"),
        made("openshell-sandbox.deb"),
    ]
    .map(|path| path.display().to_string());
    let printed = lab.shell(&format!(
        "unshare -m sh {program} {bundle} {image} {package}"
    ));
    let version = concat!("openshell-sandbox ", env!("CARGO_PKG_VERSION"));
    let expected = format!(
        "{version}\nverified\nactive\nnobody\n403\nnobody nogroup\ntouch: cannot touch '/etc/x': "
    );
    assert!(
        printed.contains(&expected) && printed.contains("\nactive\nResult=success\n"),
        "{printed}"
    );
    assert!(
        printed.contains("Policy reloaded successfully\n[exit:143]"),
        "{printed}"
    );
    // One that runs ends with the package.
    assert!(
        printed.ends_with("\nLoadState=not-found\nActiveState=inactive\nremoved\n"),
        "{printed}"
    );
    assert!(
        !printed.contains("DEGRADED") && !printed.contains("/usr/"),
        "{printed}"
    );
}

/// Receives one export, and prints the resource, and each number of what OpenTelemetry's own
/// messages make of it.
const COLLECTOR: &str = "
import http.server
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest as Export
class Collector(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        export = Export.FromString(self.rfile.read(int(self.headers['content-length'])))
        labels = lambda of: ' '.join(f'{pair.key}={pair.value.string_value}' for pair in of.attributes)
        [resource] = export.resource_metrics
        print(labels(resource.resource))
        for metric in resource.scope_metrics[0].metrics:
            kind = metric.WhichOneof('data')
            for point in getattr(metric, kind).data_points:
                assert 0 < point.start_time_unix_nano <= point.time_unix_nano
                number = point.as_int if kind != 'histogram' else f'{point.count} in {len(point.bucket_counts)} of {len(point.explicit_bounds)}'
                print(metric.name, kind, metric.unit, labels(point), number)
        self.send_response(200); self.end_headers()
    def log_message(self, *_): pass
server = http.server.HTTPServer(('127.0.0.1', 4318), Collector)
print('listening', flush=True)
server.handle_request()
";

#[test]
fn exported_metrics_are_read_by_opentelemetrys_own_messages() {
    let lab = Lab::with_web();
    let file = lab.file("collector.py", COLLECTOR).display().to_string();
    let policy = lab
        .file("policy.yaml", "network_policies: {}\n")
        .display()
        .to_string();
    let got = lab.folder("got").join("export").display().to_string();
    let printed = lab.shell(&format!(
        "{} {file} > {got} 2>&1 & until grep -q listening {got}; do sleep 0.01; done; \
         OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318 OTEL_RESOURCE_ATTRIBUTES=team=a {} \
         --name web -p {policy} --label user=kim -- curl -s https://example.com; wait; cat {got}",
        made("python/bin/python").display(),
        lab.binary()
    ));
    for line in [
        concat!(
            "service.name=openshell-sandbox service.version=",
            env!("CARGO_PKG_VERSION"),
            " service.instance.id=web team=a"
        ),
        "openshell_sandbox_decisions sum  layer=l4 decision=deny reason_code=no_network_policies 1",
        "openshell_sandbox_policy_generation gauge   1",
        "openshell_sandbox_decision_seconds histogram s  1 in 12 of 11",
        "openshell_sandbox_bytes sum By direction=sent 0",
    ] {
        assert!(printed.contains(&format!("{line}\n")), "{line}\n{printed}");
    }
    assert!(!printed.contains("kim"), "{printed}");
}
