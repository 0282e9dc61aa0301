//! Looks up a program that helps the supervisor.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD};

use super::wire::Program;
use crate::paths::trusted_symlinks::resolve_unwritable;

/// The variable that names the folders of programs.
const PATH: &str = "PATH";

/// Variables that name places of programs and code, separated by colons: PATH, and those that make
/// interpreters and the dynamic linker execute what lies there.
const PLACES: [&str; 11] = [
    PATH,
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "PYTHONPATH",
    "PYTHONHOME",
    "NODE_PATH",
    "PERL5LIB",
    "RUBYLIB",
    "BASH_ENV",
    "ENV",
    "GCONV_PATH",
];

/// Variables of words, each of which may name a file that an interpreter executes.
const OPTIONS: [&str; 7] = [
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "NODE_OPTIONS",
    "PERL5OPT",
    "PYTHONSTARTUP",
    "RUBYOPT",
    "_JAVA_OPTIONS",
];

/// Returns the caller's variables that [`find`] looks at, because what they name is executed.
pub fn executing() -> impl Iterator<Item = &'static str> {
    PLACES.into_iter().chain(OPTIONS)
}

/// Why a program cannot be used.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum Unusable {
    #[error("it names no program")]
    Empty,
    #[error("there is no program {0} in PATH")]
    NotFound(String),
    #[error("{}: {source}", path.display())]
    Path { path: PathBuf, source: io::Error },
    #[error("what runs inside can write {}, so it must not run outside", .0.display())]
    Writable(PathBuf),
    #[error("{} is no program that you may execute", .0.display())]
    NoProgram(PathBuf),
}

/// Looks up the first of `words` in PATH. `variables` are the caller's values of [`executing`]. Places
/// that are relative, or where the workload can write (`is_writable`), are left out, and so are options
/// that name such a place.
///
/// # Errors
/// Fails if there is no such program, or if the workload can write it, a symlink on its way, or
/// another file that the words name.
pub fn find(
    words: &[String],
    variables: &[(&str, OsString)],
    is_writable: impl Fn(&Path) -> bool,
) -> Result<Program, Unusable> {
    let (name, arguments) = words.split_first().ok_or(Unusable::Empty)?;
    let kept = |text: &OsStr| -> Vec<_> {
        let places = env::split_paths(text);
        places
            .filter(|place| place.is_absolute() && !is_reached(place, &is_writable))
            .collect()
    };
    let search_path = variables.iter().find(|(name, _)| *name == PATH);
    let folders = search_path.map_or_else(Vec::new, |(_, text)| kept(text));
    let path = if name.contains('/') {
        let absolute = std::path::absolute(name);
        absolute.map_err(|source| Unusable::Path {
            path: name.into(),
            source,
        })?
    } else {
        let mut places = folders.iter().map(|folder| folder.join(name));
        let found = places.find(|path| is_executable(path));
        found.ok_or_else(|| Unusable::NotFound(name.clone()))?
    };
    let resolved = resolve_unwritable(&path, &is_writable);
    let resolved = resolved.map_err(|source| Unusable::Path {
        path: path.clone(),
        source,
    })?;
    if is_writable(&resolved) || is_writable(&path) {
        return Err(Unusable::Writable(path));
    }
    if !is_executable(&resolved) {
        return Err(Unusable::NoProgram(path));
    }
    // An interpreter executes the file that it is given.
    for argument in arguments {
        let file = std::path::absolute(argument).unwrap_or_default();
        if file.exists() && is_reached(&file, &is_writable) {
            return Err(Unusable::Writable(file));
        }
    }
    let variables = variables.iter().map(|(name, text)| {
        let value = if OPTIONS.contains(name) {
            let is_kept = !named(text).any(|place| is_reached(&place, &is_writable));
            is_kept.then(|| text.clone())
        } else {
            let places = env::join_paths(kept(text)).unwrap_or_default();
            Some(places).filter(|places| !places.is_empty())
        };
        (name.into(), value)
    });
    Ok(Program {
        path,
        arguments: words.iter().map(OsString::from).collect(),
        variables: variables.collect(),
    })
}

/// Returns the paths that options may name, also behind a letter or a scheme, and with what else could
/// separate words in them. A program starts in `/`.
fn named(options: &OsStr) -> impl Iterator<Item = PathBuf> {
    let options = options.as_bytes();
    let separates = |byte: &u8| byte.is_ascii_whitespace() || b"\"'=:,".contains(byte);
    let is_begin = move |at: usize| {
        let is_first = at == 0 || options.get(at - 1).is_some_and(separates);
        is_first || options.get(at) == Some(&b'/')
    };
    let is_end = move |at: usize| options.get(at).is_none_or(separates);
    let begins = (0..options.len()).filter(move |at| is_begin(*at));
    begins.flat_map(move |begin| {
        let ends = (begin + 1..=options.len()).filter(move |at| is_end(*at));
        let paths = ends.filter_map(move |end| options.get(begin..end));
        paths.map(|path| Path::new("/").join(OsStr::from_bytes(path)))
    })
}

/// Returns true if the workload can write `place`, or what lies in it.
fn is_reached(place: &Path, is_writable: impl Fn(&Path) -> bool) -> bool {
    let resolved = std::fs::canonicalize(place);
    is_writable(place) || resolved.is_ok_and(|resolved| is_writable(&resolved))
}

fn is_executable(path: &Path) -> bool {
    let is_file = std::fs::metadata(path).is_ok_and(|data| data.is_file());
    is_file && rustix::fs::accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS).is_ok()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    use super::{Unusable, find};

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    fn program(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "#!/bin/sh\n").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn what_the_workload_can_write_is_never_found() {
        let folder = tempfile::tempdir().unwrap();
        let [theirs, ours] = ["theirs", "ours"].map(|name| folder.path().join(name));
        program(&theirs.join("notify"));
        program(&ours.join("notify"));
        symlink(theirs.join("notify"), ours.join("link")).unwrap();
        symlink(&theirs, folder.path().join("way")).unwrap();
        let is_writable = |path: &Path| path.starts_with(&theirs);
        let path = format!(
            "bin:{}:{}/way:{}",
            theirs.display(),
            folder.path().display(),
            ours.display()
        );
        let places = [
            ("PATH", OsString::from(path)),
            ("PYTHONPATH", theirs.clone().into()),
        ];
        let found = find(&words(&["notify", "a b"]), &places, is_writable).unwrap();
        assert_eq!(found.path, ours.join("notify"));
        let kept = [
            ("PATH".into(), Some(ours.clone().into_os_string())),
            ("PYTHONPATH".into(), None),
        ];
        assert_eq!(found.variables, kept);
        assert_eq!(found.arguments, ["notify", "a b"]);
        let [script, link] = [theirs.join("notify"), ours.join("link")];
        let [script, link] = [&script, &link].map(|path| path.to_str().unwrap());
        for named in [
            &[script][..],
            &[link],
            &["notify", script],
            &["notify", link],
        ] {
            let refused = find(&words(named), &places, is_writable).unwrap_err();
            assert!(
                matches!(refused, Unusable::Writable(_) | Unusable::Path { .. }),
                "{refused}"
            );
        }
    }

    #[test]
    fn options_that_name_what_the_workload_can_write_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let [theirs, ours] = ["their, own=place", "ours"].map(|name| folder.path().join(name));
        program(&ours.join("notify"));
        program(&theirs.join("hook.js"));
        symlink(theirs.join("hook.js"), ours.join("link.js")).unwrap();
        let is_writable = |path: &Path| path.starts_with(&theirs);
        let [theirs, ours] = [&theirs, &ours].map(|path| path.to_str().unwrap());
        let kept = |name: &str, value: &str| {
            let variables = [("PATH", ours.into()), (name, value.into())];
            let found = find(&words(&["notify"]), &variables, is_writable).unwrap();
            found.variables[1].1.is_some()
        };
        for (name, value) in [
            ("NODE_OPTIONS", format!("--require {theirs}/hook.js")),
            (
                "NODE_OPTIONS",
                format!("--trace-gc --require={theirs}/hook.js"),
            ),
            ("NODE_OPTIONS", format!("--import file://{theirs}/hook.js")),
            ("NODE_OPTIONS", format!("-r \"{theirs}/hook.js\"")),
            ("NODE_OPTIONS", format!("-r {ours}/link.js")),
            ("NODE_OPTIONS", format!("-r .{theirs}/hook.js")),
            ("PERL5OPT", format!("-I{theirs} -Mhook")),
            ("RUBYOPT", format!("-r{theirs}/hook")),
            ("JAVA_TOOL_OPTIONS", format!("-javaagent:{theirs}/a.jar=b")),
            ("PYTHONSTARTUP", format!("{theirs}/start.py")),
        ] {
            assert!(!kept(name, &value), "{name}={value}");
        }
        for (name, value) in [
            ("NODE_OPTIONS", "--max-old-space-size=4096".to_owned()),
            ("NODE_OPTIONS", format!("--require {ours}/notify")),
            (
                "JAVA_TOOL_OPTIONS",
                "-Xmx1g -Dfile.encoding=UTF-8".to_owned(),
            ),
        ] {
            assert!(kept(name, &value), "{name}={value}");
        }
    }

    #[test]
    fn a_program_that_is_missing_or_none_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let places = [("PATH", folder.path().as_os_str().to_owned())];
        for (name, said) in [
            ("notify", "there is no program notify in PATH"),
            ("file", "there is no program file in PATH"),
            (file.to_str().unwrap(), "is no program that you may execute"),
            ("/no/such", "/no/such: "),
        ] {
            let refused = find(&words(&[name]), &places, |_| false).unwrap_err();
            assert!(refused.to_string().contains(said), "{refused}");
        }
        assert!(matches!(
            find(&[], &places, |_| false),
            Err(Unusable::Empty)
        ));
    }
}
