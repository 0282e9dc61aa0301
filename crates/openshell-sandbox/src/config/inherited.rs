//! What the command inherits from the caller's environment.

use std::ffi::OsStr;

use openshell_sources::secrets::credential_file::OpenedCredentials;
use openshell_sources::secrets::environment_secrets;
use openshell_sources::secrets::route_file::RouteSet;
use openshell_sources::variables;
use openshell_supervisor::command::environment::Environment;

use crate::cli::EnvironmentArgs;

/// The variables that the command inherits, and the credentials that it must not see.
pub(super) struct Inherited {
    pub(super) environment: Environment,
    pub(super) credentials: Option<OpenedCredentials>,
}

/// Takes the secrets of `routes` and of credentials out of `environment`, and adds the variables
/// that `args` give. Adds a warning for secrets that remain.
///
/// # Errors
/// Fails if a file cannot be read, or a variable is refused.
pub(super) fn inherited(
    args: EnvironmentArgs,
    routes: Option<&RouteSet>,
    mut environment: Environment,
    warnings: &mut Vec<String>,
) -> anyhow::Result<Inherited> {
    let has_credentials = args.credentials.is_some() || args.secrets_from_env;
    let credentials =
        has_credentials.then(|| OpenedCredentials::open(args.credentials, &mut environment));
    let mut credentials = credentials.transpose()?;
    for name in routes.iter().flat_map(|routes| &routes.variables) {
        environment.discard(OsStr::new(name));
    }
    let given = variables::given(&args.env, args.env_file.as_deref(), &environment)?;
    // The user meant the variables that are given, so they are not searched for secrets.
    for (name, _) in &given {
        environment.discard(name);
    }
    if let Some(credentials) = credentials.as_mut()
        && args.secrets_from_env
    {
        let mut urls = if args.clear_env {
            Environment::default()
        } else {
            environment.clone()
        };
        for (name, value) in given.iter() {
            urls.set(name, value);
        }
        credentials.take_secrets(&mut environment, &urls);
    }
    let mut environment = if args.clear_env {
        environment.cleared()
    } else {
        environment
    };
    let secrets = environment_secrets::listed(&environment);
    if !secrets.is_empty() {
        warnings.push(format!(
            "variables of the command look like secrets: {secrets}; --secrets-from-env gives it \
             placeholders, --clear-env keeps them out"
        ));
    }
    for (name, value) in given {
        environment.set(name, value);
    }
    if let Some(routes) = routes {
        let is_placeholder = |name: &str| {
            credentials
                .as_ref()
                .is_some_and(|credentials| credentials.has(name))
        };
        routes.set_client_variables(&mut environment, is_placeholder);
    }
    Ok(Inherited {
        environment,
        credentials,
    })
}
