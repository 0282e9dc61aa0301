//! The questions of `init`.

use std::io::{BufRead, Read};
use std::path::PathBuf;

use anyhow::bail;
use openshell_sources::policy::composed::Allowed;
use openshell_telemetry::logging::print_stderr;

use super::agents::{self, NO_AGENT};
use crate::cli::allowed;
use crate::config::variable_of_client;

/// What was answered.
pub(super) struct Answers {
    pub(super) agent: String,
    pub(super) allow: Vec<Allowed>,
    pub(super) write: Vec<PathBuf>,
    pub(super) read: Vec<PathBuf>,
    pub(super) hide: Vec<PathBuf>,
}

/// The most bytes of an answer, line feed included: what a terminal takes as one line.
const ANSWER: u64 = 4096;

/// Asks all questions on standard error. An answer that is not understood is asked for again.
///
/// # Errors
/// Fails if `input` ends, or an answer is too long or not text.
pub(super) fn ask(input: &mut impl BufRead) -> anyhow::Result<Answers> {
    print_stderr(
        "The command will be able to read and write this folder. Each answer may be empty; \
         separate several by commas.",
    );
    let path = variable_of_client("PATH").unwrap_or_default();
    let usual = agents::installed(&path).unwrap_or(NO_AGENT);
    let question = format!(
        "Which agent works here ({})? [{usual}]",
        agents::names().join(", ")
    );
    Ok(Answers {
        agent: until_understood(input, &question, |answer| match answer {
            "" => Ok(usual.to_owned()),
            name if agents::names().contains(&name) => Ok(name.to_owned()),
            other => Err(format!("`{other}` is not in the list")),
        })?,
        allow: until_understood(
            input,
            "Which hosts may it reach besides the agent's own, such as docs.example.com=read-only \
             or api.example.com?",
            |answer| items(answer).map(allowed).collect(),
        )?,
        write: paths(input, "Which other folders may it write?")?,
        read: paths(input, "Which other files or folders may it read?")?,
        hide: paths(
            input,
            "Which files may it not see, such as **/.env or secrets/?",
        )?,
    })
}

fn paths(input: &mut impl BufRead, question: &str) -> anyhow::Result<Vec<PathBuf>> {
    until_understood(input, question, |answer| {
        Ok(items(answer).map(PathBuf::from).collect())
    })
}

/// Returns the parts of an answer that are not empty.
fn items(answer: &str) -> impl Iterator<Item = &str> {
    let items = answer.split(',').map(str::trim);
    items.filter(|item| !item.is_empty())
}

/// Asks until `understand` accepts the answer.
fn until_understood<T>(
    input: &mut impl BufRead,
    question: &str,
    understand: impl Fn(&str) -> Result<T, String>,
) -> anyhow::Result<T> {
    loop {
        print_stderr(question);
        let mut line = String::new();
        Read::take(&mut *input, ANSWER).read_line(&mut line)?;
        let Some(answer) = line.strip_suffix('\n') else {
            bail!("init: the answers ended; nothing was written");
        };
        match understand(answer.trim()) {
            Ok(understood) => return Ok(understood),
            Err(problem) => print_stderr(&format!("  {problem}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ask;

    #[test]
    fn an_answer_that_is_not_understood_is_asked_for_again() {
        let mut input = "vim\ncodex\nexample.com=all\nexample.com=full, docs.example.com:8443\n\n\
                         ~/notes\n**/.env,secrets/\n"
            .as_bytes();
        let answers = ask(&mut input).unwrap();
        assert_eq!(answers.agent, "codex");
        assert_eq!(answers.allow.len(), 2);
        assert_eq!(answers.allow[1].port.get(), 8443);
        assert!(answers.write.is_empty());
        assert_eq!(answers.read.len(), 1);
        assert_eq!(answers.hide.len(), 2);
        assert!(input.is_empty());
    }

    #[test]
    fn answers_that_end_early_or_have_no_end_are_an_error() {
        assert!(ask(&mut "none\n".as_bytes()).is_err());
        assert!(ask(&mut "none\nexample.com".as_bytes()).is_err());
        assert!(ask(&mut std::io::BufReader::new(std::io::repeat(b'a'))).is_err());
        assert!(ask(&mut b"\xff\xfe\n".as_slice()).is_err());
    }
}
