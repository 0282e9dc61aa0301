//! What bash, zsh and fish complete on a command line of the program.

use std::path::Path;

use lab::{Lab, Sandbox};

/// Types lines with a tabulator behind them into an interactive shell, and prints what the shell
/// makes of each.
const TYPIST: &str = r#"
import os, pty, select, sys, time
shell, ready, *lines = sys.argv[1:]
pid, terminal = pty.fork()
if pid == 0:
    os.environ.update(PS1='$ ', TERM='dumb', PROMPT_EOL_MARK='')
    os.execvp(shell, [shell, '--norc' if shell == 'bash' else '-f', '-i'])
shown = ''
def until(text):
    global shown
    deadline = time.monotonic() + 60
    while text not in shown:
        if time.monotonic() > deadline: sys.exit(f'no {text!r} in {shown!r}')
        if not select.select([terminal], [], [], 1)[0]: continue
        shown += os.read(terminal, 4096).decode(errors='replace')
    before, shown = shown.split(text, 1)
    return before
os.write(terminal, (ready + "; echo RE''ADY\n").encode())
until('READY')
for number, line in enumerate(lines):
    # The line becomes an argument of echo, from its start to its end.
    os.write(terminal, (line + '\t').encode() + f"\x01echo 'GOT'{number}: \x05 'E'ND{number}\n".encode())
    until(f'GOT{number}: ')
    print(until(f' END{number}').strip())
"#;

/// Each line that is typed, and what it becomes.
const LINES: &[(&str, &str)] = &[
    ("openshell-sandbox che", "openshell-sandbox check"),
    (
        "openshell-sandbox explain --bina",
        "openshell-sandbox explain --binary",
    ),
    (
        "openshell-sandbox --observe-f",
        "openshell-sandbox --observe-files",
    ),
    (
        "openshell-sandbox --preset cla",
        "openshell-sandbox --preset claude-code",
    ),
    (
        "openshell-sandbox --preset=git-r",
        "openshell-sandbox --preset=git-read",
    ),
    (
        "openshell-sandbox --preset mine_",
        "openshell-sandbox --preset mine_1",
    ),
    (
        "openshell-sandbox presets make py",
        "openshell-sandbox presets make python",
    ),
    (
        "openshell-sandbox exec web-",
        "openshell-sandbox exec web-1",
    ),
    ("openshell-sandbox cp web-", "openshell-sandbox cp web-1:"),
    (
        "openshell-sandbox exec --workd",
        "openshell-sandbox exec --workdir",
    ),
    (
        "openshell-sandbox --allow a.test -- sha512su",
        "openshell-sandbox --allow a.test -- sha512sum",
    ),
    (
        "openshell-sandbox exec web-1 -- git checkou",
        "openshell-sandbox exec web-1 -- git checkout",
    ),
];

/// A host with a running sandbox `web-1`, a preset `mine_1`, and presets whose names are attacks.
fn host(lab: &Lab) -> String {
    let bin = lab.folder("bin");
    std::os::unix::fs::symlink(lab.program_path(), bin.join("openshell-sandbox")).unwrap();
    let presets = lab.folder("config/openshell/presets");
    for name in [
        "mine_1",
        "mine_$(touch hit)",
        "mine_`touch hit`",
        "mine_ b",
        "mine_';touch hit'",
    ] {
        let preset = presets.join(format!("{name}.yaml"));
        std::fs::write(preset, "# Mine.\nnetwork_policies: {}\n").unwrap();
    }
    let shown = lab.folder("config").display().to_string();
    let home = lab.folder("home");
    std::os::unix::fs::chown(&home, Some(lab::host::UID), None).unwrap();
    format!(
        "chmod -R a+rX {shown} {}; cd {home} && {} env HOME={home} XDG_CONFIG_HOME={shown} \
         PATH={}:/usr/bin:/bin",
        bin.display(),
        lab.as_caller(),
        bin.display(),
        home = home.display(),
    )
}

fn script(name: &str) -> String {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/completions");
    std::fs::canonicalize(data.join(name))
        .unwrap()
        .display()
        .to_string()
}

/// Runs `completed` with the words that start a program on a host with a running sandbox.
fn on_host(completed: impl Fn(&Lab, &str)) {
    let lab = Lab::with_web();
    let host = host(&lab);
    let project = lab.folder("project").display().to_string();
    let flags = [
        "--name",
        "web-1",
        "--allow",
        "a.test",
        "--workdir",
        &project,
    ];
    let running = Sandbox::bare(&lab).args(&flags).start(&["sleep", "1000"]);
    let listed = || lab.shell(&format!("{host} openshell-sandbox ps"));
    lab::wait_until(|| listed().contains("web-1"), listed);
    completed(&lab, &host);
    drop(running);
    assert!(!lab.folder("home").join("hit").exists());
}

/// Types each of `lines` into `shell` after the line `ready`, and compares what it becomes.
fn is_typed(shell: &str, ready: &str, lines: &[(&str, &str)]) {
    on_host(|lab, host| {
        let typist = lab.file("typist.py", TYPIST);
        let typist = typist.display();
        let typed = lines.iter().map(|(line, _)| format!("'{line}'"));
        let typed = typed.collect::<Vec<_>>().join(" ");
        let printed = lab.shell(&format!(
            "{host} /usr/bin/python3 {typist} {shell} '{ready}' {typed}"
        ));
        // Zsh adds the sign that a value follows.
        let made = printed
            .lines()
            .map(|line| line.trim_end_matches(['=', ' ']));
        let expected: Vec<_> = lines.iter().map(|(_, line)| *line).collect();
        assert_eq!(made.collect::<Vec<_>>(), expected, "{printed}");
    });
}

#[test]
fn bash_completes_subcommands_options_presets_sandboxes_and_the_command() {
    let script = script("openshell-sandbox.bash");
    is_typed(
        "bash",
        &format!("source /usr/share/bash-completion/bash_completion; source {script}"),
        LINES,
    );
    let file = "touch \"res\\$(touch hit).txt\"";
    // Echo shows the name; unquoted, it would show what `touch` prints.
    let quoted = "res$(touch hit).txt";
    is_typed(
        "bash",
        &format!("source {script}; {file}"),
        &[
            (
                "openshell-sandbox cp res",
                &format!("openshell-sandbox cp {quoted}"),
            ),
            (
                "openshell-sandbox -p res",
                &format!("openshell-sandbox -p {quoted}"),
            ),
            (
                "openshell-sandbox --write res",
                &format!("openshell-sandbox --write {quoted}"),
            ),
            (
                "openshell-sandbox --preset git-read,cla",
                "openshell-sandbox --preset git-read,claude-code",
            ),
        ],
    );
}

#[test]
fn zsh_completes_subcommands_options_presets_sandboxes_and_the_command() {
    let script = script("_openshell-sandbox");
    let folder = Path::new(&script).parent().unwrap().display();
    is_typed(
        "zsh",
        &format!("fpath=({folder} $fpath); autoload -Uz compinit; compinit -u -D"),
        LINES,
    );
}

#[test]
fn fish_completes_subcommands_options_presets_sandboxes_and_the_command() {
    let script = script("openshell-sandbox.fish");
    on_host(|lab, host| {
        for (line, expected) in LINES {
            let printed = lab.shell(&format!(
                "{host} fish -c \"source {script}; complete -C '{line}'\""
            ));
            let mut words = printed.lines().filter_map(|line| line.split('\t').next());
            let last = expected.split(' ').next_back().unwrap();
            assert!(words.any(|word| word == last), "{line}: {printed}");
        }
    });
}
