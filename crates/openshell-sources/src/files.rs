//! The input files as the first source: read at the start, and again for each SIGHUP.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use anyhow::Context as _;
use openshell_events::words::{ConfigState, Severity};
use openshell_supervisor::files::protected::Protection;
use openshell_telemetry::logging;
use tokio::sync::Notify;

use crate::input::Phase;
use crate::policy::Compile;
use crate::policy::policy_file::{Policy, PolicyFiles};
use crate::secrets::credential_file::{CredentialSources, OpenedCredentials};
use crate::secrets::route_file::RouteSet;
use crate::update::{Answer, Initial, Reloads, Source, Update};

/// The files that are read again. Routes are read only at the start.
pub struct Files {
    paths: Arc<Paths>,
    /// The protection of the files from the workload, once the workload runs.
    protection: Arc<OnceLock<Protection>>,
    wanted: Arc<Notify>,
    reloads: Arc<Reloads>,
    /// The generation in force.
    generation: u64,
}

struct Paths {
    policy: PolicyFiles,
    credentials: Option<CredentialSources>,
}

/// An input that could not be read.
struct ReadError {
    part: &'static str,
    error: anyhow::Error,
}

impl Files {
    /// Reads what a sandbox starts with besides its policy, and logs it.
    ///
    /// # Errors
    /// Fails if the policy could not be read or is invalid, with every violation; or if a secret is
    /// missing or invalid.
    pub fn open<C: Compile>(
        policy: Policy<C>,
        credentials: Option<OpenedCredentials>,
        routes: Option<RouteSet>,
    ) -> anyhow::Result<(Self, Initial<C>)> {
        let Policy {
            files: policy,
            version,
        } = policy;
        let version = version?;
        version.report.log("policy loaded");
        let (file, credentials) = credentials
            .map(OpenedCredentials::resolve)
            .transpose()?
            .unzip();
        let paths = Arc::new(Paths {
            policy,
            credentials: file,
        });
        let files = Self {
            paths,
            protection: Arc::default(),
            wanted: Arc::default(),
            reloads: Arc::default(),
            generation: version.compiled.generation(),
        };
        let reloads = Arc::clone(&files.reloads);
        Ok((
            files,
            Initial {
                policy: version,
                credentials,
                routes,
                reloads,
            },
        ))
    }

    /// Lets files be read again only while `protection` keeps the workload from changing them.
    pub fn protect(&self, protection: Protection) {
        // A sandbox is confined only once.
        let _ = self.protection.set(protection);
    }

    /// Returns the handle that triggers reading the files again. All requests during a reload are
    /// served by one reload after it.
    pub fn reload(&self) -> Arc<Notify> {
        Arc::clone(&self.wanted)
    }

    fn log_failure(&self, ReadError { part, error }: &ReadError) {
        let generation = self.generation;
        let kept =
            format!("keeping last-known-good policy [generation:{generation} error:{error:#}]");
        logging::config_event(
            ConfigState::Failed,
            Severity::Medium,
            &format!("{part} reload failed, {kept}"),
        );
    }
}

impl Paths {
    fn read(&self, protection: Option<&Protection>) -> Result<Update, ReadError> {
        let failed = |part| move |error| ReadError { part, error };
        let protection = protection
            .context("the sandbox is not confined yet")
            .map_err(failed("Policy"))?;
        protection
            .verify()
            .map_err(anyhow::Error::from)
            .map_err(failed("Policy"))?;
        let credentials = self
            .credentials
            .as_ref()
            .map(|sources| sources.reload(protection))
            .transpose();
        let credentials = credentials.map_err(failed("Credentials"))?;
        let policy = self.policy.read(Phase::Reload).map_err(failed("Policy"))?;
        Ok(Update {
            policy: Some(policy),
            credentials,
            ..Update::default()
        })
    }
}

impl Source for Files {
    async fn next(&mut self) -> Update {
        loop {
            self.wanted.notified().await;
            let paths = Arc::clone(&self.paths);
            let protection = Arc::clone(&self.protection);
            // Reading takes time; connections must not wait for it.
            match tokio::task::spawn_blocking(move || paths.read(protection.get())).await {
                Ok(Ok(update)) => return update,
                Ok(Err(error)) => {
                    self.reloads.failed.fetch_add(1, Ordering::Relaxed);
                    self.log_failure(&error);
                }
                Err(error) => tracing::error!("reading the policy again failed: {error}"),
            }
        }
    }

    fn answered(&mut self, answer: Answer) {
        match answer {
            Answer::Applied { generation } => self.generation = generation,
            Answer::Rejected(error) => self.log_failure(&ReadError {
                part: "Policy",
                error,
            }),
        }
    }
}
