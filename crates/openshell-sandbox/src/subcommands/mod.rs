//! Subcommands: everything but a run of a command in a new sandbox.

mod approvals;
mod ca;
mod check;
mod copy_self;
mod cp;
mod diff;
mod doctor;
mod exec;
mod explain;
mod gateway;
mod init;
pub(crate) mod internal;
mod presets;
mod ps;
mod replay;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

use crate::cli::parse_as;

/// A command line that begins with a subcommand.
#[derive(Debug, Parser)]
#[command(name = "openshell-sandbox", bin_name = "openshell-sandbox")]
pub(crate) struct Named {
    #[command(subcommand)]
    pub(crate) subcommand: Subcommand,
}

/// A subcommand, each with its arguments.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Subcommand {
    Init(init::InitArgs),
    Check(check::CheckArgs),
    Explain(explain::ExplainArgs),
    Diff(diff::DiffArgs),
    Doctor(doctor::DoctorArgs),
    Approvals(approvals::ApprovalsArgs),
    Exec(exec::ExecArgs),
    Ps(ps::PsArgs),
    Cp(cp::CpArgs),
    Ca(ca::CaArgs),
    Gateway(gateway::GatewayArgs),
    Presets(presets::PresetsArgs),
    CopySelf(copy_self::CopySelfArgs),
}

impl Subcommand {
    /// Parses a command line that begins with a subcommand.
    ///
    /// # Errors
    /// Fails if it does not begin with one, is invalid, or asks for help.
    pub(crate) fn parse(words: Vec<OsString>) -> Result<Self, clap::Error> {
        let Named { subcommand } = parse_as(words.into_iter())?;
        match subcommand {
            Self::Exec(args) => args.with_name().map(Self::Exec),
            other => Ok(other),
        }
    }

    /// Does what the subcommand says, and returns its exit code.
    ///
    /// # Errors
    /// Fails if that cannot be done.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Self::Init(args) => init::init(args),
            Self::Check(args) => Ok(check::check(args)),
            Self::Explain(args) => explain::explain(args),
            Self::Diff(args) => diff::diff(args),
            Self::Doctor(args) => Ok(doctor::doctor(&args)),
            Self::Approvals(args) => approvals::approvals(&args),
            Self::Exec(args) => exec::exec(args),
            Self::Ps(args) => ps::ps(&args),
            Self::Cp(args) => cp::cp(&args),
            Self::Ca(args) => ca::ca(&args),
            Self::Gateway(args) => gateway::gateway(&args),
            Self::Presets(args) => presets::presets(&args),
            Self::CopySelf(args) => copy_self::copy_self(&args),
        }
    }
}
