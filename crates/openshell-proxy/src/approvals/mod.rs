//! A person decides at the moment of a refusal: what is refused, and a line of policy could permit,
//! waits as a question until somebody answers.
//!
//! Three rules stand above the rest. Nobody permits more than was shown: nothing is cut, nothing that
//! differs is merged, and a question never changes. The workload takes no part in the answer. One
//! answer does the least: what lasts longer than one request takes another one.

mod about;
pub mod answer;
pub mod answers;
pub mod askable;
mod bounds;
pub mod desk;
mod flag;
pub mod grants;
pub mod keep;
pub mod line;
pub mod listing;
mod marks;
pub mod proposal;
pub mod proposing;
pub mod question;
mod reporter;
pub mod site;
mod state;
pub mod text;
pub mod wish;

#[cfg(test)]
mod tests;
