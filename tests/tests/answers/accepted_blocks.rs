//! Which server blocks each server accepts or refuses: the rows `[corefile]` of the plugins' files.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::scope;
use std::time::Duration;

use tempfile::TempDir;
use tests::{Authority, binary, fresh_ip, output, port, tempdir};

use crate::cluster::SEARCH;
use crate::coredns::CoreDns;
use crate::rows::plugins;

/// Which server accepts a block (`both`, `none`, `coredns` or `localdns`), its directives, and,
/// where the servers differ, the words of docs/differences.md that describe the difference.
type Row = (&'static str, &'static str, &'static str);

fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for plugin in plugins() {
        let mut stands = "";
        for line in plugin.section("corefile") {
            match line.split_once(' ').expect("a row is a word and the rest") {
                (">", words) => stands = words,
                (by, directives) => rows.push((by, directives, stands)),
            }
        }
    }
    rows
}

/// The words of docs/differences.md that rows quote.
pub(crate) fn listed() -> BTreeSet<&'static str> {
    rows().iter().map(|(.., stands)| *stands).filter(|stands| !stands.is_empty()).collect()
}

/// Runs every row by both servers and returns the rows with another result. CoreDNS gets all blocks
/// that it accepts in one Corefile, each with its own zone.
pub(crate) fn differences(program: &Path) -> Vec<String> {
    let (rows, ip, files) = (rows(), fresh_ip(), files());
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| {
                while let Some((by, directives, _)) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let text = block(0, directives, ip, files.path());
                    let report = |error| found.lock().expect("no lane panics with it").push(error);
                    if let (false, Some(accepted)) =
                        (accepts(by, "coredns"), CoreDns::serves_this(program, &text))
                    {
                        report(format!("CoreDNS takes {directives:?}: {accepted}"));
                    }
                    let (accepted, printed) = check(&text);
                    if accepted != accepts(by, "localdns") {
                        report(format!("localdns {directives:?}: {printed}"));
                    }
                }
            });
        }
    });
    let accepted = rows.iter().filter(|(by, ..)| accepts(by, "coredns")).enumerate();
    let text: String =
        accepted.map(|(n, (_, directives, _))| block(n, directives, ip, files.path())).collect();
    // Panics with CoreDNS's output if it refuses one of them.
    drop(CoreDns::start(program, &text));
    found.into_inner().expect("no lane panics with it")
}

fn accepts(by: &str, server: &str) -> bool {
    by == "both" || by == server
}

/// A server block; in `directives` `@IP@` is its listen address, and `@DIR@` is the directory of
/// its files.
fn block(zone: usize, directives: &str, ip: Ipv4Addr, files: &Path) -> String {
    let directives = directives.replace("@IP@", &ip.to_string()).replace("@DIR@", &files.to_string_lossy());
    format!("z{zone}.test:{} {{\nbind {ip}\n{directives}\n}}\n", port())
}

/// A certificate with its key and authority, a resolv.conf with a search list and one without.
fn files() -> TempDir {
    let directory = tempdir();
    let authority = Authority::new();
    authority.certify(directory.path(), "dns.example");
    authority.write(directory.path());
    for (name, text) in [("search.conf", SEARCH), ("empty.conf", "nameserver 192.0.2.53\n")] {
        std::fs::write(directory.path().join(name), text).expect("the test's directory is writable");
    }
    directory
}

/// Whether `check` accepts a Corefile, and its output.
fn check(corefile: &str) -> (bool, String) {
    let directory = tempdir();
    let file = directory.path().join("Corefile");
    std::fs::write(&file, corefile).expect("the test's directory is writable");
    let mut command = Command::new(binary());
    command.args(["check", "-conf"]).arg(&file).current_dir(directory.path()).stdin(Stdio::null());
    let output = output(command, Duration::from_secs(60));
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

const LANES: usize = 3;
