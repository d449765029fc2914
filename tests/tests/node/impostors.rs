//! Processes of uid 0 without CAP_NET_ADMIN in the node's network, like those of a pod on the host
//! network, that listen like servers and connect like commands.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::Command;
use std::thread;
use std::time::Duration;

use tests::{Options, Server, eventually, isolated, isolated_steadily, now, run, signal, tool};

use super::availability::{node, status};
use super::lab::{COREFILE, Lab};

/// A server must neither keep everything because of their replies nor count them as another server.
#[test]
fn impostors_neither_end_down_nor_count() {
    isolated(|| {
        if !tool("impostors", "nft") {
            return;
        }
        let lab = Lab::new();
        let server = lab.serve(&["-host-resolver", "none"]);
        ready(&server);
        let real = socket_of(server.pid());
        listen("999991-0", |_| {
            "the server is handing over to another process, which would restore everything\n".to_owned()
        });
        listen("999992-0", |word| match word {
            "status" => STATUS.to_owned(),
            "down" => {
                "the server is handing over to another process\n\x1b[2Jand clears the screen".to_owned()
            }
            // There is no table.
            _ => "shown\n".to_owned(),
        });
        // Relays each command to the real server: the table of that server proves nothing about
        // this process.
        listen("999993-0", move |word| match word {
            "down" => "the server refuses\n".to_owned(),
            word => {
                let mut stream = connect(&real);
                stream.write_all(format!("{word}\n").as_bytes()).expect("it listens");
                let mut printed = String::new();
                BufReader::new(stream.try_clone().expect("a copy"))
                    .read_line(&mut printed)
                    .expect("it answers");
                // The proof lasts as long as the connection.
                std::mem::forget(stream);
                printed
            }
        });
        let me = std::process::id();
        let note = format!(
            "process {me} listens on a server's control socket, and has not proven that it has CAP_NET_ADMIN"
        );
        let printed = status(&server, 0);
        assert!(printed.contains(&format!("note      {note}")), "{printed}");
        assert_eq!(printed.matches("\nserver ").count(), 1, "{printed}");
        let printed = node(&server, &["down"], 0);
        for line in [
            format!("process {} released its leases, addresses and rules\n", server.pid()),
            note,
            format!(
                "process {me} replies: the server is handing over to another process\\n\\u{{1b}}[2Jand clears"
            ),
            "removed the rules\n".to_owned(),
        ] {
            assert!(printed.contains(&line), "{line}: {printed}");
        }
        assert!(!printed.contains('\x1b'), "{printed}");
        assert!(!run("ip", &["link"]).contains("localdns"));
        // A proof that an impostor requested lasts for 1 s.
        eventually("no table is left", PATIENCE, || {
            run("nft", &["list", "tables", "inet"]).is_empty().then_some(())
        });
    });
}

/// Silent sockets and connections together cost a second.
#[test]
fn silent_sockets_share_one_second() {
    isolated_steadily(Duration::from_secs(180), || {
        if !tool("impostors", "nft") {
            return;
        }
        let lab = Lab::new();
        let server = lab.serve(&["-host-resolver", "none"]);
        ready(&server);
        let silent: Vec<_> = (0..40).map(|n| bind(&format!("{}-0", 999_000 + n))).collect();
        let name = socket_of(server.pid());
        let mut connected = Vec::new();
        connected.extend((0..40).map(|_| connect(&name)));
        let began = now();
        let printed = status(&server, 0);
        let me = std::process::id();
        let note = format!(
            "note      process {me} listens on a server's control socket, and has not answered within 1 s"
        );
        assert!(printed.contains(&note), "{printed}");
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        connected.extend((0..40).map(|_| connect(&name)));
        let began = now();
        // This process has CAP_NET_ADMIN, like a server that hangs.
        let printed = node(&server, &["down"], 1);
        let left = format!("left: process {me} does not release its leases: it has not answered within 1 s");
        assert!(printed.contains(&left) && printed.contains("removed the rules\n"), "{printed}");
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        drop((silent, connected));
    });
}

/// A silent process without the privilege keeps nothing in place.
#[test]
fn silent_unprivileged_process_is_ignored() {
    isolated(|| {
        if !tool("impostors", "setpriv") || !tool("impostors", "nft") {
            return;
        }
        let _lab = Lab::new();
        let server = powerless(".:1053 {\nbind 127.0.0.1\nwhoami\n}\n", "none");
        let pid = server.pid();
        eventually("its socket", PATIENCE, || find_socket(pid));
        signal(pid, "STOP");
        let printed = node(&server, &["down"], 0);
        assert!(
            printed.contains(&format!(
                "process {pid} listens on a server's control socket, and has not answered"
            )),
            "{printed}"
        );
        signal(pid, "CONT");
    });
}

/// Any netlink error but a missing nftables; here, the server may not list tables.
#[test]
fn failed_proof_search_keeps_all() {
    isolated(|| {
        if !tool("impostors", "setpriv") || !tool("impostors", "nft") {
            return;
        }
        let _lab = Lab::new();
        fs::write("/etc/resolv.conf", "nameserver 10.2.0.2\n").expect("the test's own");
        run("ip", &["addr", "add", "169.254.10.10/32", "dev", "lo"]);
        let corefile = ".:53 {\nbind 169.254.10.10\nwhoami\n}\n";
        let server = powerless(corefile, "resolv.conf");
        let ours = || fs::read_to_string("/etc/resolv.conf").is_ok_and(|text| text.contains("169.254.10.10"));
        eventually("its lookups", PATIENCE, || ours().then_some(()));
        let mut stream = connect(&socket_of(server.pid()));
        stream.write_all(b"down\n").expect("it listens");
        let mut printed = String::new();
        stream.read_to_string(&mut printed).expect("it answers");
        assert!(
            printed
                .starts_with("the server refuses: it cannot check whether the command has CAP_NET_ADMIN: "),
            "{printed}"
        );
        assert!(ours());
    });
}

/// An impostor's text cannot control the terminal.
#[test]
fn impostor_output_is_escaped() {
    isolated(|| {
        if !tool("impostors", "nft") {
            return;
        }
        let _lab = Lab::new();
        fs::write("/run/Corefile", COREFILE).expect("the test's own");
        listen("999992-0", |word| if word == "status" { STATUS.to_owned() } else { "no".to_owned() });
        for (words, code) in [(&["status"][..], 1), (&["status", "-json"], 1), (&["up"], 0)] {
            let mut command = Command::new(tests::binary());
            command.arg("node").args(words).args(["-conf", "/run/Corefile", "-host-resolver", "resolv.conf"]);
            let output = tests::output(command, PATIENCE);
            let printed = String::from_utf8_lossy(&output.stdout);
            assert_eq!(output.status.code(), Some(code), "{printed}");
            assert!(printed.contains("\\u{1b}[2J") && printed.contains("\\u{9b}31m"), "{printed}");
            let obeyed = printed.chars().find(|one| one.is_control() && *one != '\n' || *one == '\u{202e}');
            assert_eq!(obeyed, None, "{printed}");
        }
    });
}

/// Listens under this name and answers each command.
fn listen(name: &str, answer: impl Fn(&str) -> String + Send + 'static) {
    let listener = bind(name);
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut word = String::new();
            let _ = BufReader::new(&stream).read_line(&mut word);
            let _ = stream.write_all(answer(word.trim_end()).as_bytes());
        }
    });
}

fn bind(name: &str) -> UnixListener {
    UnixListener::bind_addr(&address(name)).expect("no other process is here")
}

fn connect(name: &str) -> UnixStream {
    UnixStream::connect_addr(&address(name)).expect("it listens")
}

fn address(name: &str) -> SocketAddr {
    SocketAddr::from_abstract_name(format!("localdns-node-{name}")).expect("it is short")
}

/// The server's socket name, by which commands find it.
fn socket_of(pid: u32) -> String {
    find_socket(pid).expect("it listens")
}

fn find_socket(pid: u32) -> Option<String> {
    let table = fs::read_to_string("/proc/net/unix").expect("it is text");
    let names = table.split_ascii_whitespace().filter_map(|word| word.strip_prefix("@localdns-node-"));
    names.map(str::to_owned).find(|name| name.starts_with(&format!("{pid}-")))
}

/// Starts a server without CAP_NET_ADMIN.
fn powerless(corefile: &str, host_resolver: &'static str) -> Server {
    let options = Options::default().subcommand(&["node", "run"]);
    let options = options.args(["-rules", "none", "-host-resolver", host_resolver]);
    Server::start_with(corefile, options.through("setpriv --bounding-set -net_admin --inh-caps -net_admin"))
}

fn ready(server: &Server) {
    server.wait_for_log("queries to fd10::11 are answered here", PATIENCE);
}

/// A status with terminal control characters.
const STATUS: &str = r#"{"format": 1, "pid": 1, "hands_over": true, "let_go": false, "has_leases": false, "rules": "none",
"addresses": [{"address": "169.254.10.10", "probe_error": "\u001b[2J\u009b31m\u202e gone", "probed_ms_ago": null}],
"host_resolver": null, "notes": [{"problem": "\u001b[2J\u009b31m\u202e gone", "remedy": null}], "upstreams": ["\u001b[2J"], "upstreams_from": "\u0007"}"#;
const PATIENCE: Duration = Duration::from_secs(20);
