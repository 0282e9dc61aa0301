//! The network of the command.

use anyhow::bail;
use openshell_proxy::credentials::leaks::detector::LeakMode;
use openshell_proxy::doors::dns::pool::NameAddresses;

use crate::cli::{Args, NetworkMode, Published};

/// The network of the command, and what the proxy does with its requests.
#[derive(Debug)]
pub(crate) struct NetworkOptions {
    pub(crate) mode: NetworkMode,
    /// Ports of servers inside, with their addresses outside.
    pub(crate) publish: Vec<Published>,
    pub(crate) name_addresses: NameAddresses,
    /// What happens to secrets in requests.
    pub(crate) leaks: LeakMode,
}

impl NetworkOptions {
    /// Reads the options. `has_routes` tells if there are routes to models.
    ///
    /// # Errors
    /// Fails if an option needs the proxy, and there is none.
    pub(super) fn read(args: &mut Args, has_routes: bool) -> anyhow::Result<Self> {
        let mode = args.network;
        if mode != NetworkMode::Proxy {
            let replaces = "only the proxy replaces placeholders";
            let environment = &args.environment;
            let needs = [
                (environment.credentials.is_some(), "--credentials", replaces),
                (environment.secrets_from_env, "--secrets-from-env", replaces),
                (
                    args.name_addresses.is_some(),
                    "--name-addresses",
                    "the other modes give names no addresses of the sandbox's own",
                ),
                (
                    !args.publish.is_empty(),
                    "--publish",
                    "with allow, servers inside use the host's network; with block, there is no \
                     network",
                ),
                (
                    has_routes,
                    "--inference-routes",
                    "only the proxy answers for inference.local",
                ),
            ];
            for (is_given, flag, why) in needs {
                if is_given {
                    bail!("{flag} needs --network proxy: {why}");
                }
            }
        }
        Ok(Self {
            mode,
            publish: std::mem::take(&mut args.publish),
            name_addresses: args.name_addresses.unwrap_or_default(),
            leaks: args.leaks.into(),
        })
    }
}
