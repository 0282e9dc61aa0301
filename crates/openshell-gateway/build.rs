//! Generates the client of the gateway's services.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Printing them would print their secrets.
    let with_secrets = [
        "openshell.v1.GetSandboxProviderEnvironmentResponse",
        "openshell.v1.IssueSandboxTokenResponse",
        "openshell.v1.RefreshSandboxTokenResponse",
        "openshell.v1.ExtensionServiceCredential",
        "openshell.inference.v1.ResolvedRoute",
        "openshell.inference.v1.GetInferenceBundleResponse",
    ];
    println!("cargo::rerun-if-changed=../../proto");
    let files = ["sandbox.proto", "openshell.proto", "inference.proto"];
    let mut generator = tonic_prost_build::configure()
        .build_server(false)
        .btree_map(".")
        .bytes(".openshell.v1.RelayFrame");
    // Encoded where they are written.
    generator = generator.extern_path(
        ".openshell.v1.SandboxLogLine",
        "crate::convert::logs::LogLine",
    );
    for message in with_secrets {
        generator = generator.skip_debug([message]);
    }
    generator.compile_fds(protox::compile(files, ["../../proto"])?)?;
    Ok(())
}
