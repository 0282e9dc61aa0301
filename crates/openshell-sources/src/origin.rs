//! The origin of the policy, credentials and routes in force: files, or a gateway.

use std::sync::Arc;

use openshell_gateway::logs::Lines;
use openshell_supervisor::files::protected::Protection;
use tokio::sync::{Notify, mpsc};

use crate::files::Files;
use crate::gateway::launcher::Place;
use crate::gateway::routes::RouteSource;
use crate::gateway::start::{self, Opened, Options};
use crate::gateway::{GatewaySource, Receiver};
use crate::policy::Compile;
use crate::policy::policy_file::{Policy, PolicyFiles};
use crate::secrets::credential_file::OpenedCredentials;
use crate::secrets::route_file::RouteSet;
use crate::tasks::Tasks;
use crate::update::{self, Initial, Request};

/// The origin that a command line or its environment names.
pub enum Origin<C> {
    /// Files; the policy has been read from them already.
    Files(Box<Policy<C>>),
    /// A gateway, which is asked once the sandbox's network is being made.
    Gateway {
        /// The gateway's place.
        place: Place,
        /// The context of the gateway's policies.
        files: Box<PolicyFiles>,
    },
}

impl<C: Compile> Origin<C> {
    /// Returns the files of the policy, or the context of a gateway's policies.
    pub fn files(&self) -> &PolicyFiles {
        match self {
            Self::Files(policy) => &policy.files,
            Self::Gateway { files, .. } => files,
        }
    }

    /// Returns the gateway's place, if the origin is a gateway.
    pub fn place(&self) -> Option<&Place> {
        match self {
            Self::Files(_) => None,
            Self::Gateway { place, .. } => Some(place),
        }
    }

    /// Reads what a sandbox starts with, or asks the gateway for it.
    ///
    /// # Errors
    /// Fails if the policy is invalid, a secret is missing, or the gateway cannot be reached.
    pub async fn open(
        self,
        secrets: Secrets,
        tasks: &mut Tasks,
    ) -> anyhow::Result<(Sources, Initial<C>, Option<Receiver>)> {
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
pub struct Secrets {
    /// Credentials that the command may use but never sees.
    pub credentials: Option<OpenedCredentials>,
    /// Models with their keys.
    pub routes: Option<RouteSet>,
    /// The gateway, with the sources of its tokens.
    pub gateway: Option<Options>,
    /// Log lines for the gateway.
    pub lines: Option<Lines>,
}

/// The sources of one sandbox.
pub enum Sources {
    /// Files, which are read again.
    Files(Files),
    /// A gateway, and its routes unless those are in a file.
    Gateway(Box<GatewaySource>, Option<RouteSource>),
}

impl Sources {
    /// Returns the handle that triggers reading the sources again.
    pub fn reload(&self) -> Arc<Notify> {
        match self {
            Self::Files(files) => files.reload(),
            Self::Gateway(source, _) => source.reload(),
        }
    }

    /// Starts the tasks that request the updates of the sources. Files are read only while
    /// `protection` keeps the workload from changing them.
    pub fn follow(
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
