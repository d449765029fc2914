//! Repeated rounds: detected changes, the log lines about them, and the stop.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tests::{Metrics, eventually, free_port, publish, run};

use super::{Node, OTHERS, line, zone};

/// A running node resolver, killed on drop.
pub(crate) struct Running {
    pub(crate) child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let follow = |pipe: Box<dyn std::io::Read + Send>| {
            let lines = Arc::clone(&lines);
            thread::spawn(move || {
                for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                    lines.lock().expect(NO_PANIC).push(line);
                }
            });
        };
        follow(Box::new(child.stdout.take().expect("it is piped")));
        follow(Box::new(child.stderr.take().expect("it is piped")));
        Self { child, lines }
    }

    pub(crate) fn lines_with(&self, part: &str) -> usize {
        self.lines.lock().expect(NO_PANIC).iter().filter(|line| line.contains(part)).count()
    }

    pub(crate) fn wait_for(&self, part: &str) {
        eventually(part, SOON, || (self.lines_with(part) > 0).then_some(()));
    }

    /// Sends SIGTERM; returns the exit code.
    pub(crate) fn stop(&mut self) -> Option<i32> {
        run("kill", &["-s", "TERM", &self.child.id().to_string()]);
        self.end()
    }

    pub(crate) fn end(&mut self) -> Option<i32> {
        eventually("its end", SOON, || self.child.try_wait().expect("a child can be asked")).code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("--- what it said ---\n{}", self.lines.lock().expect(NO_PANIC).join("\n"));
        }
        // It may have exited by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A new address replaces the old one and is logged once.
#[test]
fn new_address_replaces_the_old_one() {
    let node = Node::new(OTHERS, zone("web.t1.svc.cluster.local. 5 IN A 10.96.0.100"));
    let mut running = Running::start(node.command("web.t1.svc", &["-interval", "1"]));
    eventually("the first address", SOON, || node.text().contains("10.96.0.100").then_some(()));
    node.upstream.answer_by(zone("web.t1.svc.cluster.local. 5 IN A 10.96.0.101"));
    let want = format!("{OTHERS}{}", line("10.96.0.101", "web.t1.svc"));
    eventually("the second address", SOON, || (node.text() == want).then_some(()));
    node.upstream.forget();
    node.upstream.wait_for("web.t1.svc.cluster.local.", 6, SOON);
    assert_eq!(running.stop(), Some(0));
    assert_eq!(running.lines_with("web.t1.svc is 10.96.0.101"), 1);
    // The first address, its replacement, and the registry's missing address.
    assert_eq!(running.lines_with(""), 3);
    assert_eq!(node.text(), want);
}

/// A changed list of Services is read again, and a bad one is ignored.
#[test]
fn changed_service_list_is_read_again() {
    let node = Node::new(
        OTHERS,
        zone("a.n.svc.cluster.local. 5 IN A 10.96.0.1\nb.n.svc.cluster.local. 5 IN A 10.96.0.2"),
    );
    let list = node.home.path().join("services");
    fs::write(&list, "# the build\na.n.svc\n").unwrap();
    // An hour between rounds: only the changed list can cause a round.
    let mut running = Running::start(
        node.command("ignored.n.svc", &["-interval", "3600", "-services-file", &list.to_string_lossy()]),
    );
    let (a, b) = (line("10.96.0.1", "a.n.svc"), line("10.96.0.2", "b.n.svc"));
    eventually("the first list", SOON, || (node.text() == format!("{OTHERS}{a}")).then_some(()));
    publish(&list, "a.n.svc,b.n.svc\nnonsense\n");
    running.wait_for("services:2:1: \"nonsense\" is not a service");
    assert_eq!(node.text(), format!("{OTHERS}{a}"));
    publish(&list, "a.n.svc,b.n.svc\n");
    eventually("the second list", SOON, || (node.text() == format!("{OTHERS}{a}{b}")).then_some(()));
    assert_eq!(running.stop(), Some(0));
    assert_eq!(node.upstream.count("ignored.n.svc.cluster.local."), 0);
    assert_eq!(running.lines_with("nonsense"), 1);
}

/// It is read again however soon the next round is.
#[test]
fn service_list_with_short_rounds() {
    let node = Node::new(OTHERS, zone("a.n.svc.cluster.local. 5 IN A 10.96.0.1"));
    let list = node.home.path().join("services");
    fs::write(&list, "# none\n").unwrap();
    let flags = ["-interval", "1", "-services-file", &list.to_string_lossy()];
    let mut running = Running::start(node.command("", &flags));
    node.upstream.wait_for("image-registry.openshift-image-registry.svc.cluster.local.", 1, SOON);
    publish(&list, "a.n.svc\n");
    let want = format!("{OTHERS}{}", line("10.96.0.1", "a.n.svc"));
    eventually("the new list", SOON, || (node.text() == want).then_some(()));
    assert_eq!(running.stop(), Some(0));
}

/// A pipe as the list of Services is reported and delays nothing.
#[test]
fn pipe_as_service_list() {
    let node = Node::new(
        OTHERS,
        zone("a.n.svc.cluster.local. 5 IN A 10.96.0.1\nb.n.svc.cluster.local. 5 IN A 10.96.0.2"),
    );
    let list = node.home.path().join("services");
    let pipe = |path: &Path| {
        // Renamed like `mv` does: the path always exists.
        let aside = path.with_extension("pipe");
        run("mkfifo", &[&aside.to_string_lossy()]);
        fs::rename(aside, path).unwrap();
    };
    fs::write(&list, "a.n.svc\n").unwrap();
    let flags = ["-interval", "3600", "-services-file", &list.to_string_lossy()];
    let mut running = Running::start(node.command("", &flags));
    let sees = |lines: &str| {
        eventually(lines, SOON, || (node.text() == format!("{OTHERS}{lines}")).then_some(()));
    };
    sees(&line("10.96.0.1", "a.n.svc"));
    pipe(&list);
    running.wait_for("services: expected a file, found a pipe");
    publish(&list, "a.n.svc,b.n.svc\n");
    sees(&format!("{}{}", line("10.96.0.1", "a.n.svc"), line("10.96.0.2", "b.n.svc")));
    pipe(&list);
    eventually("the pipe to be reported again", SOON, || {
        (running.lines_with("found a pipe") == 2).then_some(())
    });
    assert_eq!(running.stop(), Some(0));
}

/// Lines that are left out or kept are reported once and counted.
#[test]
fn omitted_lines_are_reported_once() {
    let node =
        Node::new(&format!("10.0.0.1 web.t1.svc\n{OTHERS}{}", line("10.96.0.9", "down.t1.svc")), |asked| {
            match asked.name.split('.').next() {
                Some("down") => tests::Action::rcode(2),
                _ => zone(
                    "web.t1.svc.cluster.local. 5 IN A 10.96.0.100\nok.t1.svc.cluster.local. 5 IN A 10.96.0.1",
                )(asked),
            }
        });
    let address = SocketAddr::from(([127, 0, 0, 1], free_port([127, 0, 0, 1].into())));
    let flags = ["-interval", "1", "-metrics", &address.to_string()];
    let mut running = Running::start(node.command("web.t1.svc ok.t1.svc down.t1.svc", &flags));
    node.upstream.wait_for("ok.t1.svc.cluster.local.", 8, SOON);
    let metrics = eventually("four rounds", SOON, || {
        let metrics = Metrics::of(address);
        let unchanged = metrics.value("localdns_node_resolver_writes_total", &[("result", "unchanged")]);
        (unchanged >= Some(3.0)).then_some(metrics)
    });
    for (name, labels, value) in [
        ("lines", &[("service", "web.t1.svc"), ("verdict", "defined_by_others")][..], 0.0),
        ("lines", &[("service", "down.t1.svc"), ("verdict", "kept")], 1.0),
        ("lines", &[("service", "ok.t1.svc"), ("verdict", "known")], 1.0),
        ("writes_total", &[("result", "replaced")], 1.0),
        ("writes_total", &[("result", "failed")], 0.0),
    ] {
        let name = format!("localdns_node_resolver_{name}");
        assert_eq!(metrics.value(&name, labels), Some(value), "{name} {labels:?}");
    }
    let failed = metrics.value("localdns_node_resolver_lookups_total", &[("outcome", "failed")]).unwrap();
    assert!(failed >= 8.0 && failed % 2.0 == 0.0, "A and AAAA of one service in every round: {failed}");
    assert!(metrics.value("localdns_node_resolver_rounds_total", &[]) >= Some(4.0));
    assert!(metrics.value("localdns_node_resolver_age_seconds", &[]).is_some());
    assert_eq!(running.stop(), Some(0));
    assert_eq!((running.lines_with("web.t1.svc: "), running.lines_with("down.t1.svc: ")), (1, 1));
}

/// SIGTERM during silent lookups ends the process, and the file is whole.
#[test]
fn sigterm_during_silent_lookups() {
    let before = format!("{OTHERS}{}", line("10.96.0.9", "web.t1.svc"));
    let node = Node::new(&before, |_| tests::Action::Silent);
    let mut running = Running::start(node.command("web.t1.svc", &[]));
    node.upstream.wait_for("web.t1.svc.cluster.local.", 1, SOON);
    assert_eq!(running.stop(), Some(0));
    assert_eq!((node.text(), node.names()), (before, vec!["hosts".to_owned()]));
}

/// A hosts file that cannot be changed is reported once and tried again.
#[test]
fn unwritable_hosts_file_is_reported_once() {
    let node = Node::new(OTHERS, zone("web.t1.svc.cluster.local. 5 IN A 10.96.0.100"));
    fs::remove_file(node.hosts()).unwrap();
    let mut running = Running::start(node.command("web.t1.svc", &["-interval", "1"]));
    running.wait_for("cannot open ");
    node.upstream.wait_for("web.t1.svc.cluster.local.", 4, SOON);
    assert_eq!(node.names(), [""; 0], "a file that is not there is not ours to make");
    publish(&node.hosts(), OTHERS);
    eventually("the line", SOON, || node.text().contains("web.t1.svc").then_some(()));
    assert_eq!(running.stop(), Some(0));
    assert_eq!(running.lines_with("cannot open "), 1);
}

pub(crate) const SOON: Duration = Duration::from_secs(30);
/// The lock's holders only copy or count the lines.
const NO_PANIC: &str = "no thread panics with the lines";
