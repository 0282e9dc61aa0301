//! The messages for paths that are no longer kept from the command, because they were replaced
//! outside. Init watches them, even while this process is stopped.

use openshell_events::words::{ConfigState, Severity};
use openshell_supervisor::files::carve_outs::{CarveOut, Restriction};
use openshell_supervisor::init::Loss;
use openshell_supervisor::init::launch::Launcher;
use openshell_supervisor::paths::pins::KeptPath;
use openshell_telemetry::logging;

use crate::cli::CarveOutLost;

/// Returns the kinds of carve-outs whose loss ends the sandbox.
pub(crate) fn ends_when_lost(act: Option<CarveOutLost>) -> Vec<Restriction> {
    match act {
        Some(CarveOutLost::End) => vec![
            Restriction::ReadOnly,
            Restriction::Hidden,
            Restriction::NoExec,
        ],
        Some(CarveOutLost::Warn) => vec![],
        None => vec![Restriction::Hidden],
    }
}

/// Reports, from now on, which of `carve_outs` or of the files with secrets is lost.
pub(crate) fn watch(launcher: &Launcher, carve_outs: Vec<CarveOut>, act: Option<CarveOutLost>) {
    let ends = ends_when_lost(act);
    launcher.on_loss(Box::new(move |loss: &Loss| {
        // Each loss is logged, even if another one ends the sandbox.
        let said = loss.paths.iter().filter_map(|path| match path {
            KeptPath::CarveOut(number) => {
                let carve_out = carve_outs.get(*number)?;
                Some(say(
                    &message(carve_out),
                    ends.contains(&carve_out.restriction),
                ))
            }
            KeptPath::Secret(path) => {
                let message = format!(
                    "a secret is no longer hidden: {} was replaced outside, so the workload has \
                     access to what is there now; start again, and keep it outside of what the \
                     policy grants",
                    path.display()
                );
                Some(say(&message, true))
            }
        });
        let said: Vec<_> = said.collect();
        said.into_iter().flatten().next().unwrap_or_default()
    }));
}

fn message(carve_out: &CarveOut) -> String {
    format!(
        "filesystem_policy.{key}: {path}, or a folder above it, was replaced or renamed outside, \
         so the command has access to what is there now (--carve-out-lost)",
        key = carve_out.restriction.as_str(),
        path = carve_out.path.display()
    )
}

/// Logs the loss; returns the message if it ends the sandbox.
fn say(message: &str, is_end: bool) -> Option<String> {
    let state = if is_end {
        ConfigState::Failed
    } else {
        ConfigState::Degraded
    };
    logging::config_event(state, Severity::High, message);
    is_end.then(|| message.to_owned())
}
