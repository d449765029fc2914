//! The server as it ships: the static binary.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

/// Builds this repository's server as it ships where cargo is at hand; else an older build will do.
pub(crate) fn build() -> Result<()> {
    if std::env::var_os("CARGO").is_none() {
        return Ok(());
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/build-static");
    let status = Command::new(script).stdout(Stdio::null()).status();
    ensure!(
        status.context(script)?.success(),
        "the static server does not build; --localdns FILE measures another build"
    );
    Ok(())
}

/// Where the static server is: beside this program's directory, in that of its target.
pub(crate) fn ships(myself: &Path) -> PathBuf {
    let target = myself.parent().and_then(Path::parent).unwrap_or_else(|| Path::new("target"));
    target.join("x86_64-unknown-linux-musl/release/localdns")
}
