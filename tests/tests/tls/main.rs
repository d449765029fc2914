//! DNS over TLS as seen by clients (RFC 7858): certificates, client authentication, metrics,
//! limits.

mod clients;
mod hostile;
mod limits;
mod sessions;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use tempfile::TempDir;
use tests::{
    Ask, Authority, Connection, Metrics, Options, Server, TlsClient, ask, assert_contains, binary,
    eventually, fresh_ip, port, tempdir,
};

const PATIENCE: Duration = Duration::from_secs(5);
const HOST: &str = "dns.example";

/// A server with one TLS endpoint, and the authority of its certificate.
struct Dot {
    at: SocketAddr,
    authority: Authority,
    files: TempDir,
    server: Server,
}

impl Dot {
    /// `options` are in the braces of `tls`, `directives` below it; `@IP@` is the server's address.
    fn start(ca: &str, options: &str, directives: &str) -> Self {
        let (ip, authority, files) = (fresh_ip(), Authority::new(), tempdir());
        authority.certify(files.path(), HOST);
        authority.write(files.path());
        let text = Self::corefile(ip, &files, ca, options, directives);
        Self { at: (ip, port()).into(), authority, server: Server::start(&text), files }
    }

    fn corefile(ip: Ipv4Addr, files: &TempDir, ca: &str, options: &str, directives: &str) -> String {
        let (port, files) = (port(), files.path().display());
        let tls = format!("root {files}\ntls cert.pem key.pem {ca} {{\n{options}\n}}");
        format!("tls://.:{port} {{\nbind {ip}\n{tls}\n{}\n}}\n", directives.replace("@IP@", &ip.to_string()))
    }

    fn client(&self) -> TlsClient {
        self.authority.client(HOST, None)
    }

    fn open(&self, client: &TlsClient) -> anyhow::Result<Connection> {
        Connection::open_tls(self.at, client, PATIENCE)
    }
}

fn check(corefile: &Path) -> Output {
    let mut command = Command::new(binary());
    command.args(["check", "-conf"]).arg(corefile).output().expect("it can be started")
}

/// Sends one query and returns the rcode.
fn rcode(connection: &mut Connection) -> anyhow::Result<u16> {
    connection.send(&Ask::new("a.example", "A").bytes())?;
    Ok(connection.message()?.rcode())
}

/// Queries over TLS are answered, counted and logged as in CoreDNS.
#[test]
fn tls_queries_match_coredns() {
    let dot = Dot::start("", "", "whoami\nprometheus @IP@:9153\nlog");
    let mut connection = dot.open(&dot.client()).unwrap();
    assert_eq!(rcode(&mut connection).unwrap(), 0);
    assert_eq!(connection.shown().1, None, "no client asked for a protocol");
    let metrics = Metrics::after_queries((dot.at.ip(), 9153).into(), 1);
    let server = format!("tls://{}", dot.at);
    let labels = [("server", &server[..]), ("proto", "tcp"), ("zone", "."), ("family", "1"), ("type", "A")];
    assert_eq!(metrics.count("coredns_dns_requests_total", &labels), 1.0);
    dot.server.wait_for_log(&format!("{} - ", connection.port()), PATIENCE);
    assert_contains!(dot.server.log_text(), "A IN a.example. tcp ");
    assert_contains!(dot.server.log_text(), format!("tls://.:{} on {}", port(), dot.at.ip()));
    // There is no service without TLS.
    assert!(Ask::new("a.example", "A").timeout(Duration::from_millis(300)).try_of(dot.at).is_err());
    let mut plain = Connection::open(dot.at, PATIENCE).unwrap();
    plain.send(&Ask::new("a.example", "A").bytes()).unwrap();
    assert!(plain.is_closed_by_peer());
}

/// ALPN: clients that offer only other protocols are served without one, as in CoreDNS.
#[test]
fn dot_is_negotiated() {
    let dot = Dot::start("", "", "whoami");
    let offers = |protocols: &[&[u8]]| protocols.iter().map(|protocol| protocol.to_vec()).collect::<Vec<_>>();
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        for (offered, agreed) in [
            (offers(&[]), None),
            (offers(&[b"dot"]), Some(b"dot".to_vec())),
            (offers(&[b"h2", b"dot"]), Some(b"dot".to_vec())),
            (offers(&[b"h2"]), None),
            (offers(&[b"h2", b"http/1.1", b"dot2"]), None),
        ] {
            let mut client = dot.authority.client_of(HOST, None, &[version]);
            let mut config = (*client.config).clone();
            config.alpn_protocols = offered.clone();
            client.config = config.into();
            // The second connection resumes the session of the first.
            for _ in 0..2 {
                let mut connection =
                    dot.open(&client).unwrap_or_else(|error| panic!("{offered:?}: {error:#}"));
                assert_eq!(connection.shown().1, agreed, "{version:?} {offered:?}");
                assert_eq!(rcode(&mut connection).unwrap(), 0, "{version:?} {offered:?}");
            }
        }
    }
}

#[test]
fn client_auth_matches_coredns() {
    let (friend, stranger) = (Authority::new(), Authority::new());
    // Whether a client without a certificate, with a stranger's and with a friend's is served.
    for (word, served) in [
        ("nocert", [true, true, true]),
        ("request", [true, true, true]),
        ("require", [false, true, true]),
        ("verify_if_given", [true, false, true]),
        ("require_and_verify", [false, false, true]),
    ] {
        let (ip, files) = (fresh_ip(), tempdir());
        friend.certify(files.path(), HOST);
        friend.write(files.path());
        let options = format!("client_auth {word}");
        let _server = Server::start(&Dot::corefile(ip, &files, "ca.pem", &options, "whoami"));
        for (shows, served) in [None, Some(&stranger), Some(&friend)].into_iter().zip(served) {
            let client = friend.client(HOST, shows);
            let asked = Connection::open_tls((ip, port()).into(), &client, PATIENCE);
            let reply = asked.and_then(|mut connection| rcode(&mut connection));
            assert_eq!(reply.is_ok(), served, "{word}, {shows:?}: {reply:?}");
        }
    }
}

/// Without an authority in the Corefile, the system's verify clients.
#[test]
fn system_authorities_verify_clients() {
    let (friend, stranger, ip, files) = (Authority::new(), Authority::new(), fresh_ip(), tempdir());
    friend.certify(files.path(), HOST);
    let roots = friend.write(files.path());
    let options = Options::default().env("SSL_CERT_FILE", &roots.display().to_string());
    let corefile = Dot::corefile(ip, &files, "", "client_auth require_and_verify", "whoami");
    let _server = Server::start_with(&corefile, options);
    for (shows, served) in [(&friend, true), (&stranger, false)] {
        let asked = Connection::open_tls((ip, port()).into(), &friend.client(HOST, Some(shows)), PATIENCE);
        let reply = asked.and_then(|mut connection| rcode(&mut connection));
        assert_eq!(reply.is_ok(), served, "{reply:?}");
    }
}

/// New connections get the new certificate, and old connections stay open.
#[test]
fn new_certificate_and_old_connections() {
    let dot = Dot::start("", "", "whoami\ntimeouts {\nidle 1m\n}");
    let mut old = dot.open(&dot.client()).unwrap();
    rcode(&mut old).unwrap();
    // A key without its certificate is not used, and is logged; nor is a chain that no client
    // accepts.
    let long = dot.files.path().join("long.pem");
    let certificate = std::fs::read_to_string(dot.files.path().join("cert.pem")).unwrap();
    std::fs::write(&long, certificate.repeat(400)).unwrap();
    std::fs::rename(long, dot.files.path().join("cert.pem")).unwrap();
    dot.server.wait_for_log("more than peers accept", Duration::from_secs(20));
    let still = dot.open(&dot.client()).unwrap();
    assert_eq!(still.shown().0, old.shown().0);
    let other = tempdir();
    dot.authority.certify(other.path(), HOST);
    std::fs::rename(other.path().join("key.pem"), dot.files.path().join("key.pem")).unwrap();
    dot.server.wait_for_log("the former files are used", Duration::from_secs(20));
    let mut between = dot.open(&dot.client()).unwrap();
    assert_eq!(between.shown().0, old.shown().0);
    rcode(&mut between).unwrap();
    std::fs::rename(other.path().join("cert.pem"), dot.files.path().join("cert.pem")).unwrap();
    dot.server.wait_for_log("plugin/tls: Successfully reloaded", Duration::from_secs(20));
    let mut new = dot.open(&dot.client()).unwrap();
    assert_ne!(new.shown().0, old.shown().0);
    for connection in [&mut old, &mut between, &mut new] {
        assert_eq!(rcode(connection).unwrap(), 0, "no connection is lost");
    }
}

/// A key of another certificate and a missing file are reported with their paths.
#[test]
fn bad_key_and_missing_file() {
    let [wrong, gone] = [(), ()].map(|()| Dot::start("", "", "whoami"));
    let key = |dot: &Dot| dot.files.path().join("key.pem");
    let other = tempdir();
    Authority::new().certify(other.path(), HOST);
    std::fs::rename(other.path().join("key.pem"), key(&wrong)).unwrap();
    std::fs::remove_file(key(&gone)).unwrap();
    for (dot, cause) in [
        (&wrong, "key.pem: does not match the certificate in "),
        (&gone, "key.pem: No such file or directory (os error 2); "),
    ] {
        let line = dot.server.wait_for_log("cannot use the files of `tls`: ", Duration::from_secs(20));
        assert_contains!(line, cause);
        assert_contains!(line, "; the former files are used; name ");
        assert_eq!(rcode(&mut dot.open(&dot.client()).unwrap()).unwrap(), 0);
    }
}

/// It may change the transport.
#[test]
fn reload_keeps_connections_and_sockets() {
    let dot = Dot::start("", "", "whoami");
    let mut old = dot.open(&dot.client()).unwrap();
    let std::net::IpAddr::V4(ip) = dot.at.ip() else { unreachable!() };
    dot.server.write_corefile(&Dot::corefile(ip, &dot.files, "", "", "whoami\nnsid x"));
    dot.server.signal("USR1");
    dot.server.wait_for_log("Reloading complete", PATIENCE);
    assert_eq!(rcode(&mut old).unwrap(), 0);
    dot.server.write_corefile(&format!(".:{} {{\nbind {ip}\nwhoami\n}}\n", port()));
    dot.server.signal("USR1");
    dot.server.wait_for_lines("Reloading complete", 2, PATIENCE);
    assert_eq!(ask(dot.at, "a.example", "A").status(), "NOERROR");
    assert_eq!(Ask::new("a.example", "A").tcp().of(dot.at).status(), "NOERROR");
    // A Corefile with a missing key file is refused, and the old configuration serves.
    std::fs::remove_file(dot.files.path().join("key.pem")).unwrap();
    dot.server.write_corefile(&Dot::corefile(ip, &dot.files, "", "", "whoami"));
    dot.server.signal("USR1");
    dot.server.wait_for_log("Restart failed", PATIENCE);
    assert_contains!(dot.server.log_text(), "key.pem: No such file or directory");
    assert_eq!(ask(dot.at, "a.example", "A").status(), "NOERROR");
}

/// TLS that cannot be served is reported at its place in the Corefile.
#[test]
fn unservable_tls_is_reported() {
    let (one, two) = (tempdir(), tempdir());
    for directory in [&one, &two] {
        let authority = Authority::new();
        authority.certify(directory.path(), HOST);
        authority.write(directory.path());
    }
    let (ip, port) = (fresh_ip(), port());
    let block =
        |key: &str, directives: &str| format!("{key}:{port} {{\nbind {ip}\n{directives}\nwhoami\n}}\n");
    let tls = |files: &TempDir| {
        let file = |name: &str| files.path().join(name).display().to_string();
        format!("tls {} {}", file("cert.pem"), file("key.pem"))
    };
    let absent = one.path().join("no.pem").display().to_string();
    let long = one.path().join("long.pem").display().to_string();
    let certificate = std::fs::read_to_string(one.path().join("cert.pem")).unwrap();
    std::fs::write(&long, certificate.repeat(400)).unwrap();
    let here = |files: &TempDir, name: &str| files.path().join(name).display().to_string();
    // Columns of the arguments.
    let second = "tls ".len() + here(&one, "cert.pem").len() + 2;
    let third = second + here(&one, "key.pem").len() + 1;
    for (text, error) in [
        (
            block("tls://.", ""),
            format!("Corefile:1:1: \"tls://.:{port}\" needs `tls CERT KEY` in this server block"),
        ),
        (
            block("tls://.", &format!("tls {absent} {absent}")),
            format!("Corefile:3:5: plugin/tls: {absent}: No such file or directory"),
        ),
        (
            block("tls://.", &format!("tls {} {}", here(&one, "key.pem"), here(&one, "key.pem"))),
            format!("Corefile:3:5: plugin/tls: {}: no valid certificate; name a", here(&one, "key.pem")),
        ),
        (
            block("tls://.", &format!("tls {} {absent}", here(&one, "cert.pem"))),
            format!("Corefile:3:{second}: plugin/tls: {absent}: No such file or directory"),
        ),
        (
            block("tls://.", &format!("tls {long} {}", here(&one, "key.pem"))),
            format!(
                "Corefile:3:5: plugin/tls: {long}: @ bytes of certificates, more than peers accept (at most 60 KiB); name "
            ),
        ),
        (
            block("tls://.", &format!("tls {} {}", here(&one, "cert.pem"), here(&two, "key.pem"))),
            format!(
                "Corefile:3:{second}: plugin/tls: {}: does not match the certificate in {}; name ",
                here(&two, "key.pem"),
                here(&one, "cert.pem")
            ),
        ),
        (
            block("tls://a.example", &tls(&one)) + &block("tls://b.example", &tls(&two)),
            format!(
                "Corefile:8:1: cannot serve tls://b.example.:{port} - conflicting TLS configuration with the `tls` at @Corefile:3:1: the certificates differ"
            ),
        ),
        (
            block("tls://a.example", &tls(&one))
                + &block("tls://b.example", &(tls(&one) + " {\nclient_auth request\n}")),
            format!(
                "Corefile:8:1: cannot serve tls://b.example.:{port} - conflicting TLS configuration with the `tls` at @Corefile:3:1: `client_auth` differs"
            ),
        ),
        (
            block("tls://a.example", &(tls(&one) + " " + &here(&one, "ca.pem")))
                + &block("tls://b.example", &(tls(&one) + " " + &here(&two, "ca.pem"))),
            format!(
                "Corefile:8:1: cannot serve tls://b.example.:{port} - conflicting TLS configuration with the `tls` at @Corefile:3:1: the authorities differ"
            ),
        ),
        (
            block("tls://a.example", &tls(&one))
                + &block("tls://b.example", &format!("{} {{\nkeylog {}\n}}", tls(&one), here(&one, "log"))),
            format!(
                "Corefile:8:1: cannot serve tls://b.example.:{port} - conflicting TLS configuration with the `tls` at @Corefile:3:1: `keylog` differs"
            ),
        ),
        (
            block("tls://a.example", &tls(&one)) + &block("tls://b.example", ""),
            format!("Corefile:6:1: \"tls://b.example:{port}\" needs `tls CERT KEY` in this server block"),
        ),
        (
            block("tls://.", &format!("{} {}", tls(&one), here(&one, "no.pem"))),
            format!("Corefile:3:{third}: plugin/tls: {}: No such file or directory", here(&one, "no.pem")),
        ),
        (
            block("tls://.", &format!("{} {{\nkeylog {}\n}}", tls(&one), one.path().display())),
            format!("Corefile:4:8: plugin/tls: {}: cannot be written: ", one.path().display()),
        ),
        (
            block("tls://.", &format!("{} {{\nkeylog {}\n}}", tls(&one), here(&one, "no/where"))),
            format!(
                "Corefile:4:8: plugin/tls: {}: cannot be written: No such file or directory",
                here(&one, "no/where")
            ),
        ),
        (
            block(".", "") + &block("tls://.", &tls(&one)),
            format!(
                "Corefile:6:1: cannot serve tls://.:{port} - connections to that address and port go to the server block at @Corefile:1:1"
            ),
        ),
    ] {
        let served = Server::expect_failure(&text, Options::default());
        let corefile = one.path().join("Corefile");
        std::fs::write(&corefile, &text).unwrap();
        let checked = check(&corefile);
        assert!(!checked.status.success(), "{text}");
        for ended in [served, checked] {
            let printed =
                String::from_utf8_lossy(&ended.stderr).into_owned() + &String::from_utf8_lossy(&ended.stdout);
            // `@` stands for the directory.
            for part in error.split('@') {
                assert_contains!(printed, part);
            }
        }
    }
    // `check` writes no secrets.
    let corefile = one.path().join("Corefile");
    let text = block("tls://.", &format!("{} {{\nkeylog {}\n}}", tls(&one), here(&one, "secrets")));
    std::fs::write(&corefile, text).unwrap();
    assert!(check(&corefile).status.success());
    assert!(!one.path().join("secrets").exists());
    // Equal settings twice are no conflict.
    let both = block("tls://a.example", &tls(&one)) + &block("tls://b.example", &tls(&one));
    drop(Server::start(&both));
}

#[test]
fn keylog_writes_connection_secrets() {
    let dot = Dot::start("", "keylog secrets", "whoami");
    rcode(&mut dot.open(&dot.client()).unwrap()).unwrap();
    let file = dot.files.path().join("secrets");
    dot.server.wait_for_log("plugin/tls: Writing TLS Key Log to", PATIENCE);
    eventually("a line for each secret", PATIENCE, || {
        let text = std::fs::read_to_string(&file).ok()?;
        let labels: Vec<&str> = text.lines().filter_map(|line| line.split(' ').next()).collect();
        let wanted = ["SERVER_TRAFFIC_SECRET_0", "CLIENT_TRAFFIC_SECRET_0"];
        wanted.iter().all(|label| labels.contains(label)).then_some(())
    });
    use std::os::unix::fs::PermissionsExt as _;
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
}
