//! Files on a disk that hangs: everything else continues.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tests::{Ask, Hang, Server, ask, eventually, isolated, publish, signal, skip, tempdir};

const AT: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 53);

fn hang(test: &str, directory: &Path) -> Option<Hang> {
    let hang = Hang::over(directory);
    if hang.is_none() {
        skip(test, "there is no FUSE for us");
    }
    hang
}

/// A server block for `ZONE.example` with the single name `x`, read from this file.
fn block(zone: &str, file: &Path, interval: &str) -> String {
    let file = file.display();
    format!("{zone}.example:53 {{\nbind 127.0.0.1\nhosts {file} {{\nreload {interval}\n}}\n}}\n")
}

fn hosts(zone: &str, last: u8) -> String {
    format!("192.0.2.{last} x.{zone}.example\n")
}

fn sees(zone: &str, last: u8, patience: Duration) {
    let name = format!("x.{zone}.example");
    eventually(&format!("{name} at 192.0.2.{last}"), patience, || {
        let reply = Ask::new(&name, "A").timeout(Duration::from_millis(100)).try_of(AT.into()).ok()?;
        (reply.short() == [format!("192.0.2.{last}")]).then_some(())
    });
}

#[test]
fn hanging_files_delay_no_other() {
    isolated(|| {
        let home = tempdir();
        let (remote, local) = (home.path().join("remote"), home.path().join("local"));
        fs::create_dir(&remote).unwrap();
        fs::write(&local, hosts("local", 1)).unwrap();
        fs::write(remote.join("list"), "nameserver 127.0.0.2\n").unwrap();
        let list = remote.join("list");
        let mut corefile = block("local", &local, "100ms");
        corefile += &format!("list.example:53 {{\nbind 127.0.0.1\nforward . {}\n}}\n", list.display());
        for zone in ["a", "b", "c", "d"] {
            fs::write(remote.join(zone), hosts(zone, 1)).unwrap();
            corefile += &block(zone, &remote.join(zone), "1s");
        }
        let server = Server::start(&corefile);
        ["local", "a", "b", "c", "d"].iter().for_each(|zone| sees(zone, 1, SOON));
        let Some(hang) = hang("hanging_files_delay_no_other", &remote) else { return };
        // The server reads them within a second and gives up after five.
        for n in 2..100 {
            publish(&local, hosts("local", n));
            sees("local", n, Duration::from_secs(3));
            if server.log_lines().iter().filter(|line| line.contains("no data after 5 s")).count() == 4 {
                break;
            }
        }
        server.wait_for_lines("no data after 5 s; check its disk or file server; the entries stay", 4, SOON);
        ["a", "b", "c", "d"].iter().for_each(|zone| sees(zone, 1, SOON));
        drop(hang);
        for zone in ["a", "b", "c", "d"] {
            publish(&remote.join(zone), hosts(zone, 2));
            sees(zone, 2, SOON);
        }
        let reports = server.log_lines().iter().filter(|line| line.contains("remote/")).count();
        assert_eq!(reports, 4, "each is reported once:\n{}", server.log_text());
    });
}

/// Several hosts files that hang at a start are given up together.
#[test]
fn hanging_hosts_files_at_a_start() {
    isolated(|| {
        let home = tempdir();
        let Some(_hang) = hang("hanging_hosts_files_at_a_start", home.path()) else {
            return;
        };
        let blocks = ["a", "b", "c", "d"].map(|zone| block(zone, &home.path().join(zone), "1s"));
        // It would not start within the test's 10 s if it waited for each in turn.
        let server = Server::start(&blocks.concat());
        server.wait_for_lines("no data after 5 s", 4, Duration::from_secs(1));
    });
}

/// A Corefile that names a file that hangs can be replaced.
#[test]
fn hanging_import_can_be_corrected() {
    isolated(|| {
        let home = tempdir();
        let corefile = |more: &str| format!(".:53 {{\nbind 127.0.0.1\n{more}\nwhoami\n}}\n");
        let server = Server::start(&corefile(""));
        let Some(_hang) = hang("hanging_import_can_be_corrected", home.path()) else {
            return;
        };
        let import = format!("import {}/more", home.path().display());
        server.write_corefile(&corefile(&import));
        server.signal("USR1");
        let failed = server.wait_for_log("Restart failed", SOON);
        assert!(failed.contains("Corefile:3:8: cannot read ") && failed.contains("/more"), "{failed}");
        server.write_corefile(&corefile("nsid mended"));
        server.signal("USR1");
        server.wait_for_log("Reloading complete", SOON);
        assert_eq!(Ask::new("x.example", "A").nsid().of(AT.into()).option(3), Some(&b"mended"[..]));
    });
}

#[test]
fn hanging_pidfile_delays_no_stop() {
    isolated(|| {
        let home = tempdir();
        let corefile = tempdir();
        let corefile = corefile.path().join("Corefile");
        fs::write(&corefile, ".:53 {\nbind 127.0.0.1\nwhoami\n}\n").unwrap();
        let Some(_hang) = hang("hanging_pidfile_delays_no_stop", home.path()) else { return };
        let mut command = Command::new(tests::binary());
        command.arg("-conf").arg(corefile).arg("-pidfile").arg(home.path().join("pid"));
        let mut child = super::Killed(command.stdout(Stdio::null()).spawn().unwrap());
        // It serves before it writes its process ID.
        sees_whoami();
        signal(child.0.id(), "TERM");
        let status = eventually("the end", Duration::from_secs(8), || child.0.try_wait().unwrap());
        assert_eq!(status.code(), Some(0), "{status}");
    });
}

fn sees_whoami() {
    let at = SocketAddr::from(AT);
    eventually("an answer", SOON, || {
        Ask::new("x.example", "A").timeout(Duration::from_millis(100)).try_of(at).ok()
    });
    assert_eq!(ask(at, "x.example", "A").status(), "NOERROR");
}

const SOON: Duration = Duration::from_secs(20);
