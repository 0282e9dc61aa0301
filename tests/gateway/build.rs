//! Generates the server of the gateway's services, and a client of them for measurements.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = "../../proto";
    println!("cargo::rerun-if-changed={folder}");
    let files = ["sandbox.proto", "openshell.proto", "inference.proto"];
    let generator = tonic_prost_build::configure()
        .btree_map(".")
        .bytes(".openshell.v1.RelayFrame");
    generator.compile_fds(protox::compile(files, [folder])?)?;
    Ok(())
}
