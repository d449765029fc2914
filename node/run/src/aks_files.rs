//! Writes the files that AKS's script provides for other programs: the served Corefile, its
//! `forward` addresses as metrics, and the name servers of the node's network.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use corefile::{Corefile, Directive, Word};
use node::{AddressText, Diagnosis, ListText, WIRE_SERVER};

use crate::upstream_discovery::KEPT;

/// Function that returns the text and the parsed form of the current Corefile. May block on a disk.
pub(crate) type ReadCorefile = dyn Fn() -> Option<(String, Corefile)> + Send + Sync;

/// Writes each file atomically if its directory exists; returns the errors, with remedies.
pub(crate) fn write(read: &ReadCorefile, upstreams: &[SocketAddr]) -> Vec<Diagnosis> {
    let mut failed = Vec::new();
    let mut put = |path: &str, text: &str| {
        let path = Path::new(path);
        if path.parent().is_some_and(Path::is_dir)
            && let Err(error) = files::atomic_write(path, None, text.as_bytes())
        {
            failed.push(Diagnosis::new(
                format!("{error}: the server runs without it, but other programs read it"),
                "free disk space, and allow this service to write it (ReadWritePaths)",
            ));
        }
    };
    if !upstreams.is_empty() {
        put(KEPT, &format!("{}\n", ListText(upstreams)));
    }
    if Path::new(DIRECTORY).is_dir()
        && let Some((text, corefile)) = read()
    {
        put(&format!("{DIRECTORY}/updated.localdns.corefile"), &updated(&text, &corefile, upstreams));
        put(&format!("{DIRECTORY}/forward_ips.prom"), &forward_ips(&corefile, upstreams));
    }
    failed
}

/// Returns the Corefile's text with the name servers in place of 168.63.129.16 in `forward`
/// directives; imported files are not changed.
fn updated(text: &str, corefile: &Corefile, upstreams: &[SocketAddr]) -> String {
    let mut lines: Vec<String> = text.split('\n').map(str::to_owned).collect();
    if upstreams.is_empty() {
        return text.to_owned();
    }
    let mut words: Vec<&Word> = forwards(corefile).flat_map(|forward| forward.args.iter().skip(1)).collect();
    // From the last word to the first: a replacement moves only the text to its right.
    words.sort_by_key(|word| std::cmp::Reverse((word.at.line, word.at.column)));
    for word in words {
        let Some(port) = port_of(word) else { continue };
        let index = (word.at.line as usize).saturating_sub(1);
        let Some(line) = lines.get_mut(index) else { continue };
        let column = (word.at.column as usize).saturating_sub(1);
        let Some((at, _)) = line.char_indices().nth(column) else { continue };
        // Words of imported files and variables are not in this text.
        if line[at..].starts_with(&word.text) {
            line.replace_range(at..at + word.text.len(), &words_for(upstreams, port));
        }
    }
    lines.join("\n")
}

/// Returns the port of a word that names 168.63.129.16, `Some(None)` without a port; `None` for all
/// other words.
fn port_of(word: &Word) -> Option<Option<u16>> {
    if word.text.parse() == Ok(WIRE_SERVER) {
        return Some(None);
    }
    let address: SocketAddr = word.text.parse().ok()?;
    (address.ip() == WIRE_SERVER).then_some(Some(address.port()))
}

fn words_for(upstreams: &[SocketAddr], port: Option<u16>) -> String {
    match port {
        None => ListText(upstreams).to_string(),
        Some(port) => {
            let words: Vec<_> = upstreams.iter().map(|server| with_port(*server, port)).collect();
            words.join(" ")
        }
    }
}

fn with_port(server: SocketAddr, port: u16) -> String {
    match server {
        SocketAddr::V4(v4) => format!("{}:{port}", v4.ip()),
        SocketAddr::V6(_) => format!("[{}]:{port}", AddressText(server)),
    }
}

fn forwards(corefile: &Corefile) -> impl Iterator<Item = &Directive> {
    corefile.blocks.iter().flat_map(|block| &block.directives).filter(|one| one.name.text == "forward")
}

/// Returns metrics of AKS's exporter: the IPv4 addresses to which each server block forwards `.`,
/// for the blocks that listen on 169.254.10.10 and on 169.254.10.11.
fn forward_ips(corefile: &Corefile, upstreams: &[SocketAddr]) -> String {
    let mut text = String::new();
    for (kind, name, listener) in
        [("vnetdns", "VnetDNS", [169, 254, 10, 10]), ("kubedns", "KubeDNS", [169, 254, 10, 11])]
    {
        let family = format!("localdns_{kind}_forward_info");
        let _ = writeln!(text, "# HELP {family} {name} forward plugin IP address from corefile");
        let _ = writeln!(text, "# TYPE {family} gauge");
        let rows = rows(corefile, IpAddr::from(listener), upstreams);
        for (ip, block) in &rows {
            let _ = writeln!(text, "{family}{{ip=\"{ip}\",block=\"{block}\",status=\"ok\"}} 1");
        }
        if rows.is_empty() {
            let _ = writeln!(text, "{family}{{ip=\"unknown\",block=\"none\",status=\"missing\"}} 0");
        }
    }
    text
}

fn rows<'c>(corefile: &'c Corefile, listener: IpAddr, upstreams: &[SocketAddr]) -> Vec<(IpAddr, &'c str)> {
    let mut rows = Vec::new();
    for block in &corefile.blocks {
        let named = |name: &'static str| block.directives.iter().filter(move |one| one.name.text == name);
        let mut binds =
            named("bind").flat_map(|bind| &bind.args).filter_map(|word| word.text.parse::<IpAddr>().ok());
        // If `bind` names several of these addresses, the last one counts, as in AKS's script.
        if binds.rfind(|ip| PRODUCTION.contains(ip)) != Some(listener) {
            continue;
        }
        let Some(key) = block.keys.first() else { continue };
        let all =
            named("forward").filter(|forward| forward.args.first().is_some_and(|from| from.text == "."));
        for word in all.flat_map(|forward| forward.args.iter().skip(1)) {
            match port_of(word) {
                Some(_) if !upstreams.is_empty() => {
                    rows.extend(upstreams.iter().map(|server| (server.ip(), &*key.written.text)))
                }
                _ => rows.extend(word.text.parse().ok().map(|ip| (ip, &*key.written.text))),
            }
        }
    }
    rows.retain(|(ip, _)| ip.is_ipv4());
    rows
}

/// Directory of AKS's script, where other programs look for the files.
const DIRECTORY: &str = "/opt/azure/containers/localdns";
/// AKS's listen addresses: the first for the node's network (VnetDNS), the second for kube-dns.
const PRODUCTION: [IpAddr; 2] = [
    IpAddr::V4(std::net::Ipv4Addr::new(169, 254, 10, 10)),
    IpAddr::V4(std::net::Ipv4Addr::new(169, 254, 10, 11)),
];

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# asks 168.63.129.16\n.:53 {\n  bind 169.254.10.10 # é\n  forward . 168.63.129.16 168.63.129.16:5300 {\n    \
        max_concurrent 1\n  }\n  template ANY TXT {\n    answer \"168.63.129.16\"\n  }\n}\n\
        cluster.local:53 {\n  bind 169.254.10.11\n  forward . 10.0.0.10\n  forward a.b 168.63.129.16\n}\n";

    fn servers(text: &str) -> Vec<SocketAddr> {
        text.split(' ').filter_map(|ip| Some(SocketAddr::new(ip.parse().ok()?, 53))).collect()
    }

    fn read(text: &str) -> Corefile {
        corefile::read_text("stdin", text.as_bytes(), Path::new("."), &|_| None).unwrap()
    }

    #[test]
    fn only_what_is_asked_is_replaced() {
        let two = servers("10.0.0.4 fd00::4");
        let expected = TEXT
            .replace(
                "forward . 168.63.129.16 168.63.129.16:5300",
                "forward . 10.0.0.4 fd00::4 10.0.0.4:5300 [fd00::4]:5300",
            )
            .replace("forward a.b 168.63.129.16", "forward a.b 10.0.0.4 fd00::4");
        assert_eq!(updated(TEXT, &read(TEXT), &two), expected);
        assert_eq!(updated(TEXT, &read(TEXT), &servers("168.63.129.16")), TEXT);
        let linked = updated(TEXT, &read(TEXT), &[node::address("fe80::4%lo", 53).unwrap()]);
        assert!(linked.contains("forward . fe80::4%lo [fe80::4%lo]:5300 {"), "{linked}");
        assert_eq!(updated(TEXT, &read(TEXT), &[]), TEXT);
    }

    #[test]
    fn forward_info_of_each_listener() {
        let result = forward_ips(&read(TEXT), &servers("10.0.0.4 fd00::4"));
        assert_eq!(
            result,
            "# HELP localdns_vnetdns_forward_info VnetDNS forward plugin IP address from corefile\n\
             # TYPE localdns_vnetdns_forward_info gauge\n\
             localdns_vnetdns_forward_info{ip=\"10.0.0.4\",block=\".:53\",status=\"ok\"} 1\n\
             localdns_vnetdns_forward_info{ip=\"10.0.0.4\",block=\".:53\",status=\"ok\"} 1\n\
             # HELP localdns_kubedns_forward_info KubeDNS forward plugin IP address from corefile\n\
             # TYPE localdns_kubedns_forward_info gauge\n\
             localdns_kubedns_forward_info{ip=\"10.0.0.10\",block=\"cluster.local:53\",status=\"ok\"} 1\n"
        );
        let none = forward_ips(&read(".:53 {\nwhoami\n}\n"), &[]);
        assert!(
            none.contains(
                "localdns_vnetdns_forward_info{ip=\"unknown\",block=\"none\",status=\"missing\"} 0\n"
            )
        );
    }
}
