//! The text of a policy, from files and the command line, on its way to what enforces it.

pub mod composed;
pub mod loaded;
pub mod policy_file;
pub mod presets;
pub mod registries;
pub mod saving;
pub mod schema;

use std::collections::BTreeMap;

use openshell_policy::policy::Policy;

/// A function that returns the path behind the symlinks of a path, if the workload cannot have made
/// them.
pub type SymlinkTarget<'t> = &'t dyn Fn(&str) -> Option<String>;

/// A policy in the form in which it is enforced.
pub trait Compile: Sized {
    /// Compiles `policy` as `generation`, under `rules` instead of the built-in ones, if given.
    ///
    /// # Errors
    /// Fails if the rules are invalid, or do not answer a decision.
    fn compile(
        generation: u64,
        policy: Policy,
        rules: Option<&str>,
        target: SymlinkTarget<'_>,
    ) -> anyhow::Result<Self>;

    /// Returns the policy that was compiled.
    fn policy(&self) -> &Policy;

    /// Returns the symlinks that the policy names, each with its target.
    fn links(&self) -> &BTreeMap<String, String>;

    /// Returns the number of the generation, from 1 on.
    fn generation(&self) -> u64;
}
