//! The policy of a command line: hosts, paths and presets, alone or beside a policy file.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use openshell_policy::yaml;

use crate::cli::{Access, Allowed, PolicyArgs};

/// Policies for usual needs, by name.
pub(crate) const PRESETS: &[(&str, &str)] = &[
    ("git-read", include_str!("../../../../data/presets/git-read.yaml")),
    ("github", include_str!("../../../../data/presets/github.yaml")),
    ("models", include_str!("../../../../data/presets/models.yaml")),
];

/// Returns the documents that `args` stand for; none if nothing is given. Without a policy file, `workdir` is the folder that may be
/// written.
///
/// # Errors
/// A preset is unknown, or a path is no text or cannot be made absolute.
pub(crate) fn documents(args: &PolicyArgs, workdir: Option<&Path>) -> anyhow::Result<Vec<String>> {
    if args.is_empty() {
        return Ok(Vec::new());
    }
    let preset = |name: &String| {
        let found = PRESETS.iter().find(|(known, _)| known == name).map(|(_, text)| (*text).to_owned());
        let known = || PRESETS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        found.with_context(|| format!("--preset {name} is unknown; there are {}", known()))
    };
    let mut documents: Vec<_> = args.preset.iter().map(preset).collect::<anyhow::Result<_>>()?;
    let writable: Vec<_> = workdir.map(Path::to_owned).into_iter().chain(args.write.iter().cloned()).collect();
    let mut folders = Vec::new();
    for (key, flag, paths) in
        [("read_write", "--write", &writable), ("read_only", "--read", &args.read), ("hidden", "--hide", &args.hide)]
    {
        let paths = paths.iter().map(|path| text_of(path, flag)).collect::<anyhow::Result<Vec<_>>>()?;
        if !paths.is_empty() {
            folders.push(format!("{key}: {}", serde_json::to_string(&paths)?));
        }
    }
    let mut document = format!("filesystem_policy: {{{}}}\n", folders.join(", "));
    document.push_str("network_policies:");
    match args.allow.as_slice() {
        [] => document.push_str(" {}\n"),
        allowed => {
            document.push_str("\n  command-line:\n    endpoints:\n");
            for allowed in allowed {
                writeln!(document, "      - {}", endpoint(allowed)?)?;
            }
            document.push_str("    binaries: [{path: \"/**\"}]\n");
        }
    }
    documents.push(document);
    Ok(documents)
}

/// Returns an absolute path as text.
fn text_of(path: &PathBuf, flag: &str) -> anyhow::Result<String> {
    let absolute = if path.starts_with("~") || path.starts_with("$WORKDIR") || path.starts_with("**") {
        path.clone()
    } else {
        std::path::absolute(path).with_context(|| format!("{flag} {}", path.display()))?
    };
    let absolute = absolute.into_os_string().into_string();
    absolute
        .map_err(|path| anyhow::anyhow!("{flag} {}: it is no UTF-8 text; name the folder around it", path.display()))
}

fn endpoint(Allowed { host, port, access }: &Allowed) -> anyhow::Result<String> {
    let rules = match access {
        None => "",
        Some(Access::Tcp) => ", protocol: tcp",
        Some(Access::ReadOnly) => ", protocol: rest, enforcement: enforce, access: read-only",
        Some(Access::ReadWrite) => ", protocol: rest, enforcement: enforce, access: read-write",
        Some(Access::Full) => ", protocol: rest, enforcement: enforce, access: full",
    };
    Ok(format!("{{host: {}, port: {port}{rules}}}", serde_json::to_string(host)?))
}

/// Joins a policy file's text, if there is one, and the documents of a command line.
///
/// # Errors
/// A document is invalid; those of the command line come from its values.
pub(crate) fn joined(file: Option<&str>, documents: &[String]) -> anyhow::Result<String> {
    let all: Vec<_> = file.into_iter().chain(documents.iter().map(String::as_str)).collect();
    yaml::merged(&all).context("--allow, --write, --read, --hide, --preset")
}

/// Returns the folder that may be written where no policy file is given.
///
/// # Errors
/// It is the root, or the home of whoever starts the sandbox, which is too much to be meant.
pub(crate) fn project(named: Option<&Path>, current: Option<&Path>, home: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(named) = named {
        return Ok(named.to_owned());
    }
    let current = current.context("the current directory is gone; name a folder with --workdir")?;
    if current == Path::new("/") || Some(current) == home {
        bail!(
            "without a policy file the command may write to the current directory, and that is {}; go to a project's, or name one with \
             --workdir",
            current.display()
        );
    }
    Ok(current.to_owned())
}
