//! The origin of what is in force: files, or a gateway.

use std::sync::Arc;

use openshell_gateway::logs::Lines;
use openshell_supervisor::files::protected::Protection;
use tokio::sync::{Notify, mpsc};

use crate::gateway_reports::denials::Receiver;
use crate::sources::credential_file::OpenedCredentials;
use crate::sources::files::Files;
use crate::sources::gateway::GatewaySource;
use crate::sources::gateway::launcher::Place;
use crate::sources::gateway::routes::RouteSource;
use crate::sources::gateway::start::{self, Opened, Options};
use crate::sources::policy_file::{Policy, PolicyFiles};
use crate::sources::route_file::RouteSet;
use crate::sources::update::{self, Initial, Request};
use crate::tasks::Tasks;

/// The origin that a command line or its environment names.
pub(crate) enum Origin {
    /// Files, of which the policy has been read.
    Files(Box<Policy>),
    /// A gateway, which is asked once the sandbox's network is under way; `files` are the context
    /// of its policies.
    Gateway {
        place: Place,
        files: Box<PolicyFiles>,
    },
}

impl Origin {
    /// The files of the policy, or the context of a gateway's.
    pub(crate) fn files(&self) -> &PolicyFiles {
        match self {
            Self::Files(policy) => &policy.files,
            Self::Gateway { files, .. } => files,
        }
    }

    /// The gateway's place, if it is one.
    pub(crate) fn place(&self) -> Option<&Place> {
        match self {
            Self::Files(_) => None,
            Self::Gateway { place, .. } => Some(place),
        }
    }

    /// Reads, or asks for, what a sandbox starts with.
    ///
    /// # Errors
    /// The policy is invalid, a secret is missing, or the gateway cannot be reached.
    pub(crate) async fn open(
        self,
        secrets: Secrets,
        tasks: &mut Tasks,
    ) -> anyhow::Result<(Sources, Initial, Option<Receiver>)> {
        match (self, secrets.gateway) {
            (Self::Gateway { files, .. }, Some(options)) => {
                let Opened {
                    source,
                    routes,
                    initial,
                    receiver,
                } = Box::pin(start::open(options, *files, secrets.routes, tasks)).await?;
                Ok((
                    Sources::Gateway(Box::new(source), routes),
                    initial,
                    Some(receiver),
                ))
            }
            (Self::Files(policy), _) => {
                let (files, initial) = Files::open(*policy, secrets.credentials, secrets.routes)?;
                Ok((Sources::Files(files), initial, None))
            }
            (Self::Gateway { .. }, None) => anyhow::bail!("the gateway is not known"),
        }
    }
}

/// Inputs that hold secrets.
#[derive(Debug, Default)]
pub(crate) struct Secrets {
    /// Credentials that the command may use without having them.
    pub(crate) credentials: Option<OpenedCredentials>,
    /// Models with their keys.
    pub(crate) routes: Option<RouteSet>,
    /// The gateway, with the sources of its tokens.
    pub(crate) gateway: Option<Options>,
    /// Log lines for it.
    pub(crate) lines: Option<Lines>,
}

/// The sources of one sandbox.
pub(crate) enum Sources {
    Files(Files),
    Gateway(Box<GatewaySource>, Option<RouteSource>),
}

impl Sources {
    /// Returns the handle that has the sources read again.
    pub(crate) fn reload(&self) -> Arc<Notify> {
        match self {
            Self::Files(files) => files.reload(),
            Self::Gateway(source, _) => source.reload(),
        }
    }

    /// Starts the tasks that request the updates of the sources. Files are read only as long as
    /// `protection` keeps the workload from changing them.
    pub(crate) fn follow(
        self,
        requests: mpsc::Sender<Request>,
        protection: Protection,
        tasks: &mut Tasks,
    ) {
        match self {
            Self::Files(files) => {
                files.protect(protection);
                tasks.spawn("policy source", update::forward(files, requests));
            }
            Self::Gateway(source, routes) => {
                if let Some(routes) = routes {
                    tasks.spawn(
                        "routes of the gateway",
                        update::forward(routes, requests.clone()),
                    );
                }
                tasks.spawn("policy of the gateway", update::forward(*source, requests));
            }
        }
    }
}
