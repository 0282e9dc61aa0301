//! Makes a sandbox that is ready for its command from a configuration, in four stages: planned,
//! hosted, confined, serving. Each stage takes the one before as a value, so that none can be left
//! out or come too early. A start that fails leaves nothing.

mod confine;
pub(crate) mod groundwork;
mod host;
mod plan;
pub(crate) mod serve;
mod services;

use openshell_sources::origin::Secrets;

use crate::activation::Origin;
use crate::config::Config;
use crate::startup::confine::confined::Confined;
use crate::startup::groundwork::Groundwork;
use crate::startup::host::hosted::Hosted;
use crate::startup::plan::planned::Planned;
use crate::startup::serve::sandbox::Sandbox;

/// Starts a sandbox, ready for its command.
///
/// # Errors
/// Fails if a stage fails; everything made before is removed.
pub(crate) async fn start(
    config: &mut Config,
    origin: Origin,
    secrets: Secrets,
    groundwork: Groundwork,
) -> anyhow::Result<Sandbox> {
    let planned = Planned::read(config, origin, secrets, groundwork).await?;
    let hosted = Hosted::create(config, planned)?;
    let confined = Confined::enclose(config, hosted).await?;
    serve::serve(config, confined).await
}
