//! Variables of the workload's environment that nobody outside may set: each has programs run other code, or lead connections
//! past the proxy.

/// Prefixes of names: the loader's, the sandbox's own, and git's configuration.
const PREFIXES: &[&str] = &["LD_", "DYLD_", "OPENSHELL_", "GIT_CONFIG_"];

/// Whole names.
const NAMES: &[&str] = &[
    "GCONV_PATH",
    "BASH_ENV",
    "ENV",
    "PYTHONPATH",
    "PYTHONSTARTUP",
    "PYTHONHOME",
    "NODE_OPTIONS",
    "RUBYOPT",
    "RUBYLIB",
    "PERL5OPT",
    "PERL5LIB",
    "JAVA_TOOL_OPTIONS",
    "GIT_SSH",
    "GIT_SSH_COMMAND",
    "GIT_EXEC_PATH",
];

/// True if a gateway, a client or a user outside may not set the variable `name`; also if it is no name of a variable.
#[must_use]
pub fn is_refused(name: &str) -> bool {
    name.is_empty()
        || name.contains(['=', '\0'])
        || name.to_ascii_lowercase().ends_with("_proxy")
        || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || NAMES.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::is_refused;

    #[test]
    fn what_would_run_other_code_or_lead_past_the_proxy_is_refused() {
        for name in
            ["LD_PRELOAD", "DYLD_X", "OPENSHELL_X", "HTTP_PROXY", "no_proxy", "BASH_ENV", "GIT_CONFIG_COUNT", "", "A=B"]
        {
            assert!(is_refused(name), "{name}");
        }
        for name in ["TOKEN", "LANG", "GIT_AUTHOR_NAME", "LDFLAGS", "ENVIRONMENT"] {
            assert!(!is_refused(name), "{name}");
        }
    }
}
