//! Bad input: one clear error with cause and remedy, and nothing left behind.

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

/// A bad command line is one line of output with cause and remedy.
#[test]
fn bad_command_line_is_one_line() {
    let directory = tempdir();
    let folder = directory.path().to_string_lossy();
    let rows: [(&[&str], &str, &str); 11] = [
        (&["-nonsense"], "unknown flag -nonsense", "see localdns -help"),
        (&["-cnof", "x"], "unknown flag -cnof", "did you mean -conf?"),
        (&["-conf"], "-conf needs a FILE", "see localdns -help"),
        (&["-p", "70000"], "-dns.port \"70000\"", "0 to 65535"),
        (&["-dns.port", "dns"], "-dns.port \"dns\"", "a port, 0 to 65535"),
        (&["-log-format", "xml"], "-log-format \"xml\"", "text or json"),
        (&["-quiet=perhaps"], "-quiet \"perhaps\"", "true or false"),
        (&["-cache-bytes", "5"], "-cache-bytes \"5\"", "1048576 to 4294967296"),
        (&["nonsense"], "unknown command \"nonsense\"", "there are check, explain"),
        (
            &["-conf", "/nonexistent/Corefile"],
            "cannot read /nonexistent/Corefile: there is no such file",
            "put it there, or name another one",
        ),
        (&["-conf", &folder], "expected a file, found a directory", "name the file in it"),
    ];
    for (args, cause, remedy) in rows {
        let output = localdns(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert_eq!(text(&output.stderr).lines().count(), 1, "{args:?}");
        assert_one_line(&output, &[cause, remedy]);
    }
}

/// A server block that cannot be served is reported with cause and remedy.
#[test]
fn unservable_block_is_reported() {
    let rows = [
        ("forwrad . 192.0.2.1", "unknown directive \"forwrad\"", "did you mean `forward`?"),
        ("nothinglikeit", "unknown directive \"nothinglikeit\"", "`localdns -plugins` lists"),
        ("cache {\nsucess 5\n}", "unknown property \"sucess\"", "did you mean `success`?"),
        ("cache {\nnothinglikeit\n}", "unknown property \"nothinglikeit\"", "expected denial, disable, "),
        ("etcd example.org", "`etcd` of CoreDNS is not supported yet", "remove it, or keep CoreDNS"),
        ("hosts {\nttl 0\n}", "\"0\" is not", "1 to 65535"),
        ("forward .", "`forward` needs", "TO..."),
        ("whoami\nwhoami", "can only be used once", "remove one"),
        ("import nothing-here", "no snippet above and no file", "define it above, or put the file there"),
        ("bind nosuchlink0", "no interface \"nosuchlink0\"", "name one that `ip link` lists, or an IP"),
        ("bind lo {\nexcept lo\n}", "leaves no address to listen on", "leave one"),
        (
            "bind 127.0.0.1 192.0.2.77",
            "Corefile:2:16: cannot listen on 192.0.2.77:5399: address",
            "or change `bind`",
        ),
        ("bind 192.0.2.77", "192.0.2.77 is on no interface", "ip address add 192.0.2.77 dev lo, or change"),
        ("bind 2001:db8::77", "2001:db8::77 is on no interface", "ip address add 2001:db8::77 dev lo, or"),
        (
            "bind fe80::77%lo",
            "fe80::77 is not on the interface \"lo\", or cannot be used yet",
            "address add fe80::77/64 dev lo, or",
        ),
        (
            "health 192.0.2.77:8080",
            "192.0.2.77:8080: bind: cannot assign",
            "choose one that this machine has",
        ),
        ("forward . /nonexistent", "cannot read /nonexistent: ", "name a file that this user can read"),
        ("forward . ./Corefile", "no nameserver in ./Corefile", "expected lines such as `nameserver 192."),
        (
            "forward . tls://192.0.2.1 {\nmax_fails 3\ntls /nonexistent\n}",
            ":5:5: plugin/forward: /nonexistent: No such file",
            "name a PEM file that this user can read",
        ),
        (
            "forward . tls://192.0.2.1 {\ntls_servername a_b..c\n}",
            ":4:16: plugin/forward: \"a_b..c\" is not a server name",
            "expected a name such as dns.example.org, or an IP address",
        ),
        (
            "forward . tls://192.0.2.1%a_b..c",
            ":3:11: plugin/forward: \"a_b..c\" is not a server name",
            "expected a name such as dns.example.org, or an IP address",
        ),
    ];
    for (lines, cause, remedy) in rows {
        let bind = if lines.starts_with("bind") { String::new() } else { format!("bind {}\n", fresh_ip()) };
        let corefile = format!(".:5399 {{\n{bind}{lines}\n}}");
        let output = Server::expect_failure(&corefile, Options::default());
        let printed = text(&output.stderr);
        let line = printed.lines().next().unwrap_or_default();
        assert!(line.contains(cause) && line.contains(remedy), "{lines}:\n{printed}");
        // The line of the Corefile and a marker follow, unless the error is about an HTTP listen
        // address.
        let line_count = if cause.contains("bind: cannot assign") { 1 } else { 3 };
        assert_eq!(printed.lines().count(), line_count, "{lines}:\n{printed}");
    }
}

/// An admin address in use is reported with the process that has it.
#[test]
fn occupied_admin_address_is_reported() {
    let ip = fresh_ip();
    let holder = TcpListener::bind((ip, 8080)).unwrap();
    let corefile = format!(".:5399 {{\nbind {ip}\nwhoami\nhealth {ip}:8080\n}}");
    let output = Server::expect_failure(&corefile, Options::default());
    assert_one_line(
        &output,
        &[
            &format!("listen tcp {ip}:8080: bind: address already in use by "),
            &format!("(pid {}); stop that process or choose another address", std::process::id()),
        ],
    );
    drop(holder);
}

#[test]
fn unreadable_corefile_is_one_error() {
    let test = "unreadable_corefile_is_one_error";
    let directory = tempdir();
    let path = directory.path().join("Corefile");
    fs::write(&path, format!(".:5399 {{\nbind {}\nwhoami\n}}", fresh_ip())).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o000)).unwrap();
    let Some(mut command) = unprivileged(test, directory.path()) else { return };
    command.arg("-conf").arg(&path);
    let output = output(command, Duration::from_secs(10));
    assert_eq!(output.status.code(), Some(1));
    let remedy = "let this user read it, or name another file";
    assert_one_line(&output, &[&path.to_string_lossy(), "permission denied", remedy]);
}

/// Bad Corefiles are refused with place, cause and remedy.
#[test]
fn bad_corefiles_are_refused() {
    // The Corefile, the number of the faulty line, and words that the error must contain.
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
        (". {\netcd example.org\n}", 2, &["etcd"]),
    ];
    for (corefile, line, words) in rows {
        let output = Server::expect_failure(corefile, Options::default());
        let printed = text(&output.stderr);
        assert!(
            printed.contains(&format!("Corefile:{line}")),
            "{corefile}\nline {line} is not named:\n{printed}"
        );
        for word in words {
            assert!(printed.contains(word), "{corefile}\n{word:?} is not named:\n{printed}");
        }
        assert!(!printed.contains("panicked"), "{corefile}\n{printed}");
        assert!(printed.lines().count() <= 6, "{corefile}\nis reported at length:\n{printed}");
    }
}

/// Equal zones on one address are refused and reported.
#[test]
fn duplicate_zones_are_refused() {
    let ip = fresh_ip();
    let block = format!(".:5399 {{\nbind {ip}\nwhoami\n}}\n");
    let output = Server::expect_failure(&format!("{block}{block}"), Options::default());
    assert_contains!(text(&output.stderr), "already");
}

/// A port in use is reported, and nothing stays bound.
#[test]
fn occupied_port_leaves_nothing_bound() {
    let port = port();
    let mut ips = [fresh_ip(), fresh_ip()];
    ips.sort();
    // Addresses are bound in ascending order: the free one is bound before the other is refused.
    let [free, ip] = ips;
    let holder = UdpSocket::bind((ip, port)).unwrap();
    let corefile = format!(".:{port} {{\nbind {free} {ip}\nwhoami\n}}");
    let output = Server::expect_failure(&corefile, Options::default());
    assert_contains!(text(&output.stderr), format!("{ip}:{port}"));
    assert_contains!(text(&output.stderr).to_lowercase(), "in use");
    drop(UdpSocket::bind((free, port)).expect("the other address is free over UDP"));
    drop(TcpListener::bind((free, port)).expect("the other address is free over TCP"));
    drop(holder);
    // The error names the process: a second instance on the first one's address.
    let first = Server::start(&corefile);
    let output = Server::expect_failure(&corefile, Options::default());
    assert_contains!(text(&output.stderr).to_lowercase(), "in use");
    assert_contains!(text(&output.stderr), first.pid().to_string());
    assert_eq!(ask((ip, port).into(), "a.example", "A").status(), "NOERROR", "the first is not disturbed");
}

/// A missing privilege is reported with its remedy.
#[test]
fn missing_privilege_is_reported() {
    let test = "missing_privilege_is_reported";
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
fn unwritable_pidfile_is_reported() {
    let ip = fresh_ip();
    let directory = tempdir();
    let path = directory.path().join("Corefile");
    fs::write(&path, format!(".:5399 {{\nbind {ip}\nwhoami\n}}")).unwrap();
    let output = localdns(&["-conf", &path.to_string_lossy(), "-pidfile", "/nonexistent/pid"]);
    assert_eq!(output.status.code(), Some(1));
    assert_one_line(
        &output,
        &["/nonexistent/pid", "name a file where this user may write, or -pidfile '' for none"],
    );
}

#[test]
fn pidfile_follows_no_symbolic_link() {
    let (ip, directory) = (fresh_ip(), tempdir());
    let at = |name: &str| directory.path().join(name).to_string_lossy().into_owned();
    fs::write(at("Corefile"), format!(".:5399 {{\nbind {ip}\nwhoami\n}}")).unwrap();
    fs::write(at("another"), "precious").unwrap();
    for target in ["another", "absent"] {
        let link = at(&format!("link-to-{target}"));
        std::os::unix::fs::symlink(at(target), &link).unwrap();
        let output = localdns(&["-conf", &at("Corefile"), "-pidfile", &link]);
        assert_eq!(output.status.code(), Some(1));
        assert_one_line(&output, &[&link, "it is a symbolic link, which is not followed; name a file"]);
    }
    assert_eq!(fs::read_to_string(at("another")).unwrap(), "precious");
    assert!(!Path::new(&at("absent")).exists());
}

/// The program as an unprivileged user with access to `directory` but no files there; `nobody` if
/// this process is root.
fn unprivileged(test: &str, directory: &Path) -> Option<Command> {
    if !privileged() {
        return Some(Command::new(binary()));
    }
    if !tool(test, "setpriv") {
        return None;
    }
    // The binary may be in a directory of root's: the user runs a copy.
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
