//! The hosts file with other readers and writers: two servers, other programs that write it, and
//! tables that do not poll it.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use socket2::{Domain, SockAddr, Socket, Type};
use tests::{
    Action, Metrics, Options, Server, Upstream, assert_contains, binary, eventually, fresh_ip, publish,
    steadily, tempdir, tool,
};

use super::{EVERY_5_S, NAMES, Node, address, localdns};

/// Addresses, status and metrics are separate.
#[test]
fn two_files_with_one_name() {
    let directory = tempdir();
    let (one, two) = (directory.path().join("one"), directory.path().join("two"));
    let upstreams = [address(1), address(2)].map(|script| Upstream::start(fresh_ip(), script));
    let at = [fresh_ip(), fresh_ip()].map(|ip| SocketAddr::from((ip, tests::port())));
    let block = |at: SocketAddr, file: &std::path::Path, upstream: &Upstream| {
        format!(
            ".:{} {{\nbind {}\nprometheus {}:9153\nhosts {} {{\nrefresh a.test\nrefresh_via {}\nfallthrough\n}}\n}}\n",
            at.port(),
            at.ip(),
            at.ip(),
            file.display(),
            upstream.word()
        )
    };
    let corefile = block(at[0], &one, &upstreams[0]) + &block(at[1], &two, &upstreams[1]);
    let socket = directory.path().join("status.sock");
    let options = Options::default().args(["-status", &socket.to_string_lossy()]);
    let _server = Server::start_with(&corefile, options);
    for (at, last) in at.into_iter().zip(1..) {
        eventually("the address", Duration::from_secs(20), || {
            sleep(Duration::from_millis(20));
            (tests::ask(at, "a.test", "A").short() == [format!("192.0.2.{last}")]).then_some(())
        });
    }
    eventually("both files", Duration::from_secs(20), || (one.exists() && two.exists()).then_some(()));
    for (file, last) in [(&one, 1), (&two, 2)] {
        assert_contains!(fs::read_to_string(file).unwrap(), format!("192.0.2.{last} a.test\n"));
    }
    let metrics = Metrics::of((at[0].ip(), 9153).into());
    for name in ["entry_age_seconds", "entry_ttl_seconds", "failures_total"] {
        for file in [&one, &two] {
            let file = file.to_string_lossy();
            let labels = [("hostsfile", &*file), ("name", "a.test."), ("family", "ipv4")];
            let name = format!("localdns_refresh_{name}");
            let found = metrics.samples().filter(|(found, set, _)| {
                *found == name
                    && labels.iter().all(|(label, value)| set.get(*label).is_some_and(|v| v == value))
            });
            assert_eq!(found.count(), 1, "{name} {labels:?}");
        }
    }
    let printed = localdns(&["status", "-status", &socket.to_string_lossy()], &[]);
    let table = String::from_utf8(printed.stdout).unwrap();
    for (file, last) in [(&one, 1), (&two, 2)] {
        let (_, rest) =
            table.split_once(&format!("{}: ", file.display())).unwrap_or_else(|| panic!("{table}"));
        let row = rest.lines().find(|line| line.starts_with("a.test ")).unwrap_or_default();
        assert_contains!(row, format!(" 192.0.2.{last}"));
    }
}

/// It is served from the next round on.
#[test]
fn other_programs_write_without_reload() {
    let directory = tempdir();
    let hosts = directory.path().join("hosts");
    fs::write(&hosts, "192.0.2.98 canary.test\n").unwrap();
    let upstream = Upstream::start(fresh_ip(), address(1));
    let at = SocketAddr::from((fresh_ip(), tests::port()));
    let corefile = format!(
        ".:{} {{\nbind {}\nhosts {} {{\nreload 0\nrefresh a.test\nrefresh_via {}\nrefresh_interval 5s\n}}\n}}\n",
        at.port(),
        at.ip(),
        hosts.display(),
        upstream.word()
    );
    let _server = Server::start_with(&corefile, Options::default().args(["-status", ""]));
    let sees = |name: &str, last: u8| {
        eventually(name, Duration::from_secs(20), || {
            sleep(Duration::from_millis(20));
            (tests::ask(at, name, "A").short() == [format!("192.0.2.{last}")]).then_some(())
        });
    };
    sees("a.test", 1);
    sees("canary.test", 98);
    eventually("the first publication", Duration::from_secs(10), || {
        fs::read_to_string(&hosts).unwrap().contains("192.0.2.1 a.test\n").then_some(())
    });
    // The answers are unchanged, so they do not cause the reload of the other line.
    let text = fs::read_to_string(&hosts).unwrap();
    publish(&hosts, text.replace("192.0.2.98", "192.0.2.99"));
    sees("canary.test", 99);
    sees("a.test", 1);
}

/// The other program renames its file after the lookups, when the new file is written.
#[test]
fn concurrent_rename_is_not_lost() {
    if !tool("concurrent_rename_is_not_lost", "strace") {
        return;
    }
    let directory = tempdir();
    let (hosts, corefile) = (directory.path().join("hosts"), directory.path().join("Corefile"));
    let upstream = Upstream::start(fresh_ip(), address(1));
    fs::write(&hosts, "192.0.2.98 canary.test\n").unwrap();
    let text = format!(
        ".:5399 {{\nhosts {} {{\nrefresh a.test\nrefresh_via {}\n}}\n}}\n",
        hosts.display(),
        upstream.word()
    );
    fs::write(&corefile, text).unwrap();
    let mut traced = Command::new("strace");
    traced.args(["-f", "-qq", "-o", "/dev/null", "-e", "inject=renameat2:delay_enter=5000000:when=1"]);
    traced.arg(binary()).args(["refresh", "--once", "-conf"]).arg(&corefile).env_remove(NAMES);
    let mut traced = traced.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("strace starts");
    eventually("the new file", Duration::from_secs(20), || {
        let ours = fs::read_to_string(directory.path().join(".hosts.localdns.new")).unwrap_or_default();
        ours.contains("192.0.2.1 a.test\n").then_some(())
    });
    publish(&hosts, "192.0.2.99 canary.test\n");
    let ended = eventually("its end", Duration::from_secs(40), || traced.try_wait().expect("a child"));
    assert!(ended.success(), "{ended}");
    let text = fs::read_to_string(&hosts).unwrap();
    assert!(text.contains("192.0.2.99 canary.test\n") && text.contains("192.0.2.1 a.test\n"), "{text}");
    assert_eq!(super::files(directory.path()), ["Corefile", "hosts"]);
}

/// Another process may hold the lock longer than one attempt waits: its disk may be slow.
#[test]
fn long_lock_is_waited_for() {
    if !tool("long_lock_is_waited_for", "strace") {
        return;
    }
    let directory = tempdir();
    let file = |name: &str| directory.path().join(name);
    let upstream = Upstream::start(fresh_ip(), address(1));
    fs::write(file("hosts"), "192.0.2.98 canary.test\n").unwrap();
    let (hosts, via) = (file("hosts"), upstream.word());
    let refresh = format!("refresh a.test\nrefresh_via {via}");
    fs::write(file("Corefile"), format!(".:5399 {{\nhosts {} {{\n{refresh}\n}}\n}}\n", hosts.display()))
        .unwrap();
    let lock = fs::File::create(file(".hosts.localdns")).unwrap();
    lock.lock().unwrap();
    let mut traced = Command::new("strace");
    traced.args(["-f", "-qq", "-e", "trace=openat,open", "-o"]).arg(file("trace"));
    traced.arg(binary()).args(["refresh", "--once", "-conf"]).arg(file("Corefile")).env_remove(NAMES);
    let mut traced = traced.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("strace starts");
    // The file is read once at first, and twice in each attempt before the lock.
    let read = format!("{}\", O_RDONLY", hosts.display());
    eventually("a second try", Duration::from_secs(40), || {
        let trace = fs::read_to_string(file("trace")).unwrap_or_default();
        let over = traced.try_wait().expect("a child").is_some();
        (over || trace.matches(&read).count() > 3).then_some(())
    });
    assert_eq!(fs::read_to_string(&hosts).unwrap(), "192.0.2.98 canary.test\n");
    drop(lock);
    let ended = traced.wait_with_output().expect("a child");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert_contains!(&fs::read_to_string(&hosts).unwrap(), "192.0.2.1 a.test\n");
}

/// Another program may write or replace the file while it is read.
#[test]
fn write_during_a_read_is_repeated() {
    if !tool("write_during_a_read_is_repeated", "strace") {
        return;
    }
    let directory = tempdir();
    let file = |name: &str| directory.path().join(name);
    let upstream = Upstream::start(fresh_ip(), address(1));
    let (hosts, via) = (file("hosts"), upstream.word());
    // The file is read in many pieces, each of them slow.
    fs::write(&hosts, format!("192.0.2.98 canary.test\n{}", "# \n".repeat(1 << 20))).unwrap();
    let refresh = format!("refresh a.test\nrefresh_via {via}");
    fs::write(file("Corefile"), format!(".:5399 {{\nhosts {} {{\n{refresh}\n}}\n}}\n", hosts.display()))
        .unwrap();
    let mut traced = Command::new("strace");
    traced.args(["-f", "-qq", "-e", "trace=openat,open,read", "-e", "inject=read:delay_exit=1000", "-o"]);
    traced.arg(file("trace"));
    traced.arg(binary()).args(["refresh", "--once", "-conf"]).arg(file("Corefile")).env_remove(NAMES);
    let mut traced = traced.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("strace starts");
    let read = format!("{}\", O_RDONLY", hosts.display());
    let writes = fs::File::options().append(true).open(&hosts).unwrap();
    let mut turn = 0;
    eventually("a second look", Duration::from_secs(40), || {
        turn += 1;
        writes.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(turn)).unwrap();
        let trace = fs::read_to_string(file("trace")).unwrap_or_default();
        let over = traced.try_wait().expect("a child").is_some();
        (over || trace.matches(&read).count() > 1).then_some(())
    });
    let ended = traced.wait_with_output().expect("a child");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert_contains!(&fs::read_to_string(&hosts).unwrap(), "192.0.2.1 a.test\n");
}

#[test]
fn leftover_timer_is_harmless() {
    let node = Node::start(Some("192.0.2.99 canary.test\n"), "refresh a.test", &[EVERY_5_S], address(1));
    node.file_holds("192.0.2.1 a.test");
    let corefile = node.directory.join("Corefile");
    fs::write(&corefile, &node.corefile).unwrap();
    for last in 2..5 {
        node.upstream.answer_by(address(last));
        let runs: Vec<_> = (0..4)
            .map(|_| {
                let mut command = Command::new(binary());
                command.args(["refresh", "--once", "-conf"]).arg(&corefile).env_remove(NAMES);
                command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts")
            })
            .collect();
        for run in runs {
            let ended = run.wait_with_output().expect("a child");
            assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        }
        node.sees("a.test", "A", &[&format!("192.0.2.{last}")]);
        node.file_holds(&format!("192.0.2.{last} a.test"));
        assert_eq!(node.ask("canary.test", "A").short(), ["192.0.2.99"]);
        let lines: Vec<_> =
            node.text().lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect();
        assert_eq!(lines, ["192.0.2.99 canary.test".to_owned(), format!("192.0.2.{last} a.test")]);
    }
    assert_eq!(super::files(&node.directory), ["Corefile", "hosts", "status.sock"]);
}

#[test]
fn silent_round_ends_within_15_s() {
    steadily(|| {
        let silent: Vec<Upstream> = (0..4).map(|_| Upstream::start(fresh_ip(), |_| Action::Silent)).collect();
        let words: Vec<String> = silent.iter().map(Upstream::word).collect();
        let names: Vec<String> = (0..20).map(|n| format!("n{n}.test")).collect();
        let properties = format!("refresh {}\nrefresh_via {}", names.join(" "), words.join(" "));
        let node = Node::start(None, &properties, &[], address(1));
        let metrics = node.rounds("failed", 1.0);
        let took = metrics.value("localdns_refresh_last_round_duration_seconds", &[]).unwrap();
        assert!(took <= 15.0, "{took} s");
        assert!(silent.iter().all(|server| server.total() > 0), "every server was asked");
        assert_eq!(metrics.value("localdns_refresh_last_round_failed", &[]), Some(40.0));
        let health = tests::http_get((node.at.ip(), 8080).into(), "/health").unwrap();
        assert_eq!(health, (200, "OK".to_owned()), "names that are not refreshed are no illness");
    });
}

/// No file may replace the status socket, and a client that hangs on it delays nothing.
#[test]
fn status_socket_cannot_be_replaced() {
    let directory = tempdir();
    let (hosts, file) = (directory.path().join("hosts"), directory.path().join("file"));
    fs::write(&file, "precious").unwrap();
    // It accepts no connection, and its queue is full.
    let hangs = directory.path().join("hangs");
    let listener = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
    listener.bind(&SockAddr::unix(&hangs).unwrap()).unwrap();
    listener.listen(0).unwrap();
    let _waits = UnixStream::connect(&hangs).unwrap();
    let upstream = Upstream::start(fresh_ip(), address(1));
    for (path, why) in [(&file, "a file is there that is no socket"), (&hangs, "Address already in use")] {
        let at = SocketAddr::from((fresh_ip(), tests::port()));
        let corefile = format!(
            ".:{} {{\nbind {}\nhosts {} {{\nrefresh a.test\nrefresh_via {}\n}}\n}}\n",
            at.port(),
            at.ip(),
            hosts.display(),
            upstream.word()
        );
        let status = path.to_string_lossy();
        let mut server = Server::start_with(&corefile, Options::default().args(["-status", &status]));
        assert_contains!(server.wait_for_log("/status is not served at", Duration::from_secs(10)), why);
        assert!(server.stop().success());
        let asked = localdns(&["status", "-status", &status], &[]);
        assert_eq!(asked.status.code(), Some(1), "{asked:?}");
    }
    assert_eq!(fs::read(&file).unwrap(), b"precious");
    assert!(hangs.exists());
}
