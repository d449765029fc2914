//! Bad input: one clear error with the cause and the mend, and nothing left behind.

use std::fs::{self, Permissions};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tests::{
    Options, Server, ask, assert_contains, binary, fresh_ip, output, port, privileged, skip, tempdir, tool,
};

use super::{assert_one_line, localdns, text};

#[test]
fn a_missing_or_unreadable_corefile_is_one_clear_error() {
    let directory = tempdir();
    let output = localdns(&["-conf", "/nonexistent/Corefile"]);
    assert_eq!(output.status.code(), Some(1));
    assert_one_line(&output, &["/nonexistent/Corefile"]);
    let output = localdns(&["-conf", &directory.path().to_string_lossy()]);
    assert_eq!(output.status.code(), Some(1));
    assert_one_line(&output, &[&directory.path().to_string_lossy()]);
}

#[test]
fn a_corefile_that_nobody_may_read_is_one_clear_error() {
    let test = "a_corefile_that_nobody_may_read_is_one_clear_error";
    let directory = tempdir();
    let path = directory.path().join("Corefile");
    fs::write(&path, format!(".:5399 {{\nbind {}\nwhoami\n}}", fresh_ip())).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o000)).unwrap();
    let Some(mut command) = unprivileged(test, directory.path()) else { return };
    command.arg("-conf").arg(&path);
    let output = output(command, Duration::from_secs(10));
    assert_eq!(output.status.code(), Some(1));
    assert_one_line(&output, &[&path.to_string_lossy(), "permission denied"]);
}

#[test]
fn bad_corefiles_are_refused_with_place_cause_and_mend() {
    // What the Corefile says, the line that is wrong, and words that must be told.
    let rows: [(&str, u32, &[&str]); 22] = [
        (". {\nforwrad . 192.0.2.1\n}", 2, &["forwrad", "forward"]),
        (". {\nforward . 192.0.2.1 {\npolcy random\n}\n}", 3, &["polcy", "policy"]),
        (". {\nforward . 192.0.2.1 {\npolicy fastest\n}\n}", 3, &["fastest"]),
        (". {\nforward .\n}", 2, &["forward"]),
        (". {\nforward . 192.0.2.1 {\nmax_concurrent <nil>\n}\n}", 3, &["<nil>", "max_concurrent"]),
        (". {\nforward . 192.0.2.1 {\nhealth_check soon\n}\n}", 3, &["soon"]),
        (". {\nforward . tls://\n}", 2, &["tls://"]),
        (". {\ncache many\nwhoami wrong\n}", 3, &["whoami"]),
        (". {\ncache {\nsuccess lots\n}\n}", 3, &["lots"]),
        (". {\ncache {\nserve_stale 1h sometimes\n}\n}", 3, &["sometimes"]),
        (". {\nhosts {\nttl 0\n}\n}", 3, &["ttl"]),
        (". {\ntemplate ANY ANY {\nmatch \"(\"\n}\n}", 3, &["("]),
        (". {\ntemplate ANY ANY {\nanswer \"{{ .Nonsense }}\"\n}\n}", 3, &["Nonsense"]),
        (". {\ntemplate ANY ANY {\nrcode NOSUCH\n}\n}", 3, &["NOSUCH"]),
        (". {\nwhoami\n", 1, &["}"]),
        (". {\nwhoami\n}\n}", 4, &["}"]),
        (". { whoami }", 1, &["{"]),
        (".:65536 {\nwhoami\n}", 1, &["65536"]),
        ("gopher://. {\nwhoami\n}", 1, &["gopher"]),
        (". {\nimport nothing-here\n}", 2, &["nothing-here"]),
        (". {\nbind 300.0.0.1\nwhoami\n}", 2, &["300.0.0.1"]),
        (". {\nkubernetes cluster.local\n}", 2, &["kubernetes"]),
    ];
    for (corefile, line, words) in rows {
        let output = Server::expect_failure(corefile, Options::default());
        let said = text(&output.stderr);
        assert!(said.contains(&format!("Corefile:{line}")), "{corefile}\nline {line} is not named:\n{said}");
        for word in words {
            assert!(said.contains(word), "{corefile}\n{word:?} is not named:\n{said}");
        }
        assert!(!said.contains("panicked"), "{corefile}\n{said}");
        assert!(said.lines().count() <= 6, "{corefile}\nis told at length:\n{said}");
    }
}

#[test]
fn equal_zones_on_one_address_are_refused_and_told() {
    let ip = fresh_ip();
    let block = format!(".:5399 {{\nbind {ip}\nwhoami\n}}\n");
    let output = Server::expect_failure(&format!("{block}{block}"), Options::default());
    assert_contains!(text(&output.stderr), "already");
}

#[test]
fn a_port_in_use_is_told_and_nothing_stays_bound() {
    let port = port();
    let mut ips = [fresh_ip(), fresh_ip()];
    ips.sort();
    // Addresses are bound in their order: the free one is bound already when the other is refused.
    let [free, ip] = ips;
    let holder = UdpSocket::bind((ip, port)).unwrap();
    let corefile = format!(".:{port} {{\nbind {free} {ip}\nwhoami\n}}");
    let output = Server::expect_failure(&corefile, Options::default());
    assert_contains!(text(&output.stderr), format!("{ip}:{port}"));
    assert_contains!(text(&output.stderr).to_lowercase(), "in use");
    drop(UdpSocket::bind((free, port)).expect("the other address is free over UDP"));
    drop(TcpListener::bind((free, port)).expect("the other address is free over TCP"));
    drop(holder);
    // By whom: a second instance on the address of a first.
    let first = Server::start(&corefile);
    let output = Server::expect_failure(&corefile, Options::default());
    assert_contains!(text(&output.stderr).to_lowercase(), "in use");
    assert_contains!(text(&output.stderr), first.pid().to_string());
    assert_eq!(ask((ip, port).into(), "a.example", "A").status(), "NOERROR", "the first is not disturbed");
}

#[test]
fn an_absent_address_is_told() {
    let output = Server::expect_failure(".:5399 {\nbind 192.0.2.77\nwhoami\n}", Options::default());
    assert_one_line(&output, &["192.0.2.77:5399", "ip address add 192.0.2.77 dev lo, or change `bind`"]);
    let output = Server::expect_failure(".:5399 {\nbind nosuchlink0\nwhoami\n}", Options::default());
    assert_contains!(text(&output.stderr), "nosuchlink0");
}

#[test]
fn no_privilege_is_told_with_its_mend() {
    let test = "no_privilege_is_told_with_its_mend";
    let limit = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap_or_default();
    if limit.trim().parse::<u16>().is_ok_and(|first| first <= 53) {
        return skip(test, "everybody may bind port 53 here");
    }
    let (directory, ip) = (tempdir(), fresh_ip());
    let path = directory.path().join("Corefile");
    fs::write(&path, format!(".:53 {{\nbind {ip}\nwhoami\n}}")).unwrap();
    let Some(mut command) = unprivileged(test, directory.path()) else { return };
    command.arg("-conf").arg(&path);
    let output = output(command, Duration::from_secs(10));
    assert_eq!(output.status.code(), Some(1));
    assert_contains!(text(&output.stderr), format!("{ip}:53"));
    assert_contains!(text(&output.stderr).to_lowercase(), "cap_net_bind_service");
}

#[test]
fn an_unwritable_pidfile_is_told() {
    let ip = fresh_ip();
    let directory = tempdir();
    let path = directory.path().join("Corefile");
    fs::write(&path, format!(".:5399 {{\nbind {ip}\nwhoami\n}}")).unwrap();
    let output = localdns(&["-conf", &path.to_string_lossy(), "-pidfile", "/nonexistent/pid"]);
    assert_eq!(output.status.code(), Some(1));
    assert_contains!(text(&output.stderr), "/nonexistent/pid");
}

/// The program as somebody who may do nothing: nobody, where this is root. Nobody may look into `directory`, but owns nothing there.
fn unprivileged(test: &str, directory: &Path) -> Option<Command> {
    if !privileged() {
        return Some(Command::new(binary()));
    }
    if !tool(test, "setpriv") {
        return None;
    }
    // The binary may lie where only root can look: nobody runs a copy.
    let copy = directory.join("localdns");
    let copied =
        fs::copy(binary(), &copy).and_then(|_| fs::set_permissions(directory, Permissions::from_mode(0o755)));
    copied.expect("the test's directory is writable");
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--bounding-set", "-all"])
        .arg(copy);
    Some(command)
}
