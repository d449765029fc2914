//! Refuses a ConfigMap that conflicts with the template, since a Corefile with both could not be
//! served, and finds flags without effect.

use std::net::IpAddr;
use std::path::Path;

use corefile::{BlockKey, Corefile, Directive, Location, Scheme, ServerBlock};

use node::Diagnosis;

use super::Template;
use super::kube_dns::KubeDns;

/// Refuses a ConfigMap that conflicts with the template. `filled` is the template filled without
/// the ConfigMap; errors in it are not reported here, but when it is served.
///
/// # Errors
/// A stub domain is a zone of the template, or a server of the ConfigMap is this server.
pub(super) fn refuse(filled: &str, template: &Template, kube_dns: &KubeDns) -> Result<(), Diagnosis> {
    let ours = |server: &&String| {
        node::socket_address(server, 53)
            .is_some_and(|server| server.port() == template.port && template.local_ips.contains(&server.ip()))
    };
    if let Some(server) = kube_dns.upstreams.iter().find(ours) {
        return Err(format!("upstreamNameservers: {server} is this server itself").into());
    }
    for (domain, servers) in &kube_dns.stub_domains {
        if let Some(server) = servers.iter().find(ours) {
            return Err(format!("stubDomains: {server} of {domain} is this server itself").into());
        }
    }
    if kube_dns.stub_domains.is_empty() {
        return Ok(());
    }
    let Some(corefile) = read(filled, template) else { return Ok(()) };
    for block in corefile.blocks.iter().filter(|block| is_bound_to(block, &template.local_ips)) {
        for key in &block.keys {
            if let Some(domain) = kube_dns.stub_domains.keys().find(|domain| serves(key, domain, template)) {
                let at: &Location = &key.written.at;
                return Err(
                    format!("stubDomains: {domain} is a zone of the template already, at {at}").into()
                );
            }
        }
    }
    Ok(())
}

/// Returns a note about addresses of `-localip` that no `bind` names. A block without `bind`
/// listens on every address, and a word that is not an address may be an interface with these
/// addresses.
pub(super) fn unbound(filled: &str, template: &Template) -> Option<Diagnosis> {
    let corefile = read(filled, template)?;
    let is_bound = |ip: &IpAddr| corefile.blocks.iter().any(|block| is_bound_to(block, &[*ip]));
    let unbound: Vec<_> =
        template.local_ips.iter().filter(|ip| !is_bound(ip)).map(IpAddr::to_string).collect();
    let (is, them) = match unbound.len() {
        0 => return None,
        1 => ("is", "it"),
        _ => ("are", "them"),
    };
    let addresses = unbound.join(", ");
    Some(Diagnosis::without_remedy(format!(
        "-localip: {addresses} {is} in no `bind` of the template, and neither added nor served: `bind` {them} there, or leave \
         {them} out of -localip"
    )))
}

fn read(filled: &str, template: &Template) -> Option<Corefile> {
    let (name, env) = (template.base.display().to_string(), |name: &str| std::env::var(name).ok());
    corefile::read_text(&name, filled.as_bytes(), Path::new("."), &env).ok()
}

fn serves(key: &BlockKey, domain: &str, template: &Template) -> bool {
    key.scheme == Scheme::Dns
        && key.port.unwrap_or(template.port) == template.port
        && key.zones.iter().any(|zone| zone.strip_suffix('.') == Some(domain))
}

/// Whether a block may listen on one of `local_ips`, as stub domains do: not so if its `bind` names
/// only other addresses.
fn is_bound_to(block: &ServerBlock, local_ips: &[IpAddr]) -> bool {
    let bound: Vec<&Directive> =
        block.directives.iter().filter(|directive| directive.name.text == "bind").collect();
    let mut words = bound.iter().flat_map(|bind| &bind.args);
    bound.is_empty() || words.any(|word| word.text.parse().map_or(true, |ip| local_ips.contains(&ip)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_own_zones_and_addresses() {
        let template = Template {
            base: "base".into(),
            kube_dns: None,
            local_ips: vec![[169, 254, 20, 10].into()],
            cluster_dns: None,
            cluster_dns_variable: String::new(),
            port: 53,
            prometheus: String::new(),
            written: None,
        };
        let base = "cluster.local {\n bind 169.254.20.10\n}\nx.test:53 y.test:54 tls://z.test:53 {\n}\n\
                    a.test:53 {\n bind 127.0.0.1\n}\nb.test:53 {\n bind eth0\n}\n";
        let refused = |base: &str, domain: &str, server: &str, upstream: &str| {
            let kube_dns = KubeDns {
                stub_domains: [(domain.to_owned(), vec![server.to_owned()])].into(),
                upstreams: vec![upstream.to_owned()],
            };
            refuse(base, &template, &kube_dns).err().map(|error| error.to_string())
        };
        let far = "192.0.2.1";
        for (domain, server, upstream, error) in [
            ("w.test", far, far, None),
            ("local", "169.254.20.10:5353", "169.254.20.11", None),
            ("y.test", far, far, None),
            ("z.test", far, far, None),
            ("a.test", far, far, None),
            (
                "cluster.local",
                far,
                far,
                Some("stubDomains: cluster.local is a zone of the template already, at base:1:1"),
            ),
            ("x.test", far, far, Some("stubDomains: x.test is a zone of the template already, at base:4:1")),
            ("b.test", far, far, Some("stubDomains: b.test is a zone of the template already, at base:9:1")),
            (
                "w.test",
                "169.254.20.10",
                far,
                Some("stubDomains: 169.254.20.10 of w.test is this server itself"),
            ),
            (
                "w.test",
                far,
                "169.254.20.10:53",
                Some("upstreamNameservers: 169.254.20.10:53 is this server itself"),
            ),
        ] {
            assert_eq!(refused(base, domain, server, upstream).as_deref(), error, "{domain}");
        }
        assert_eq!(refused("cluster.local {", "cluster.local", far, far), None, "the template's own fault");
    }
}
