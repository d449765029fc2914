//! A network, an `/etc` and a process tree of a test's own: the test runs itself again inside them.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::Duration;

use crate::binary::binary;
use crate::place::{privileged, tempdir};
use crate::server::output;

/// Runs `body`, the whole of the calling test, in namespaces of its own: there it is root, `lo` is up, no other link exists, `/etc` is a small private
/// copy and every port is free. All that it starts ends with it.
///
/// Prints `skipped: ...` and does nothing where the kernel or a missing tool forbids namespaces.
///
/// # Panics
/// When `body` does, or takes more than three minutes.
pub fn isolated<F: FnOnce()>(body: F) {
    isolated_for(Duration::from_secs(180), body);
}

/// As [`isolated`], for a test that may take so long.
///
/// # Panics
/// When `body` does, or takes longer.
pub fn isolated_for<F: FnOnce()>(patience: Duration, body: F) {
    // The test runs itself again inside, by its name: `crate::module::test::{{closure}}` without both ends.
    let path = std::any::type_name::<F>().trim_end_matches("::{{closure}}");
    let test = path.split_once("::").map_or(path, |(_, test)| test);
    if std::env::var(INSIDE).as_deref() == Ok(test) {
        return body();
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
    let told =
        |line: &&str| ["skipped: ", "measured: ", "repeated: "].iter().any(|told| line.starts_with(told));
    for line in text.lines().filter(told) {
        tell(line);
    }
}

/// Gives `lo` another address, such as `169.254.10.10/32`, unless it has it. Only within [`isolated`].
///
/// # Panics
/// Outside of it, or when `ip` refuses.
pub fn add_address(cidr: &str) {
    assert!(std::env::var_os(INSIDE).is_some(), "addresses of the machine are not a test's to change");
    run("ip", &["address", "replace", cidr, "dev", "lo"]);
}

/// Runs a tool to its end, at most 20 s, and returns its stdout.
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

/// Whether a program is on the PATH; says that `test` is skipped when it is not.
pub fn tool(test: &str, program: &str) -> bool {
    let found = on_path(program);
    if !found {
        skip(test, &format!("{program} is not installed"));
    }
    found
}

/// Says that a test did not run, and why. Not captured: it must be seen.
pub fn skip(test: &str, why: &str) {
    tell(&format!("skipped: {test}: {why}"));
}

/// Past the capture of the test runner, which holds back what passing tests print.
pub(crate) fn tell(line: &str) {
    drop(writeln!(std::io::stderr(), "{line}"));
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// Why namespaces cannot be had, found out once.
fn possible() -> Result<(), &'static str> {
    static POSSIBLE: OnceLock<Result<(), &'static str>> = OnceLock::new();
    *POSSIBLE.get_or_init(|| {
        if !on_path("unshare") || !on_path("ip") || !on_path("mount") {
            return Err("unshare, ip or mount is not installed");
        }
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

/// What programs need to find in `/etc` to start at all.
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
        // As an ordinary user the owner cannot be kept; the content is what counts.
        output(command, Duration::from_secs(10));
    }
    let files = [("hosts", "127.0.0.1 localhost\n"), ("resolv.conf", "nameserver 127.0.0.1\n")];
    for (name, text) in files {
        std::fs::write(home.join(name), text).expect("the test's directory is writable");
    }
}

const INSIDE: &str = "LOCALDNS_TEST_INSIDE";
