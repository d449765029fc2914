//! DNS over HTTPS: statuses, header fields, messages and metrics are CoreDNS's.

use std::net::SocketAddr;
use std::path::Path;

use tests::{Ask, Authority, HttpResponse, Metrics, Server, curl, fresh_ip, port, tempdir};

use crate::coredns::CoreDns;

/// The directives of the one block.
const DIRECTIVES: &str = "acl {\ndrop type MX\n}\n\
    template IN A {\nanswer \"{{ .Name }} 30 IN A 192.0.2.1\"\nanswer \"{{ .Name }} 20 IN A 192.0.2.2\"\n}\n\
    template IN TXT {\nanswer \"{{ .Name }} 90000 IN TXT x\"\n}\n\
    template IN AAAA {\nrcode NXDOMAIN\nauthority \"test. 300 IN SOA ns.test. a.test. 1 2 3 4 5\"\n}\n\
    template IN NS {\nauthority \"test. 300 IN NS ns.test.\"\n}\n\
    template IN SRV {\nrcode SERVFAIL\n}\n";

/// A request: its name, arguments of curl, the path, and the body of a POST.
struct Row {
    what: String,
    args: Vec<&'static str>,
    path: String,
    body: Option<Vec<u8>>,
}

fn base64url(octets: &[u8]) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for octets in octets.chunks(3) {
        let bits = octets.iter().fold(0_u32, |bits, octet| bits << 8 | u32::from(*octet))
            << (8 * (3 - octets.len()));
        let digits = (0..=octets.len()).map(|place| DIGITS[(bits >> (18 - 6 * place)) as usize & 63]);
        text.extend(digits.map(char::from));
    }
    text
}

/// A query with ID 0, as RFC 8484 recommends.
fn query(name: &str, rtype: &str) -> Vec<u8> {
    let mut octets = Ask::new(name, rtype).bytes();
    octets[..2].fill(0);
    octets
}

fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    let mut row = |what: &str, args: &[&'static str], path: &str, body: Option<Vec<u8>>| {
        let (what, path) = (what.to_owned(), path.to_owned());
        rows.push(Row { what, args: args.to_vec(), path, body });
    };
    for rtype in ["A", "TXT", "AAAA", "NS", "SRV", "MX", "PTR"] {
        let message = query("a.test", rtype);
        let path = format!("/dns-query?dns={}", base64url(&message));
        row(&format!("GET {rtype}"), &[], &path, None);
        row(&format!("GET {rtype}, HTTP/1.1"), &["--http1.1"], &path, None);
        row(&format!("POST {rtype}"), &[], "/dns-query", Some(message.clone()));
        row(&format!("POST {rtype}, HTTP/1.1"), &["--http1.1"], "/dns-query", Some(message));
    }
    let message = query("a.test", "A");
    let text = base64url(&message);
    let changed = |at: usize, octet: u8| {
        let mut message = message.clone();
        message[at] = octet;
        Some(message)
    };
    for (what, path) in [
        ("no message", "/dns-query".to_owned()),
        ("an empty message", "/dns-query?dns=".to_owned()),
        ("two messages", format!("/dns-query?dns={text}&dns={text}")),
        ("another variable, too", format!("/dns-query?a=b&dns={text}&ct=x")),
        ("padding", format!("/dns-query?dns={text}=")),
        ("an escape", format!("/dns%2Dquery?dn%73={text}")),
        ("no base64url", "/dns-query?dns=AAAA*".to_owned()),
        ("another path", format!("/dns?dns={text}")),
        ("the root", "/".to_owned()),
        ("a longer path", format!("/dns-query/x?dns={text}")),
    ] {
        row(what, &[], &path, None);
    }
    let path = format!("/dns-query?dns={text}");
    row("HEAD", &["-I"], &path, None);
    row("PUT", &["-X", "PUT"], "/dns-query", Some(message.clone()));
    row("DELETE", &["-X", "DELETE"], &path, None);
    row("OPTIONS", &["-X", "OPTIONS"], &path, None);
    row("POST elsewhere", &[], "/x", Some(message.clone()));
    row("POST without a message", &[], "/dns-query", Some(Vec::new()));
    let fields = ["-H", "Content-Type: text/plain", "-H", "Accept: text/html"];
    row("other types", &fields, "/dns-query", Some(message.clone()));
    row("no type", &["-H", "Content-Type:", "-H", "Accept:"], "/dns-query", Some(message.clone()));
    row("chunks", &["--http1.1", "-H", "Transfer-Encoding: chunked"], "/dns-query", Some(message.clone()));
    row("65,536 octets", &[], "/dns-query", Some(vec![0; 65_536]));
    row("65,537 octets", &[], "/dns-query", Some(vec![0; 65_537]));
    row("a response", &[], "/dns-query", changed(2, 0x81));
    row("an UPDATE", &[], "/dns-query", changed(2, 0x28));
    row("an unknown opcode", &[], "/dns-query", changed(2, 0x78));
    row("no question", &[], "/dns-query", changed(5, 0));
    row("two questions", &[], "/dns-query", changed(5, 2));
    row("class CH", &[], "/dns-query", changed(message.len() - 1, 3));
    let mut version = message.clone();
    version[11] = 1;
    version.extend_from_slice(&[0, 0, 41, 4, 208, 0, 1, 0, 0, 0, 0]);
    row("EDNS version 1", &[], "/dns-query", Some(version));
    rows
}

/// What must be equal: status, type, age and body, which for an answer is compared without the EDNS
/// option that localdns adds.
fn seen(response: &HttpResponse) -> String {
    let HttpResponse { status, body, .. } = response;
    let field = |name: &str| response.field(name).to_owned();
    let body = match field("content-type").as_str() {
        "application/dns-message" => format!("{:?}", body.get(..12)),
        // The head of a response to HEAD.
        _ if body.starts_with(b"HTTP/") => String::new(),
        _ => format!("{:?}", String::from_utf8_lossy(body)),
    };
    format!("{status} {} {} {body}", field("content-type"), field("cache-control"))
}

fn samples(at: SocketAddr, server: &str) -> Vec<String> {
    let metrics = Metrics::of(at);
    let counts = ["200", "400", "404", "500"].map(|status| {
        let labels = [("server", server), ("status", status)];
        format!("{status}: {}", metrics.count("coredns_dns_https_responses_total", &labels))
    });
    let labels = [("server", server), ("proto", "tcp"), ("type", "TXT")];
    let queries = metrics.count("coredns_dns_requests_total", &labels);
    let mut samples = counts.to_vec();
    samples.push(format!("TXT queries: {queries}"));
    samples
}

/// Returns the requests whose responses differ, with both responses.
pub(crate) fn differences(program: &Path) -> Vec<String> {
    let (authority, files) = (Authority::new(), tempdir());
    authority.certify(files.path(), "dns.example");
    let ips = [fresh_ip(), fresh_ip()];
    let [theirs, ours] = ips.map(|ip| {
        let directory = files.path().display();
        format!(
            "https://.:{} {{\nbind {ip}\nroot {directory}\ntls cert.pem key.pem\nprometheus {ip}:9153\n{DIRECTIVES}}}\n\
             https://.:{} {{\nbind {ip}\n{DIRECTIVES}}}\n",
            port(),
            port() + 1,
        )
    });
    let _coredns = CoreDns::start(program, &theirs);
    let _server = Server::start(&ours);
    let mut found = Vec::new();
    for (scheme, port) in [("https", port()), ("http", port() + 1)] {
        for Row { what, args, path, body } in rows() {
            if scheme == "http" && what.contains("HTTP/1.1") {
                continue;
            }
            let responses = ips.map(|ip| curl(scheme, (ip, port).into(), &path, body.as_deref(), &args));
            let [theirs, ours] = responses.each_ref().map(seen);
            if theirs != ours {
                found.push(format!("{scheme} {what}:\n  CoreDNS  {theirs}\n  localdns {ours}"));
            }
        }
    }
    let of = |ip: std::net::Ipv4Addr| samples((ip, 9153).into(), &format!("https://{ip}:{}", port()));
    let [theirs, ours] = ips.map(of);
    if theirs != ours {
        found.push(format!("metrics:\n  CoreDNS  {theirs:?}\n  localdns {ours:?}"));
    }
    found
}
