//! A private network, `/etc` and process tree for a test: the test runs itself again inside them.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::Duration;

use crate::binary::binary;
use crate::clock::steadily;
use crate::command::output;
use crate::place::{privileged, tempdir};

/// Runs `body`, the whole of the calling test, in its own namespaces: it is root, `lo` is up, no
/// other link exists, `/etc` is a small private copy and every port is free. All processes that it
/// starts end with it.
///
/// Prints `skipped: ...` and does nothing where the kernel or a missing tool prevents namespaces.
///
/// # Panics
/// When `body` does, or takes more than three minutes.
pub fn isolated<F: FnOnce()>(body: F) {
    isolated_for(Duration::from_secs(180), body);
}

/// Like [`isolated`], for a test that may take up to `patience`.
///
/// # Panics
/// When `body` does, or takes longer.
pub fn isolated_for<F: FnOnce()>(patience: Duration, body: F) {
    // The inner run selects the test by its name: `crate::module::test::{{closure}}` without both
    // ends.
    let path = std::any::type_name::<F>().trim_end_matches("::{{closure}}");
    let test = path.split_once("::").map_or(path, |(_, test)| test);
    if std::env::var(INSIDE).as_deref() == Ok(test) {
        return body();
    }
    for program in ["unshare", "ip", "mount"] {
        if !tool(test, program) {
            return;
        }
    }
    if let Err(why) = possible() {
        return skip(test, why);
    }
    let home = tempdir();
    private_etc(home.path());
    let mut command = namespaces();
    command.arg(std::env::current_exe().expect("a process knows its file"));
    command.args([test, "--exact", "--nocapture", "--include-ignored", "--test-threads=1"]);
    command.env(INSIDE, test).env("ETC", home.path()).env("LOCALDNS_BINARY", binary());
    let output = output(command, patience);
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(
        output.status.success() && text.contains("1 passed"),
        "inside its namespaces {test} failed:\n{text}"
    );
    let is_report =
        |line: &&str| ["skipped: ", "measured: ", "repeated: "].iter().any(|prefix| line.starts_with(prefix));
    for line in text.lines().filter(is_report) {
        report(line);
    }
}

/// Like [`isolated_for`], for a test with time bounds: repeats it in new namespaces when it failed
/// while the machine was stalled, like [`steadily`].
///
/// # Panics
/// As `body` does.
pub fn isolated_steadily<F: Fn() + Copy>(patience: Duration, body: F) {
    match std::env::var_os(INSIDE) {
        Some(_) => isolated_for(patience, body),
        None => steadily(|| isolated_for(patience, body)),
    }
}

/// Adds an address such as `169.254.10.10/32` to `lo`, unless it is there. For use within
/// [`isolated`] alone.
///
/// # Panics
/// Outside of [`isolated`], or when `ip` fails.
pub fn add_address(cidr: &str) {
    assert!(std::env::var_os(INSIDE).is_some(), "addresses of the machine are not a test's to change");
    run("ip", &["address", "replace", cidr, "dev", "lo"]);
}

/// Runs a tool, at most 20 s, and returns its stdout.
///
/// # Panics
/// When it fails.
pub fn run(program: &str, args: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(args);
    let Output { status, stdout, stderr } = output(command, Duration::from_secs(20));
    let stderr = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{program} {args:?}: {status}: {stderr}");
    String::from_utf8_lossy(&stdout).into_owned()
}

/// Whether a program is on the PATH; calls [`lacking`] when it is not.
///
/// # Panics
/// Where it is required.
pub fn tool(test: &str, program: &str) -> bool {
    let found = on_path(program);
    if !found {
        lacking(test, program, &format!("{program} is not installed"));
    }
    found
}

/// Reports that `test` is skipped because a program is missing.
///
/// # Panics
/// Where `LOCALDNS_TESTS_REQUIRE` names the program.
pub fn lacking(test: &str, program: &str, why: &str) {
    let required = std::env::var("LOCALDNS_TESTS_REQUIRE").unwrap_or_default();
    assert!(!names(&required, program), "{test}: {why}, and LOCALDNS_TESTS_REQUIRE names {program}");
    skip(test, why);
}

/// Whether a comma-separated list contains this word.
fn names(list: &str, word: &str) -> bool {
    list.split(',').any(|one| one.trim() == word)
}

/// Prints that a test is skipped, and why, past the capture of libtest; `tests/runner` counts them.
pub fn skip(test: &str, why: &str) {
    report(&format!("skipped: {test}: {why}"));
    if let Some(list) = std::env::var_os("LOCALDNS_SKIPPED") {
        let file = OpenOptions::new().append(true).open(list);
        // One write, so that lines of several processes do not mix.
        let written = file.and_then(|mut file| file.write_all(format!("{why}\t{test}\n").as_bytes()));
        written.expect("the list of skipped tests is writable");
    }
}

/// Prints a line past the capture of the test runner, which hides the output of passing tests.
pub fn report(line: &str) {
    drop(writeln!(std::io::stderr(), "{line}"));
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// Checks once whether namespaces can be made; the error is the reason.
fn possible() -> Result<(), &'static str> {
    static POSSIBLE: OnceLock<Result<(), &'static str>> = OnceLock::new();
    *POSSIBLE.get_or_init(|| {
        let home = tempdir();
        private_etc(home.path());
        let mut command = namespaces();
        command.arg("true").env("ETC", home.path());
        let made = output(command, Duration::from_secs(20)).status.success();
        if made { Ok(()) } else { Err("namespaces are not allowed here (try as root)") }
    })
}

fn namespaces() -> Command {
    let mut command = Command::new("unshare");
    if !privileged() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    command.args(["sh", "-c", "mount --bind \"$ETC\" /etc && ip link set lo up && exec \"$@\"", "sh"]);
    command
}

/// Makes the `/etc` with the files that programs need to start.
fn private_etc(home: &Path) {
    let keep = [
        "passwd",
        "group",
        "nsswitch.conf",
        "ld.so.cache",
        "ld.so.conf",
        "ld.so.conf.d",
        "alternatives",
        "iproute2",
    ];
    for name in keep.iter().map(|name| Path::new("/etc").join(name)).filter(|path| path.exists()) {
        let mut command = Command::new("cp");
        command.arg("--archive").arg(&name).arg(home);
        // An ordinary user cannot keep the owner; only the content matters.
        output(command, Duration::from_secs(10));
    }
    let files = [("hosts", "127.0.0.1 localhost\n"), ("resolv.conf", "nameserver 127.0.0.1\n")];
    for (name, text) in files {
        std::fs::write(home.join(name), text).expect("the test's directory is writable");
    }
}

const INSIDE: &str = "LOCALDNS_TEST_INSIDE";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_names_whole_words() {
        for (list, named) in [("dig", true), ("curl, dig", true), ("digs,kdig", false), ("", false)] {
            assert_eq!(names(list, "dig"), named, "{list}");
        }
    }
}
