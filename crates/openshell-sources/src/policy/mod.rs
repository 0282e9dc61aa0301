//! A policy's text, of files and of the command line, on its way to what enforces it.

pub mod composed;
pub mod policy_file;
pub mod presets;
pub mod registries;

use std::collections::BTreeMap;

use openshell_policy::policy::Policy;

/// Returns the path behind the symlinks of a path, if the workload cannot have made them.
pub type SymlinkTarget<'t> = &'t dyn Fn(&str) -> Option<String>;

/// A policy in the form in which it is enforced.
pub trait Compile: Sized {
    /// Compiles `policy` as `generation`, under `rules` in place of the built-in ones.
    ///
    /// # Errors
    /// The rules are invalid, or say nothing about a decision.
    fn compile(
        generation: u64,
        policy: Policy,
        rules: Option<&str>,
        target: SymlinkTarget<'_>,
    ) -> anyhow::Result<Self>;

    /// The policy that was compiled.
    fn policy(&self) -> &Policy;

    /// Symlinks that the policy names, each with its target.
    fn links(&self) -> &BTreeMap<String, String>;

    /// Its number, from 1 on.
    fn generation(&self) -> u64;
}
