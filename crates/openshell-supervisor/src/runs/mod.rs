//! What a run creates on the host and removes when it ends.

pub mod run_dir;
pub mod sandbox_files;
