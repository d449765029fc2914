//! A network namespace for the comparison, in which port 53 is free and no other program listens.

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::overload;
use super::process::signal;

/// A named network namespace with its loopback up. Drop ends its processes and removes it.
pub(crate) struct Namespace {
    name: String,
}

impl Namespace {
    /// Creates a namespace with these addresses on its loopback too (some servers listen only on
    /// addresses of an interface). First removes the namespaces of comparisons that were killed.
    ///
    /// # Errors
    /// When `ip` is missing, or this is not root.
    pub(crate) fn make(addresses: impl Iterator<Item = IpAddr>) -> Result<Self> {
        for name in names()? {
            let owner = name.strip_prefix(PREFIX).and_then(|pid| pid.parse::<u32>().ok());
            if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
                remove(&name)?;
            }
        }
        let name = format!("{PREFIX}{}", std::process::id());
        ip(&["netns", "add", &name]).context("a network namespace is needed; only root may make one")?;
        let made = Self { name };
        ip(&["-netns", &made.name, "link", "set", "lo", "up"])?;
        for address in addresses {
            ip(&["-netns", &made.name, "address", "add", &address.to_string(), "dev", "lo"])?;
        }
        Ok(made)
    }

    /// Runs this program again inside the namespace, with the same arguments and `--inside DIR`;
    /// then ends the remaining processes in the namespace, and removes the directory.
    ///
    /// # Errors
    /// When it cannot be started or fails.
    pub(crate) fn run_again(self, dir: &Path) -> Result<()> {
        let myself = std::env::current_exe().context("this program's file")?;
        let mut inside = Command::new("ip");
        inside.args(["netns", "exec", &self.name]).arg(myself);
        inside.args(std::env::args_os().skip(1)).arg("--inside").arg(dir);
        let status = inside.status().context("ip netns exec")?;
        // The processes are ended before their files are removed.
        drop(self);
        drop(fs::remove_dir(overload::mount_at(dir)));
        if dir.exists() {
            fs::remove_dir_all(dir).with_context(|| dir.display().to_string())?;
        }
        ensure!(status.success(), "what ran inside ended with {status}");
        Ok(())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(remove(&self.name));
    }
}

/// Ends the remaining processes inside, for example of a killed comparison, and removes the
/// namespace.
fn remove(name: &str) -> Result<()> {
    let pids = ip(&["netns", "pids", name])?;
    signal("KILL", pids.split_whitespace().filter_map(|pid| pid.parse().ok()));
    ip(&["netns", "delete", name])?;
    Ok(())
}

fn names() -> Result<Vec<String>> {
    let text = ip(&["netns", "list"])?;
    Ok(text.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect())
}

fn ip(args: &[&str]) -> Result<String> {
    let output = Command::new("ip").args(args).output().context("ip (of iproute2) is needed")?;
    if !output.status.success() {
        bail!("ip {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

const PREFIX: &str = "localdns-bench-";
