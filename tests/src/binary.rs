//! The program under test, built once per process.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

/// The path of `localdns`: `LOCALDNS_BINARY` if set, else the program that cargo builds in this
/// profile.
///
/// # Panics
/// When the build fails; cargo's messages are on stderr.
pub fn binary() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT
        .get_or_init(|| match std::env::var_os("LOCALDNS_BINARY") {
            Some(path) => PathBuf::from(path),
            None => build(),
        })
        .clone()
}

fn build() -> PathBuf {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // As a part of the server's integration test: with features of the workspace's tests.
    cargo.args(["test", "--workspace", "--test", "transfers", "--no-run"]);
    cargo.args(["--message-format=json-render-diagnostics", "--quiet"]);
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace");
    let output = cargo.current_dir(root).stderr(Stdio::inherit()).output().expect("cargo starts");
    assert!(output.status.success(), "localdns does not build");
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| {
            message["reason"] == "compiler-artifact"
                && message["target"]["name"] == "localdns"
                && message["target"]["kind"][0] == "bin"
        })
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .expect("cargo names the executable")
}
