//! What a workload sees of the file system: the rights that it gets, and what is taken out of them.

pub mod carve_outs;
pub mod filesystem;
mod grants;
pub mod landlock;
pub(crate) mod learning_home;
pub(crate) mod masked_paths;
pub mod private_run;
pub mod private_tmp;
pub mod protected;
