//! What a run makes on the host, and removes at its end.

pub mod run_dir;
pub mod sandbox_files;
