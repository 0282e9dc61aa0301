//! The rows of `main.rs` with sandboxes that a user without capabilities starts.

#[path = "main.rs"]
mod bench;

fn main() {
    bench::main();
}
