//! Access to files by descriptor, for paths at which a workload may exchange files.

pub mod missing;
pub(crate) mod mounts;
pub mod own_folder;
pub mod pins;
pub mod regular_files;
pub mod trusted_symlinks;
