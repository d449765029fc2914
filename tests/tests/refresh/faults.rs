//! Full and read-only disks, concurrent writers of the hosts file, invalid environment variables.

use std::fs;
use std::time::Duration;

use tests::{Action, assert_contains, eventually, isolated, run};

use super::{EVERY_5_S, NAMES, Node, address, files};

/// Mounts a disk of `kib` KiB on the node's directory, with an empty hosts file.
fn on_a_small_disk(kib: u32) -> (Node, tempfile::TempDir) {
    let home = tests::tempdir();
    run("mount", &["-t", "tmpfs", "-o", &format!("size={kib}k"), "tmpfs", &home.path().to_string_lossy()]);
    let node = Node::start_in(home.path(), Some(""), "refresh a.test", &[EVERY_5_S], |_| Action::Silent);
    (node, home)
}

/// After a full disk the file is written again later.
#[test]
fn full_disk_loses_nothing() {
    isolated(|| {
        let (node, home) = on_a_small_disk(64);
        let filler = home.path().join("filler");
        // Fills the disk.
        drop(fs::write(&filler, vec![b'x'; 1 << 20]));
        node.upstream.answer_by(address(1));
        node.sees("a.test", "A", &["192.0.2.1"]);
        let error =
            node.server.wait_for_log("what was learned is served from memory", Duration::from_secs(20));
        assert_contains!(error, "No space left on device");
        assert_eq!(node.text(), "", "the old file stands");
        assert!(
            node.status()["unpublished"].as_str().unwrap().contains("No space left"),
            "{}",
            node.status()
        );
        node.upstream.answer_by(address(2));
        node.sees("a.test", "A", &["192.0.2.2"]);
        fs::remove_file(filler).unwrap();
        node.file_holds("192.0.2.2 a.test");
        assert_eq!(
            node.server.log_lines().iter().filter(|line| line.contains("served from memory")).count(),
            1
        );
        eventually("no file beside it", Duration::from_secs(20), || {
            (files(home.path()) == ["hosts", "status.sock"]).then_some(())
        });
    });
}

#[test]
fn a_read_only_disk_loses_nothing() {
    isolated(|| {
        let (node, home) = on_a_small_disk(1024);
        let path = home.path().to_string_lossy().into_owned();
        run("mount", &["-o", "remount,ro", &path]);
        node.upstream.answer_by(address(1));
        node.sees("a.test", "A", &["192.0.2.1"]);
        node.server.wait_for_log("Read-only file system", Duration::from_secs(20));
        let metrics = node.rounds("ok", 2.0);
        assert!(metrics.count("localdns_refresh_publish_failures_total", &[]) >= 1.0);
        run("mount", &["-o", "remount,rw", &path]);
        node.file_holds("192.0.2.1 a.test");
    });
}

/// Invalid variables are reported and ignored.
#[test]
fn invalid_environment_is_passed_over() {
    let interval = (EVERY_5_S.0, "soon");
    let node = Node::start(None, "", &[(NAMES, "a.test,b..c,192.0.2.1"), interval], address(1));
    node.sees("a.test", "A", &["192.0.2.1"]);
    node.file_holds("192.0.2.1 a.test");
    for part in [
        "\"b..c\" is not a host name",
        "\"192.0.2.1\" is not a host name",
        "\"soon\" is not a number of seconds",
    ] {
        node.server.wait_for_log(part, Duration::from_secs(5));
    }
}

#[test]
fn unfinished_writer_is_waited_for() {
    let node = Node::start(None, "refresh a.test", &[EVERY_5_S], address(1));
    node.file_holds("192.0.2.1 a.test");
    // Written in place and incomplete: the canary's line has no end when the next round starts.
    fs::write(node.hosts(), "192.0.2.99 canary.te").unwrap();
    node.upstream.answer_by(address(2));
    node.sees("a.test", "A", &["192.0.2.2"]);
    fs::write(node.hosts(), "192.0.2.99 canary.test\n").unwrap();
    node.sees("canary.test", "A", &["192.0.2.99"]);
    node.upstream.answer_by(address(3));
    node.file_holds("192.0.2.3 a.test");
    assert_contains!(node.text(), "192.0.2.99 canary.test\n");
}
