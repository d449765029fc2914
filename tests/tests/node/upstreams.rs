//! Substitutes of 168.63.129.16, the files that report them, and the Corefile in AKS's environment
//! file.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use tests::{
    Action, Ask, Options, Says, Server, Upstream, eventually, isolated, publish, run, signal, tempdir, tool,
};

use super::availability::status;
use super::lab::{CLUSTER, Lab, NAME, OUTSIDE, PLAIN, POD, within};
use super::stop_in_start::{Killed, sleeps};

/// The network's servers are queried, followed, kept and reported.
#[test]
fn servers_of_the_network() {
    isolated(|| {
        if !tool("upstreams", "nft") {
            return;
        }
        let _lab = Lab::new();
        run("mount", &["-t", "tmpfs", "tmpfs", "/opt"]);
        fs::create_dir_all(AZURE).expect("the test's own");
        fs::create_dir_all("/etc/localdns").expect("the test's own");
        write_network_list(
            "nameserver 169.254.10.10\nnameserver 127.0.0.53\nnameserver 10.2.0.2\nnameserver fd03::2\n",
        );
        let mut server = serve(&[]);
        assert_eq!(asked(), [CLUSTER]);
        let list = "10.2.0.2 fd03::2";
        let updated = COREFILE.replace("forward . 168.63.129.16", &format!("forward . {list}"));
        written(&format!("{AZURE}/updated.localdns.corefile"), &updated);
        written(&format!("{AZURE}/forward_ips.prom"), &PROM.replace("THIS", "10.2.0.2"));
        written(KEPT, &format!("{list}\n"));

        write_network_list("nameserver 10.3.0.2\n");
        eventually("the other server", Duration::from_secs(5), || (asked() == [PLAIN]).then_some(()));
        written(KEPT, "10.3.0.2\n");
        written(&format!("{AZURE}/forward_ips.prom"), &PROM.replace("THIS", "10.3.0.2"));
        assert!(!server.log_text().contains("Reloading"), "{}", server.log_text());
        server.wait_for_log("node: 168.63.129.16 stands for 10.3.0.2", Duration::from_secs(5));

        for (text, message) in [
            (
                "nameserver 169.254.10.10\n",
                "names only this node (169.254.10.10): unchanged, 168.63.129.16 stands for 10.3.0.2",
            ),
            ("search a.b\n", "has no nameserver: unchanged, 168.63.129.16 stands for 10.3.0.2"),
        ] {
            write_network_list(text);
            server.wait_for_log(message, Duration::from_secs(5));
        }
        fs::remove_file(RESOLV_CONF).expect("it is there");
        server.wait_for_log("No such file", Duration::from_secs(5));
        assert_eq!(asked(), [PLAIN]);

        // After a boot the network's file may be missing, or name only us: the kept list applies.
        signal(server.pid(), "KILL");
        server.wait(Duration::from_secs(5));
        let server = serve(&[]);
        server.wait_for_log("stands for 10.3.0.2, from /etc/localdns/upstream-dns", Duration::from_secs(5));
        assert_eq!(asked(), [PLAIN]);
        write_network_list("nameserver 10.2.0.2\n");
        eventually("the network's word", Duration::from_secs(5), || (asked() == [CLUSTER]).then_some(()));
    });
}

/// Without any server so far the exit status is 216, and files stay.
#[test]
fn no_server_ever_is_exit_216() {
    isolated(|| {
        run("mount", &["-t", "tmpfs", "tmpfs", "/run"]);
        run("mount", &["-t", "tmpfs", "tmpfs", "/opt"]);
        fs::create_dir_all(AZURE).expect("the test's own");
        let updated = format!("{AZURE}/updated.localdns.corefile");
        fs::write(&updated, "old").expect("the test's own");
        let directory = tempdir();
        let corefile = directory.path().join("Corefile");
        fs::write(&corefile, COREFILE).expect("the test's own");
        for text in [None, Some("nameserver 169.254.10.11\n"), Some("nameserver so\n")] {
            match text {
                Some(text) => write_network_list(text),
                None => assert!(!Path::new(RESOLV_CONF).exists()),
            }
            let output = end(&["-conf", corefile.to_str().expect("plain")]);
            assert_eq!(output.status.code(), Some(216), "{text:?}: {output:?}");
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(stderr.starts_with("localdns: 168.63.129.16 stands for the name servers of the node's network, and none is known: "), "{stderr}");
            assert_eq!(stderr.lines().count(), 1, "{stderr}");
        }
        assert_eq!(fs::read_to_string(&updated).expect("it is there"), "old");
        assert!(!run("ip", &["link"]).contains("localdns"), "nothing half-applied");
    });
}

/// A list written during a start is used.
#[test]
fn list_written_during_a_start() {
    isolated(|| {
        if !tool("upstreams", "nft") {
            return;
        }
        let _lab = Lab::new();
        fs::write("/run/Corefile", COREFILE).expect("the test's own");
        // The network's manager has written nothing yet, or only our address because of an earlier
        // drop-in.
        for (first, then, responder) in
            [(None, "10.3.0.2", PLAIN), (Some("nameserver 169.254.10.10\n"), "10.2.0.2", CLUSTER)]
        {
            let _ = (fs::remove_file(RESOLV_CONF), fs::remove_file(KEPT));
            first.into_iter().for_each(write_network_list);
            let mut start = Command::new(tests::binary());
            start.args(["node", "run", "-host-resolver", "none", "-conf", "/run/Corefile", "-pidfile", ""]);
            let start = start.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
            let mut start = Killed(start.expect("the binary starts"));
            eventually("a wait for the list", Duration::from_secs(5), || sleeps(start.0.id()).then_some(()));
            write_network_list(&format!("nameserver {then}\n"));
            eventually("the list's server", Duration::from_secs(10), || {
                assert!(start.0.try_wait().expect("it is ours").is_none(), "{first:?}: it has ended");
                (asked() == [responder]).then_some(())
            });
        }
    });
}

/// A list other than the machine's is queried and followed.
#[test]
fn other_list_than_the_machines() {
    isolated(|| {
        if !tool("upstreams", "nft") {
            return;
        }
        let _lab = Lab::new();
        let given = Path::new("/run/given");
        write_network_list("nameserver 10.2.0.2\n");
        publish(given, "nameserver 10.3.0.2\n");
        let server = serve(&["-upstreams", "/run/given", "-host-resolver", "none"]);
        assert_eq!(asked(), [PLAIN]);
        let printed = status(&server, 0);
        assert!(printed.contains("upstreams 10.3.0.2 from /run/given\n"), "{printed}");
        write_network_list("nameserver 10.3.0.2\n");
        publish(given, "nameserver 10.2.0.2\n");
        eventually("the other server", Duration::from_secs(5), || (asked() == [CLUSTER]).then_some(()));
        server.wait_for_log("node: 168.63.129.16 stands for 10.2.0.2", Duration::from_secs(5));
    });
}

/// It is served; without one the exit status is 217.
#[test]
fn corefile_of_the_environment_file() {
    isolated(|| {
        if !tool("upstreams", "nft") || !tool("upstreams", "base64") {
            return;
        }
        let _lab = Lab::new();
        fs::create_dir_all("/etc/localdns").expect("the test's own");
        let directory = tempdir();
        let file = directory.path().join("environment");
        let name = file.to_str().expect("plain");
        for (text, cause) in [
            ("", "no Corefile: none of LOCALDNS_COREFILE_WITH_HOSTS"),
            ("LOCALDNS_COREFILE_BASE=%\n", "LOCALDNS_COREFILE_BASE is not base64: "),
            ("LOCALDNS_COREFILE_BASE=LiB7CiBmb3J3cmFkCn0K\n", "LOCALDNS_COREFILE_BASE of "),
            // base64 in several lines, of which the first is a comment.
            (
                "LOCALDNS_COREFILE_BASE=IyBub3RoaW5n\nCi46NTMge30K\n",
                "set it to the output of `base64 -w0 Corefile`",
            ),
        ] {
            fs::write(&file, text).expect("the test's own");
            let output = end(&["-environment", name]);
            assert_eq!(output.status.code(), Some(217), "{text:?}: {output:?}");
            assert!(String::from_utf8_lossy(&output.stderr).contains(cause), "{output:?}");
        }
        let absent = end(&["-environment", "/nowhere"]);
        assert_eq!(absent.status.code(), Some(217), "{absent:?}");
        let encoded = |answer: &str| {
            let corefile = format!(".:53 {{\nbind 169.254.10.10\nhosts {{\n{answer} {NAME}\n}}\n}}\n");
            let path = directory.path().join(answer);
            fs::write(&path, corefile).expect("the test's own");
            run("base64", &["-w0", path.to_str().expect("plain")])
        };
        let variants = |wanted: &str| {
            format!(
                "LOCALDNS_COREFILE_BASE=\"{}\"\nLOCALDNS_COREFILE_WITH_HOSTS=\"{}\"\nSHOULD_ENABLE_HOSTS_PLUGIN={wanted}\n",
                encoded("192.0.2.10"),
                encoded("192.0.2.11")
            )
        };
        publish(&file, variants("true"));
        let server = Server::start_with("", options().without_corefile().args(["-environment", name]));
        assert_eq!(asked(), ["192.0.2.10"], "there is no hosts file");
        fs::write("/etc/localdns/hosts", "").expect("the test's own");
        server.signal("HUP");
        eventually("the variant with hosts", Duration::from_secs(5), || {
            (asked() == ["192.0.2.11"]).then_some(())
        });
        publish(&file, variants("false"));
        server.signal("HUP");
        eventually("the base", Duration::from_secs(5), || (asked() == ["192.0.2.10"]).then_some(()));
        publish(&file, "LOCALDNS_COREFILE_BASE=%\n");
        server.signal("HUP");
        server.wait_for_log("Restart failed: ", Duration::from_secs(5));
        assert_eq!(asked(), ["192.0.2.10"]);
    });
}

/// Unwritable files are reported once, and the server serves without them.
#[test]
fn unwritable_files_are_reported_once() {
    isolated(|| {
        if !tool("upstreams", "nft") {
            return;
        }
        let _lab = Lab::new();
        run("mount", &["-t", "tmpfs", "tmpfs", "/opt"]);
        fs::create_dir_all(AZURE).expect("the test's own");
        fs::create_dir_all("/etc/localdns").expect("the test's own");
        run("mount", &["-t", "tmpfs", "-o", "ro", "tmpfs", "/etc/localdns"]);
        // The root takes the only inode.
        run("mount", &["-t", "tmpfs", "-o", "size=4k,nr_inodes=1", "tmpfs", AZURE]);
        write_network_list("nameserver 10.2.0.2\n");
        let server = serve(&[]);
        assert_eq!(asked(), [CLUSTER]);
        for (file, cause) in [("/etc/localdns", "Read-only file system"), (AZURE, "No space left on device")]
        {
            let line = server.wait_for_log(cause, Duration::from_secs(5));
            assert!(
                line.contains(file) && line.contains("free disk space, and allow this service to write"),
                "{line}"
            );
            let printed = status(&server, 0);
            let note = printed.lines().find(|line| line.starts_with("note ") && line.contains(cause));
            assert!(
                note.is_some_and(|note| note.contains(file) && note.contains("free disk space")),
                "{printed}"
            );
        }
        write_network_list("nameserver 10.3.0.2\n");
        eventually("the other server", Duration::from_secs(5), || (asked() == [PLAIN]).then_some(()));
    });
}

/// IPv6 servers are queried, also as fallback; a link-local one keeps its link over restarts.
#[test]
fn ipv6_servers_and_their_links() {
    isolated(|| {
        if !tool("upstreams", "nft") {
            return;
        }
        let _lab = Lab::new();
        let _of_the_link = link_local_upstream();
        fs::create_dir_all("/etc/localdns").expect("the test's own");
        let answered = |responder: &str| {
            eventually(responder, Duration::from_secs(5), || (asked_at(IPV6) == [responder]).then_some(()));
        };
        write_network_list("nameserver fd03::2\n");
        let mut server = serve_ipv6();
        answered(PLAIN);
        written(KEPT, "fd03::2\n");
        let index = run("ip", &["-o", "link", "show", "v2"]);
        let index = index.split(':').next().expect("it has an index");
        for (link, out) in
            [("v2", "nameserver 10.2.0.2\nnameserver fd03::2\n"), (index, "nameserver fd03::2\n")]
        {
            write_network_list(&format!("nameserver fe80::53%{link}\n{out}"));
            answered(OF_THE_LINK);
            let rest = out.replace("nameserver", "").replace('\n', "");
            written(KEPT, &format!("fe80::53%v2{rest}\n"));
            let printed = status(&server, 0);
            assert!(
                printed.contains("address   fd10::11  on localdns, fallback fd03::2, answers"),
                "{printed}"
            );
            assert!(
                printed.contains(&format!("upstreams fe80::53%v2{rest} from {RESOLV_CONF}\n")),
                "{printed}"
            );
            signal(server.pid(), "KILL");
            server.wait(Duration::from_secs(5));
            // The fallback cannot have a link scope: the next server of the list is used.
            let of_pod = || within(POD, || asked_at(IPV6)).join().expect("it asks");
            eventually("the fallback", Duration::from_secs(5), || (of_pod() == [PLAIN]).then_some(()));
            fs::remove_file(RESOLV_CONF).expect("it is there");
            server = serve_ipv6();
            answered(OF_THE_LINK);
            server
                .wait_for_log(&format!("stands for fe80::53%v2{rest}, from {KEPT}"), Duration::from_secs(5));
        }
        write_network_list("nameserver fe80::53%v2\nnameserver ::ffff:10.2.0.2\n");
        server.wait_for_log("stands for fe80::53%v2 10.2.0.2", Duration::from_secs(5));
        server.wait_for_log("fd10::11 has no fallback: ", Duration::from_secs(5));
        answered(OF_THE_LINK);
    });
}

/// Starts an upstream at a link-local address of the node's link.
fn link_local_upstream() -> Upstream {
    run("ip", &["-n", OUTSIDE, "addr", "add", "fe80::53/64", "dev", "e0", "nodad"]);
    let link = run("ip", &["-n", OUTSIDE, "-o", "link", "show", "e0"]);
    let index = link.split(':').next().and_then(|index| index.parse().ok()).expect("it has an index");
    let ip = "fe80::53".parse().expect("an address");
    let address = SocketAddr::V6(std::net::SocketAddrV6::new(ip, 53, 0, index));
    let answer = format!("{NAME}. 5 IN A {OF_THE_LINK}\n");
    let starts = move || Upstream::at(address, move |_| Action::Reply(Says::answer(&answer)));
    within(OUTSIDE, starts).join().expect("an upstream starts")
}

fn serve_ipv6() -> Server {
    let server = Server::start_with(&COREFILE.replace("169.254.10.10", IPV6), options());
    server.wait_for_log("queries to 169.254.10.11 are answered here", Duration::from_secs(10));
    server
}

fn options() -> Options {
    Options::default().subcommand(&["node", "run"])
}

fn serve(more: &[&str]) -> Server {
    let options = more.iter().fold(options(), |options, word| options.args([*word]));
    let server = Server::start_with(COREFILE, options);
    server.wait_for_log("queries to 169.254.10.11 are answered here", Duration::from_secs(10));
    server
}

/// Runs `node run` until it exits by itself.
fn end(flags: &[&str]) -> Output {
    let mut command = Command::new(tests::binary());
    command.args(["node", "run"]).args(flags);
    tests::output(command, Duration::from_secs(20))
}

fn write_network_list(text: &str) {
    fs::create_dir_all("/run/systemd/resolve").expect("the test's own");
    publish(Path::new(RESOLV_CONF), text);
}

/// Of two reloads at once the later one counts in the files for other programs.
#[test]
fn later_of_two_reloads_counts() {
    isolated(|| {
        if !tool("upstreams", "nft") {
            return;
        }
        let lab = Lab::new();
        fs::create_dir_all(AZURE).expect("the test's own");
        let corefile =
            |last: u8| format!(".:53 {{\n    bind 169.254.10.10\n    forward . 10.9.0.{last}\n}}\n");
        let server = lab.serve_of(&corefile(1), &[]);
        server.wait_for_log("queries to 169.254.10.10 are answered here", Duration::from_secs(10));
        for (reloads, last) in (1..=16).zip(2..) {
            server.write_corefile(&corefile(last));
            server.signal("USR1");
            server.wait_for_lines("Reloading complete", reloads, Duration::from_secs(10));
            // Every other change is followed at once by the next.
            if reloads % 2 == 0 {
                let prom = PROM
                    .replace("THIS", &format!("10.9.0.{last}"))
                    .replace("ip=\"10.96.0.10\",block=\".:53\",status=\"ok\"} 1", NO_CLUSTER);
                written(&format!("{AZURE}/forward_ips.prom"), &prom);
            }
        }
    });
}

fn asked() -> Vec<String> {
    asked_at("169.254.10.10")
}

fn asked_at(ip: &str) -> Vec<String> {
    let at: SocketAddr = (ip.parse::<IpAddr>().expect("an address"), 53).into();
    let reply = Ask::new(NAME, "A").timeout(Duration::from_secs(2)).try_of(at);
    reply.map(|reply| reply.short().into_iter().map(str::to_owned).collect()).unwrap_or_default()
}

/// Waits until a file has this text, and asserts the mode that production uses.
fn written(path: &str, text: &str) {
    eventually(&format!("{path} with {text:?}"), Duration::from_secs(5), || {
        (fs::read_to_string(path).ok()? == text).then_some(())
    });
    assert_eq!(fs::metadata(path).expect("it is there").permissions().mode() & 0o7777, 0o644);
}

/// The address for the node's IPv6 queries.
const IPV6: &str = "fd10::11";
/// The answer of the link-local upstream.
const OF_THE_LINK: &str = "192.0.2.4";
const AZURE: &str = "/opt/azure/containers/localdns";
const KEPT: &str = "/etc/localdns/upstream-dns";
const RESOLV_CONF: &str = "/run/systemd/resolve/resolv.conf";
const COREFILE: &str = "# 168.63.129.16 is the network's
.:53 {
    bind 169.254.10.10
    forward . 168.63.129.16 {
        policy sequential
    }
}
.:53 {
    bind 169.254.10.11
    forward . 10.96.0.10
}
";
/// The row for an unknown cluster address.
const NO_CLUSTER: &str = "ip=\"unknown\",block=\"none\",status=\"missing\"} 0";
const PROM: &str = "# HELP localdns_vnetdns_forward_info VnetDNS forward plugin IP address from corefile
# TYPE localdns_vnetdns_forward_info gauge
localdns_vnetdns_forward_info{ip=\"THIS\",block=\".:53\",status=\"ok\"} 1
# HELP localdns_kubedns_forward_info KubeDNS forward plugin IP address from corefile
# TYPE localdns_kubedns_forward_info gauge
localdns_kubedns_forward_info{ip=\"10.96.0.10\",block=\".:53\",status=\"ok\"} 1
";
