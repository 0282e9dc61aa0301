//! `openshell-sandbox` runs one untrusted command inside a policy.

#![forbid(unsafe_code)]

mod activation;
#[cfg(test)]
mod activation_tests;
mod bound_socket;
mod ca_dir;
mod cli;
#[cfg(test)]
mod cli_pages;
mod config;
mod invocation;
mod process;
mod reports;
mod run;
mod startup;
mod subcommands;

use std::process::ExitCode;

use openshell_telemetry::logging;

use crate::invocation::Invocation;
use crate::process::exit::failed;
use crate::subcommands::internal;

fn main() -> ExitCode {
    logging::set_colours(config::are_colours_wanted());
    let code = invoke();
    match logging::output_failure() {
        Some(error) => {
            logging::print_failure(&format!(
                "openshell-sandbox: standard output cannot be written: {error}"
            ));
            ExitCode::FAILURE
        }
        None => code,
    }
}

/// Does what the command line asks for.
fn invoke() -> ExitCode {
    let is_policy_given = config::origin::is_in_environment();
    let done = match invocation::parse(std::env::args_os(), is_policy_given) {
        Invocation::Run(args) => return run::run(args),
        Invocation::Subcommand(subcommand) => subcommand.run(),
        Invocation::Internal { service, words } => internal::serve(&service, &words),
        Invocation::Printed(code) => Ok(code),
    };
    done.unwrap_or_else(|error| failed(&error))
}
