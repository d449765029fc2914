//! The documents are correct: every example runs, every Corefile can be served, the units have the
//! documented settings.

mod bounds;
mod commands;
mod example;
mod kubernetes;
mod lists;
mod monitoring;
mod plugins;
mod units;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use tests::{binary, output, tempdir};

/// All documents, by path.
fn documents() -> Vec<(String, String)> {
    let mut paths: Vec<PathBuf> = Vec::new();
    for folder in ["", "benches", "docs", "docs/plugins", "tests"] {
        let entries = fs::read_dir(root().join(folder)).expect("the folder is there");
        paths.extend(
            entries.map(|entry| Path::new(folder).join(entry.expect("a folder can be read").file_name())),
        );
    }
    let plugins = fs::read_dir(root().join("plugins/src")).expect("plugins have a folder");
    let page = |name| Path::new("plugins/src").join(name).join("README.md");
    paths.extend(
        plugins
            .map(|entry| page(entry.expect("a folder can be read").file_name()))
            .filter(|page| root().join(page).exists()),
    );
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    paths.sort();
    assert!(paths.len() > 4, "{paths:?}");
    paths
        .into_iter()
        .map(|path| path.to_string_lossy().into_owned())
        .map(|path| (path.clone(), read(&path)))
        .collect()
}

fn check(corefile: &str) -> Output {
    let directory = tempdir();
    let path = directory.path().join("Corefile");
    fs::write(&path, corefile).expect(WRITABLE);
    let mut command = localdns(&["check", "-conf"]);
    command.arg(path).env("LOCALDNS_UPSTREAM", "192.0.2.53");
    output(command, PATIENCE)
}

fn localdns(args: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(args);
    command
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace")
}

/// The message of `expect` on writes to a test's directory.
const WRITABLE: &str = "the test's directory is writable";

const PATIENCE: Duration = Duration::from_secs(10);
