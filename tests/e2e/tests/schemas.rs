//! The schemas that editors use for policies, credentials and routes.

use std::path::Path;

use lab::{Lab, only_as_root};

#[test]
fn the_schemas_and_the_reader_refuse_the_same_documents() {
    only_as_root!("documents are the same for every user");
    let lab = Lab::new(&[]);
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let found = lab.shell(&format!(
        "/usr/bin/python3 {} {} {} {}; echo $?",
        tests.join("tests/data/schemas.py").display(),
        tests.join("../..").display(),
        lab.binary(),
        lab.folder("schemas").display()
    ));
    assert_eq!(found, "0\n");
}
