//! Files by descriptor, where a workload may exchange what is at a path.

pub mod missing;
pub(crate) mod mounts;
pub mod own_folder;
pub mod pins;
pub mod regular_files;
pub mod trusted_symlinks;
