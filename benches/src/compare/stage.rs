//! The set-up of every measurement: the release server, a static binary, and a network namespace.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use clap::Args;

use super::namespace::Namespace;

// A doc comment here would be printed as the help of each subcommand that has these options.
#[derive(Args, Clone, Debug)]
pub(crate) struct Stage {
    /// This repository's server [default: the static one, which deploy/build-static builds]
    #[arg(long)]
    localdns: Option<PathBuf>,
    /// This is the run within the namespace, with this directory for files
    #[arg(long, hide = true)]
    pub(crate) inside: Option<PathBuf>,
}

impl Stage {
    /// Builds the server if none is given, and runs this program again in a namespace with these
    /// addresses on its loopback; `name` names the directory for its files.
    ///
    /// # Errors
    /// When the server does not build, there is no right to a namespace, or the run in it fails.
    pub(crate) fn enter(&self, name: &str, addresses: impl Iterator<Item = IpAddr>) -> Result<()> {
        if self.localdns.is_none() {
            build()?;
        }
        let dir = std::env::temp_dir().join(format!("localdns-{name}-{}", std::process::id()));
        Namespace::make(addresses)?.run_again(&dir)
    }

    /// Returns the given server, else the static one, which cargo builds in the same target
    /// directory as this program.
    pub(crate) fn server(&self, myself: &Path) -> PathBuf {
        let target = myself.parent().and_then(Path::parent).unwrap_or_else(|| Path::new("target"));
        self.localdns.clone().unwrap_or_else(|| target.join("x86_64-unknown-linux-musl/release/localdns"))
    }
}

/// Builds the release server if cargo is available; else an older build is used.
fn build() -> Result<()> {
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
