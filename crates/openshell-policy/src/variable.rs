//! Variables of the workload's environment that nobody outside may set, because they make programs
//! run other code or lead connections past the proxy.

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

/// Variables that name the complete set of trusted certificates. A value other than the sandbox's
/// would bypass its authority.
pub const BUNDLE: &[&str] = &[
    "AWS_CA_BUNDLE",
    "CARGO_HTTP_CAINFO",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "NIX_SSL_CERT_FILE",
    "NPM_CONFIG_CAFILE",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_FILE",
];

/// Variables that name certificates to be trusted in addition to a program's own.
pub const AUTHORITY: &[&str] = &["DENO_CERT", "NODE_EXTRA_CA_CERTS"];

/// Returns true if a gateway, a client or a user outside must not set the variable `name`, or if
/// `name` is not a valid name of a variable.
#[must_use]
pub fn is_refused(name: &str) -> bool {
    name.is_empty()
        || name.contains(['=', '\0'])
        || name.to_ascii_lowercase().ends_with("_proxy")
        || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || [NAMES, BUNDLE, AUTHORITY, &["SSL_CERT_DIR"]]
            .iter()
            .any(|names| names.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::is_refused;

    #[test]
    fn what_would_run_other_code_or_lead_past_the_proxy_is_refused() {
        for name in [
            "LD_PRELOAD",
            "DYLD_X",
            "OPENSHELL_X",
            "HTTP_PROXY",
            "no_proxy",
            "BASH_ENV",
            "GIT_CONFIG_COUNT",
            "SSL_CERT_FILE",
            "",
            "A=B",
        ] {
            assert!(is_refused(name), "{name}");
        }
        for name in ["TOKEN", "LANG", "GIT_AUTHOR_NAME", "LDFLAGS", "ENVIRONMENT"] {
            assert!(!is_refused(name), "{name}");
        }
    }
}
