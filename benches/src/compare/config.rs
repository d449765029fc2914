//! Generates the configuration text of each server. Opens no file.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use super::work::{QueriesOf, Work};
use load::names::{Pattern, address_of};
use load::workload::HOSTS;

/// Directory and addresses of a server.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The server's own directory.
    pub dir: &'a Path,
    /// The listen addresses.
    pub listen: &'a [SocketAddr],
    /// The upstream of the server.
    pub upstream: SocketAddr,
    /// The number of workers: one for each core of the server.
    pub workers: usize,
}

impl Place<'_> {
    fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.listen.iter().map(SocketAddr::ip)
    }

    fn file(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }
}

/// Returns the text of a hosts file with a line `ADDRESS NAME` for each of `count` names.
pub fn hosts(count: u32) -> String {
    let mut text = String::new();
    each_host(count, |name, address| line(&mut text, format_args!("{address} {name}")));
    text
}

/// Returns the text of a zone file with the names of [`hosts`]; without names if `count` is 0.
pub fn zone(count: u32) -> String {
    let mut text =
        "$TTL 3600\n@ IN SOA ns hostmaster 1 3600 600 86400 60\n@ IN NS ns\nns IN A 127.0.0.10\n".to_owned();
    each_host(count, |name, address| line(&mut text, format_args!("{name}. IN A {address}")));
    text
}

/// Returns the Corefile for CoreDNS and localdns: the same for both, with metrics and errors
/// enabled as usual in production.
pub fn corefile(work: &Work, place: &Place<'_>) -> String {
    let mut common = "    bind".to_owned();
    for address in place.addresses() {
        common += &format!(" {address}");
    }
    common += &format!("\n    errors\n    prometheus {}:9153\n", place.listen[0].ip());
    if work.log {
        common += "    log\n";
    }
    let absent = "    template ANY ANY {\n        rcode NXDOMAIN\n    }\n";
    let block = |zone: &str, rest: &str| format!("{zone}:{} {{\n{common}{rest}}}\n", place.listen[0].port());
    match work.source {
        QueriesOf::Hosts(_) => block(".", &format!("    hosts {}\n", place.file("hosts"))),
        QueriesOf::Absent => block(".", absent),
        QueriesOf::Whoami => block(".", "    whoami\n"),
        QueriesOf::Zones(count) => (0..count).map(|number| block(&zone_name(number), absent)).collect(),
        QueriesOf::Services => {
            let api = format!("{{\n        endpoint http://{}\n    }}", place.upstream);
            block(".", &format!("    kubernetes cluster.local in-addr.arpa {api}\n"))
        }
        QueriesOf::Upstream(entries) => {
            let size =
                entries.map_or(String::new(), |entries| format!(" {{\n        success {entries}\n    }}"));
            let hosts = match work.hosts_in_front {
                0 => String::new(),
                _ => format!("    hosts {} {{\n        fallthrough\n    }}\n", place.file("hosts")),
            };
            block(".", &format!("{hosts}    cache 3600{size}\n    forward . {}\n", place.upstream))
        }
    }
}

/// Returns Unbound's configuration.
pub fn unbound(work: &Work, place: &Place<'_>) -> String {
    let mut text = format!(
        "server:\n    username: \"\"\n    chroot: \"\"\n    directory: \"{}\"\n    pidfile: \"\"\n    use-syslog: no\n    do-daemonize: no\n    num-threads: {}\n    \
         access-control: 127.0.0.0/8 allow\n    do-not-query-localhost: no\n    module-config: \"iterator\"\n    \
         msg-cache-size: 64m\n    rrset-cache-size: 64m\n    outgoing-range: 4096\n    num-queries-per-thread: 2048\n",
        place.dir.display(),
        place.workers,
    );
    for address in place.addresses() {
        line(&mut text, format_args!("    interface: {address}"));
    }
    if work.log {
        text += "    log-queries: yes\n";
    }
    if work.hosts() > 0 {
        text += "    local-zone: \"hosts.bench.\" static\n";
        each_host(work.hosts(), |name, address| {
            line(&mut text, format_args!("    local-data: \"{name}. 3600 IN A {address}\""));
        });
    }
    match work.source {
        QueriesOf::Absent => text += "    local-zone: \"absent.bench.\" static\n",
        QueriesOf::Zones(count) => {
            for number in 0..count {
                line(&mut text, format_args!("    local-zone: \"{}.\" static", zone_name(number)));
            }
        }
        QueriesOf::Hosts(_) | QueriesOf::Whoami | QueriesOf::Services => {}
        QueriesOf::Upstream(_) => {
            let upstream = place.upstream;
            line(
                &mut text,
                format_args!(
                    "forward-zone:\n    name: \".\"\n    forward-addr: {}@{}",
                    upstream.ip(),
                    upstream.port()
                ),
            );
        }
    }
    text + "remote-control:\n    control-enable: no\n"
}

/// Returns Knot DNS's configuration; the zones are in the files `zone` and `empty`.
pub fn knot(work: &Work, place: &Place<'_>) -> String {
    let listen: Vec<_> = place.listen.iter().map(|addr| format!("{}@{}", addr.ip(), addr.port())).collect();
    let mut text = format!(
        "server:\n    rundir: \"{0}\"\n    listen: [ {1} ]\n    udp-workers: {2}\n    tcp-workers: 1\n    background-workers: 1\n\
         database:\n    storage: \"{0}\"\nlog:\n  - target: stderr\n    any: warning\nzone:\n",
        place.dir.display(),
        listen.join(", "),
        place.workers,
    );
    for (zone, file) in zones(work) {
        line(
            &mut text,
            format_args!(
                "  - domain: {zone}\n    file: \"{}\"\n    zonefile-sync: -1\n    journal-content: none",
                place.file(file)
            ),
        );
    }
    text
}

/// Returns NSD's configuration; the zones are in the files `zone` and `empty`.
pub fn nsd(work: &Work, place: &Place<'_>) -> String {
    let mut text = format!(
        "server:\n    port: {}\n    username: \"\"\n    chroot: \"\"\n    zonesdir: \"{dir}\"\n    pidfile: \"{dir}/nsd.pid\"\n    \
         database: \"\"\n    xfrdfile: \"{dir}/xfrd.state\"\n    zonelistfile: \"{dir}/zone.list\"\n    xfrdir: \"{dir}\"\n    \
         cookie-secret-file: \"{dir}/cookies\"\n    server-count: {}\n    reuseport: yes\n    rrl-ratelimit: 0\n",
        place.listen[0].port(),
        place.workers,
        dir = place.dir.display(),
    );
    for address in place.addresses() {
        line(&mut text, format_args!("    ip-address: {address}"));
    }
    text += "remote-control:\n    control-enable: no\n";
    for (zone, file) in zones(work) {
        line(&mut text, format_args!("zone:\n    name: {zone}\n    zonefile: {}", place.file(file)));
    }
    text
}

/// Returns BIND's configuration; the zones are in the files `zone` and `empty`.
pub fn named(work: &Work, place: &Place<'_>) -> String {
    let listen: Vec<_> = place.addresses().map(|address| format!("{address};")).collect();
    let (upstream, dir) = (place.upstream, place.dir.display());
    let mut text = format!(
        "options {{\n    directory \"{dir}\";\n    pid-file none;\n    session-keyfile \"{dir}/session.key\";\n    \
         listen-on port {} {{ {} }};\n    listen-on-v6 {{ none; }};\n    allow-query {{ any; }};\n    recursion yes;\n    \
         forward only;\n    forwarders {{ {} port {}; }};\n    dnssec-validation no;\n    minimal-responses yes;\n    querylog {};\n}};\ncontrols {{ }};\n",
        place.listen[0].port(),
        listen.join(" "),
        upstream.ip(),
        upstream.port(),
        if work.log { "yes" } else { "no" },
    );
    for (zone, file) in zones(work) {
        line(&mut text, format_args!("zone \"{zone}\" {{ type primary; file \"{}\"; }};", place.file(file)));
    }
    text
}

/// Returns dnsdist's configuration.
pub fn dnsdist(work: &Work, place: &Place<'_>) -> String {
    let mut text = "setACL({\"127.0.0.0/8\"})\nsetSecurityPollSuffix(\"\")\n".to_owned();
    for (number, address) in place.listen.iter().enumerate() {
        line(&mut text, format_args!("{}Local(\"{address}\")", if number == 0 { "set" } else { "add" }));
    }
    line(&mut text, format_args!("newServer({{address=\"{}\", maxCheckFailures=100}})", place.upstream));
    match work.source {
        QueriesOf::Absent => text += "addAction(\"absent.bench.\", RCodeAction(DNSRCode.NXDOMAIN))\n",
        QueriesOf::Upstream(entries) => {
            let entries = entries.unwrap_or(DNSDIST_ENTRIES);
            line(
                &mut text,
                format_args!("getPool(\"\"):setCache(newPacketCache({entries}, {{maxTTL=3600}}))"),
            );
        }
        QueriesOf::Hosts(_) | QueriesOf::Zones(_) | QueriesOf::Whoami | QueriesOf::Services => {}
    }
    text
}

/// Returns dnsmasq's arguments.
pub fn dnsmasq(work: &Work, place: &Place<'_>) -> Vec<String> {
    let listen: Vec<_> = place.addresses().map(|address| address.to_string()).collect();
    let mut args = vec![
        "--keep-in-foreground".to_owned(),
        "--conf-file=/dev/null".to_owned(),
        "--user=root".to_owned(),
        "--pid-file=".to_owned(),
        "--no-resolv".to_owned(),
        "--no-hosts".to_owned(),
        "--bind-interfaces".to_owned(),
        "--log-facility=-".to_owned(),
        "--dns-forward-max=10000".to_owned(),
        format!("--port={}", place.listen[0].port()),
        format!("--listen-address={}", listen.join(",")),
    ];
    if work.log {
        args.push("--log-queries".to_owned());
    }
    if work.hosts() > 0 {
        args.push(format!("--addn-hosts={}", place.file("hosts")));
    }
    match work.source {
        QueriesOf::Absent => args.push("--local=/absent.bench/".to_owned()),
        QueriesOf::Zones(count) => {
            args.extend((0..count).map(|number| format!("--local=/{}/", zone_name(number))))
        }
        QueriesOf::Hosts(_) | QueriesOf::Whoami | QueriesOf::Services => {}
        QueriesOf::Upstream(entries) => {
            let upstream = place.upstream;
            args.push(format!("--server={}#{}", upstream.ip(), upstream.port()));
            args.push(format!("--cache-size={}", entries.unwrap_or(DNSDIST_ENTRIES)));
        }
    }
    args
}

/// Returns the zones of an authoritative server, each with its file.
fn zones(work: &Work) -> Vec<(String, &'static str)> {
    match work.source {
        _ if work.hosts() > 0 => vec![("hosts.bench".to_owned(), "zone")],
        QueriesOf::Absent => vec![("absent.bench".to_owned(), "empty")],
        QueriesOf::Zones(count) => (0..count).map(|number| (zone_name(number), "empty")).collect(),
        QueriesOf::Hosts(_) | QueriesOf::Whoami | QueriesOf::Upstream(_) | QueriesOf::Services => vec![],
    }
}

fn zone_name(number: u32) -> String {
    format!("z{number:08}.zones.bench")
}

/// Calls `each` with the name, without its final dot, and the address of each host.
fn each_host(count: u32, mut each: impl FnMut(&str, IpAddr)) {
    let pattern = Pattern::new(HOSTS).expect("a constant of ours");
    for number in 0..count {
        let name = pattern.name(number);
        each(name.to_string().trim_end_matches('.'), address_of(name.as_wire()).into());
    }
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    writeln!(text, "{arguments}").expect("a string takes what is written");
}

/// Cache entries of dnsdist, which has no usable default: about CoreDNS's 9,984.
const DNSDIST_ENTRIES: u32 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::work;
    use load::workload::Workload;

    #[test]
    fn the_files_know_the_names_that_are_asked_for() {
        let mut workload = Workload::in_order(&load::workload::Kind::Hosts(3)).expect("a workload");
        let mut question = Vec::new();
        for text in hosts(3).lines() {
            question.clear();
            let asked = workload.draw();
            workload.write_question(asked, &mut question);
            let (address, name) = text.split_once(' ').expect("two words");
            assert_eq!(
                wire::Name::from_text(name).expect("a name").as_wire(),
                &question[..question.len() - 4]
            );
            assert_eq!(address, address_of(&question[..question.len() - 4]).to_string());
        }
        assert_eq!(zone(3).lines().count(), 4 + 3);
    }

    #[test]
    fn zones_are_the_parents_of_the_names_asked_for() {
        let pattern = Pattern::new(load::workload::ZONES).expect("a constant of ours");
        let name = pattern.name(12).to_string();
        assert_eq!(name.split_once('.').expect("not the root").1, zone_name(12) + ".");
    }

    #[test]
    fn a_corefile_for_every_row_has_all_that_the_row_is_about() {
        let listen =
            ["127.0.0.10:53".parse().expect("an address"), "127.0.0.11:53".parse().expect("an address")];
        let place = Place {
            dir: Path::new("/dir"),
            listen: &listen,
            upstream: "127.0.0.20:5353".parse().expect("an address"),
            workers: 1,
        };
        for work in work::all() {
            let text = corefile(&work, &place);
            let blocks = text.matches("bind 127.0.0.10 127.0.0.11").count();
            assert_eq!(blocks, if work.name == "zones" { 1000 } else { 1 }, "{}", work.name);
            assert_eq!(text.contains("    log\n"), work.log);
            assert_eq!(text.contains("hosts /dir/hosts"), work.hosts() > 0, "{}", work.name);
            assert_eq!(text.contains("fallthrough"), work.hosts_in_front > 0, "{}", work.name);
            assert_eq!(text.matches('{').count(), text.matches('}').count());
        }
    }
}
