//! A stop ends the process in time whatever it waits for, and files that block delay nothing.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::scope;
use std::time::Duration;

use tests::{
    Action, Ask, Options, Server, Upstream, eventually, flood, fresh_ip, now, port, run, signal, steadily,
    tempdir,
};

use super::Killed;

/// A Corefile with an upstream name that five silent servers must resolve in turn.
fn unresolved(at: SocketAddr, silent: &[Upstream]) -> String {
    let servers: Vec<String> = silent.iter().map(Upstream::word).collect();
    format!(
        ".:{} {{\nbind {}\nforward . up.example {{\nresolver {}\n}}\n}}\n",
        at.port(),
        at.ip(),
        servers.join(" ")
    )
}

fn silent_servers() -> Vec<Upstream> {
    (0..5).map(|_| Upstream::start(fresh_ip(), |_| Action::Silent)).collect()
}

fn serving(at: SocketAddr, body: &str) -> String {
    format!(
        ".:{} {{\nbind {}\nhosts {{\n192.0.2.1 x.example\nfallthrough\n}}\n{body}\n}}\n",
        at.port(),
        at.ip()
    )
}

/// A reload that waits for silent servers delays no stop.
#[test]
fn stop_during_a_waiting_reload() {
    let silent = silent_servers();
    for (signals, code) in [(&["TERM"][..], 0), (&["INT"], 0), (&["QUIT"], 0), (&["USR1", "HUP", "TERM"], 0)]
    {
        steadily(|| {
            silent.iter().for_each(Upstream::forget);
            let at = SocketAddr::from((fresh_ip(), port()));
            let mut server = Server::start(&serving(at, "whoami"));
            server.write_corefile(&unresolved(at, &silent));
            server.signal("USR1");
            silent[0].wait_for("up.example.", 1, Duration::from_secs(5));
            assert_eq!(Ask::new("x.example", "A").of(at).short(), ["192.0.2.1"], "it serves meanwhile");
            let asked = now();
            signals.iter().for_each(|name| server.signal(name));
            assert_eq!(server.wait(Duration::from_secs(10)).code(), Some(code), "{signals:?}");
            assert!(asked.elapsed() < Duration::from_secs(2), "{signals:?}: {:?}", asked.elapsed());
            assert!(!server.path("pid").exists(), "{signals:?}: a pidfile without a process is left");
            assert_eq!(silent[4].total(), 0, "the last one is asked long after");
        });
    }
}

/// A start that waits for silent servers delays no stop.
#[test]
fn stop_during_a_waiting_start() {
    let silent = silent_servers();
    for name in ["TERM", "INT", "QUIT"] {
        steadily(|| {
            silent.iter().for_each(Upstream::forget);
            let (home, at) = (tempdir(), SocketAddr::from((fresh_ip(), port())));
            fs::write(home.path().join("Corefile"), unresolved(at, &silent)).unwrap();
            let mut command = Command::new(tests::binary());
            command.args(["-pidfile", "pid"]).current_dir(home.path()).stdout(Stdio::null());
            let mut child = Killed(command.spawn().unwrap());
            silent[0].wait_for("up.example.", 1, Duration::from_secs(5));
            let asked = now();
            signal(child.0.id(), name);
            let status = eventually("the end", Duration::from_secs(10), || child.0.try_wait().unwrap());
            assert!(asked.elapsed() < Duration::from_secs(2), "{name}: {:?}", asked.elapsed());
            assert_eq!(status.code(), Some(0), "{name}");
            assert!(!home.path().join("pid").exists(), "{name}");
        });
    }
}

/// A stop takes at most 5 s, even if nothing reads the log.
#[test]
fn stop_with_a_silent_upstream() {
    let silent = Upstream::start(fresh_ip(), |_| Action::Silent);
    steadily(|| {
        silent.forget();
        let at = SocketAddr::from((fresh_ip(), port()));
        let corefile = serving(at, &format!("log\nforward . {}", silent.word()));
        let mut server = Server::start_with(&corefile, Options::default().reader());
        server.signal_reader("STOP");
        // Of these lines, at least 90 bytes each, the pipe holds 64 KiB.
        flood(at, 5_000, 64, |_| Ask::new("x.example", "A"), |_, _| true).assert_clean();
        let client = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
        client.send_to(&Ask::new("held.example", "A").bytes(), at).unwrap();
        silent.wait_for("held.example.", 1, Duration::from_secs(5));
        let asked = now();
        server.signal("TERM");
        assert_eq!(server.wait(Duration::from_secs(10)).code(), Some(0));
        assert!(asked.elapsed() < Duration::from_millis(5100), "{:?}", asked.elapsed());
        // The query got its answer: the stop waited for it.
        client.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        client.recv(&mut [0; 512]).unwrap();
        let read = server.log_lines().iter().filter(|line| line.contains("x.example.")).count();
        assert_eq!(read, 0, "no process was to read the log");
    });
}

/// A second interrupt ends the process at once, even during a reload.
#[test]
fn second_interrupt_during_a_reload() {
    let silent = silent_servers();
    steadily(|| {
        silent.iter().for_each(Upstream::forget);
        let at = SocketAddr::from((fresh_ip(), port()));
        let lameduck = format!("whoami\nhealth {}:8080 {{\nlameduck 1m\n}}", at.ip());
        let mut server = Server::start(&serving(at, &lameduck));
        server.write_corefile(&unresolved(at, &silent));
        server.signal("USR1");
        silent[0].wait_for("up.example.", 1, Duration::from_secs(5));
        server.signal("INT");
        server.wait_for_log("Going into lameduck mode", Duration::from_secs(5));
        assert_eq!(Ask::new("x.example", "A").of(at).short(), ["192.0.2.1"], "it serves meanwhile");
        let asked = now();
        server.signal("INT");
        assert_eq!(server.wait(Duration::from_secs(10)).code(), Some(2));
        assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
        assert!(!server.path("pid").exists(), "a pidfile without a process is left");
        assert_eq!(silent[4].total(), 0, "the reload has not come to its end");
    });
}

/// SSL_CERT_FILE may name any file as the system's roots, even on a disk that hangs.
#[test]
fn unreadable_system_authorities() {
    let home = tempdir();
    let pipe = home.path().join("authorities");
    run("mkfifo", &[&pipe.to_string_lossy()]);
    let at = SocketAddr::from((fresh_ip(), port()));
    let options = Options::default().env("SSL_CERT_FILE", &pipe.to_string_lossy());
    let mut server = Server::start_with(&serving(at, "whoami"), options);
    server.write_corefile(&serving(at, "forward . tls://192.0.2.53"));
    server.signal("USR1");
    let message = server.wait_for_log("Restart failed: ", Duration::from_secs(10));
    assert!(message.contains("authorities: no data after 5 s"), "{message}");
    // The first read still blocks, so that the second fails at once.
    server.signal("USR1");
    let message = server.wait_for_lines("Restart failed: ", 2, Duration::from_secs(3)).pop().unwrap();
    assert!(message.contains("authorities: an earlier read is still blocked"), "{message}");
    assert_eq!(Ask::new("x.example", "A").of(at).short(), ["192.0.2.1"]);
    server.signal("TERM");
    assert_eq!(server.wait(Duration::from_secs(2)).code(), Some(0));
}

/// A pipe in place of a file is reported and delays nothing.
#[test]
fn pipe_in_place_of_a_file() {
    let home = tempdir();
    let at = SocketAddr::from((fresh_ip(), port()));
    let [hosts, list, cert] = ["hosts", "upstreams", "ca.pem"].map(|name| home.path().join(name));
    let write = |text: &str| tests::publish(&hosts, text);
    write("192.0.2.1 y.example\n");
    fs::write(&list, "nameserver 192.0.2.53\n").unwrap();
    let with = |forward: &str| {
        let hosts = hosts.display();
        format!(
            ".:{} {{\nbind {}\nhosts {hosts} {{\nreload 100ms\nttl 5\n}}\nforward . {forward}\n}}\n",
            at.port(),
            at.ip()
        )
    };
    let sees = |address: &str| {
        eventually(&format!("y.example at {address}"), Duration::from_secs(20), || {
            let reply = Ask::new("y.example", "A").tcp().timeout(Duration::from_secs(1)).try_of(at).ok()?;
            (reply.short() == [address]).then_some(())
        });
    };
    let mut server = Server::start(&with(&list.display().to_string()));
    sees("192.0.2.1");
    let pipe = |path: &Path| {
        // Renamed like `mv` does: the path always exists.
        let aside = path.with_extension("pipe");
        run("mkfifo", &[&aside.to_string_lossy()]);
        fs::rename(aside, path).unwrap();
    };
    // One thread checks both the list of upstreams and hosts files.
    pipe(&list);
    let mut last = 1;
    let mut hosts_are_followed = || {
        last += 1;
        write(&format!("192.0.2.{last} y.example\n"));
        sees(&format!("192.0.2.{last}"));
    };
    hosts_are_followed();
    let refused = |n: usize| {
        server.signal("USR1");
        server.wait_for_lines("Restart failed: ", n, Duration::from_secs(5)).pop().unwrap()
    };
    let message = refused(1);
    assert!(message.contains("upstreams") && message.contains("expected a file, found a pipe"), "{message}");
    hosts_are_followed();
    pipe(&cert);
    server.write_corefile(&with(&format!("tls://192.0.2.53 {{\ntls {}\n}}", cert.display())));
    let message = refused(2);
    assert!(message.contains("ca.pem") && message.contains("expected a file, found a pipe"), "{message}");
    server.write_corefile(&with("/dev/zero"));
    let message = refused(3);
    assert!(
        message.contains("/dev/zero") && message.contains("expected a file, found a device"),
        "{message}"
    );
    pipe(&server.path("Corefile"));
    let message = refused(4);
    assert!(message.contains("Corefile") && message.contains("expected a file, found a pipe"), "{message}");
    hosts_are_followed();
    server.signal("TERM");
    assert_eq!(server.wait(Duration::from_secs(2)).code(), Some(0));
}

#[test]
fn corefile_pipe_is_read_once() {
    let at = SocketAddr::from((fresh_ip(), port()));
    let home = tempdir();
    let pipe = home.path().join("pipe");
    run("mkfifo", &[&pipe.to_string_lossy()]);
    scope(|scope| {
        // Like a shell's `-conf <(...)`.
        scope.spawn(|| fs::write(&pipe, serving(at, "whoami")).unwrap());
        let mut command = Command::new(tests::binary());
        let child = Killed(command.arg("-conf").arg(&pipe).stdout(Stdio::null()).spawn().unwrap());
        eventually("the first answer", Duration::from_secs(10), || {
            let reply = Ask::new("x.example", "A").timeout(Duration::from_millis(50)).try_of(at).ok()?;
            (reply.short() == ["192.0.2.1"]).then_some(())
        });
        signal(child.0.id(), "USR1");
        assert_eq!(Ask::new("x.example", "A").of(at).short(), ["192.0.2.1"]);
    });
}

/// A start serves whoami; a reload is refused.
#[test]
fn corefile_without_blocks() {
    tests::isolated(|| {
        let at: SocketAddr = "127.0.0.1:1053".parse().unwrap();
        for text in ["", "# nothing\n", "(snippet) {\nwhoami\n}\n"] {
            let options = Options::default().args(["-dns.port", "1053"]);
            let mut server = Server::start_with(text, options);
            let reply = Ask::new("a.example", "A").of(at);
            assert_eq!((reply.status(), reply.additionals.len()), ("NOERROR", 2), "{text:?}");
            let serving = serving(at, "whoami");
            server.write_corefile(&serving);
            server.signal("USR1");
            server.wait_for_lines("Reloading complete", 1, Duration::from_secs(5));
            server.write_corefile(text);
            server.signal("USR1");
            server.wait_for_log("Restart failed: ", Duration::from_secs(5));
            assert_eq!(Ask::new("x.example", "A").of(at).short(), ["192.0.2.1"], "{text:?}");
            assert_eq!(server.stop().code(), Some(0));
        }
    });
}
