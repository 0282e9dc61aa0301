//! The sandbox as PID 1 of an OCI runtime's containers.

use std::time::Instant;

use lab::Lab;
use lab::container::{Container, DEFAULT, DOCUMENTED};

use super::results::{self, MB, MILLI};
use super::{init_of, pairs, pss};

/// Containers at once.
const MANY: usize = 200;

const SANDBOX: &[&str] = &[
    "/box/openshell-sandbox",
    "-p",
    "/box/policy.yaml",
    "--workdir",
    "/tmp",
    "--",
];

fn container(lab: &Lab) -> Container {
    let policy = lab.file("policy.yaml", "network_policies: {}\n");
    let binds = vec![
        (lab.program_path(), "/box/openshell-sandbox".into()),
        (policy, "/box/policy.yaml".into()),
    ];
    Container {
        binds,
        ..Container::new(0, &[DEFAULT, DOCUMENTED])
    }
}

/// A container that runs /bin/true in a sandbox, to one that runs it alone.
pub(crate) fn start(name: &str) {
    let lab = Lab::new(&[]);
    let container = container(&lab);
    let script = |words: &[&str]| container.script(&lab, words);
    let alone = script(&["/bin/true"]);
    let confined = script(&[SANDBOX, &["/bin/true"]].concat());
    // The mean of ten, as the noise of one is too large.
    let seconds = |script: &str| {
        let begun = Instant::now();
        let printed = lab.shell(&format!(
            "for _ in $(seq 10); do {script} || exit; done; echo done"
        ));
        assert!(printed.ends_with("done\n"), "{printed}");
        begun.elapsed().as_secs_f64() / 10.0
    };
    pairs(name, MILLI, || seconds(&alone), || seconds(&confined));
}

/// Memory of the supervisor and init of each of [`MANY`] containers.
pub(crate) fn memory(name: &str) {
    let lab = Lab::new(&[]);
    let container = container(&lab);
    let script = container.script(
        &lab,
        &[SANDBOX, &["sh", "-c", "echo started; exec sleep 600"]].concat(),
    );
    let folder = lab.folder("out").display().to_string();
    let runs: String = (0..MANY)
        .map(|n| format!("{script} > {folder}/{n} 2>&1 & echo $!; "))
        .collect();
    let waits =
        format!("until [ $(cat {folder}/* | grep -c '^started') = {MANY} ]; do sleep 0.1; done");
    let started = lab.program(&[
        "sh",
        "-c",
        &format!("({runs}) > {folder}/pids; {waits}; echo all; wait"),
    ]);
    let runtimes = std::fs::read_to_string(format!("{folder}/pids")).unwrap();
    // The runtime's child is the supervisor, PID 1 of its container.
    let supervisors: Vec<u32> = runtimes
        .lines()
        .map(|pid| init_of(pid.parse().unwrap()))
        .collect();
    let mut sizes: Vec<f64> = supervisors
        .iter()
        .map(|pid| pss(*pid) + pss(init_of(*pid)))
        .collect();
    sizes.sort_by(f64::total_cmp);
    results::figure(name, sizes[MANY / 2], MB);
    let all: Vec<_> = supervisors.iter().map(u32::to_string).collect();
    // Each ends its container.
    assert_eq!(lab.shell(&format!("kill -KILL {}", all.join(" "))), "");
    drop(started);
}
