//! Replaces the variables of a template.

use super::kube_dns::KubeDns;
use super::{CLUSTER_DNS, FillError, Template};

/// Replaces all variables, and appends the stub domains; the template's line numbers stay the same,
/// for errors.
pub(super) fn fill(base: &str, template: &Template, kube_dns: &KubeDns) -> Result<String, FillError> {
    let ips: Vec<_> = template.local_ips.iter().map(ToString::to_string).collect();
    let ips = ips.join(" ");
    let base = match kube_dns.upstreams.is_empty() {
        true => base.replace(UPSTREAMS, "/etc/resolv.conf"),
        // Explicit upstreams may not support TCP, so `force_tcp` is removed.
        false => without_force_tcp(base).replace(UPSTREAMS, &kube_dns.upstreams.join(" ")),
    };
    let base = match template.cluster_dns {
        Some(ip) => base.replace(CLUSTER_DNS, &ip.to_string()),
        None if base.contains(CLUSTER_DNS) => {
            return Err(FillError::NoClusterDns { variable: template.cluster_dns_variable.clone() });
        }
        None => base,
    };
    let mut filled =
        base.replace(LOCAL_DNS, &ips).replace(DNS_SERVER, "").replace(PROMETHEUS, &template.prometheus);
    if let Some(at) = filled.find(PILLAR) {
        let name = filled[at..].chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        return Err(FillError::Unfilled { line: filled[..at].matches('\n').count() + 1, name });
    }
    for (domain, servers) in &kube_dns.stub_domains {
        filled += &format!(
            "\n{domain}:{} {{\n    errors\n    cache 30\n    bind {ips}\n    forward . {}\n}}\n",
            template.port,
            servers.join(" ")
        );
    }
    Ok(filled)
}

/// Removes the block of each `forward` to the upstreams if the block contains only `force_tcp`.
fn without_force_tcp(base: &str) -> String {
    let mut text = String::with_capacity(base.len());
    let mut rest = base;
    while let Some(at) = rest.find(UPSTREAMS) {
        let (before, after) = rest.split_at(at + UPSTREAMS.len());
        text += before;
        rest = after;
        if let Some((block, behind)) = after.split_once('}')
            && block.split_ascii_whitespace().eq(["{", "force_tcp"])
        {
            text += &"\n".repeat(block.matches('\n').count());
            rest = behind;
        }
    }
    text + rest
}

const PILLAR: &str = "__PILLAR__";
const UPSTREAMS: &str = "__PILLAR__UPSTREAM__SERVERS__";
const LOCAL_DNS: &str = "__PILLAR__LOCAL__DNS__";
const DNS_SERVER: &str = "__PILLAR__DNS__SERVER__";
const PROMETHEUS: &str = "__PROMETHEUS__ENDPOINT__";

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str = "cluster.local:53 {\n    bind __PILLAR__LOCAL__DNS__ __PILLAR__DNS__SERVER__\n    forward . __PILLAR__CLUSTER__DNS__ {\n        force_tcp\n    }\n}\n.:53 {\n    forward . __PILLAR__UPSTREAM__SERVERS__ {\n            force_tcp\n    }\n    prometheus __PROMETHEUS__ENDPOINT__\n}\n";

    fn template() -> Template {
        Template {
            base: "Corefile.base".into(),
            kube_dns: None,
            local_ips: vec![[169, 254, 20, 10].into(), [10, 96, 0, 10].into()],
            cluster_dns: Some([10, 96, 0, 11].into()),
            cluster_dns_variable: "KUBE_DNS_UPSTREAM_SERVICE_HOST".to_owned(),
            port: 53,
            prometheus: ":9253".to_owned(),
            written: None,
        }
    }

    /// Line numbers stay the same.
    #[test]
    fn fills_all_variables() {
        let filled = fill(BASE, &template(), &KubeDns::default()).expect("filled");
        assert_eq!(
            filled,
            "cluster.local:53 {\n    bind 169.254.20.10 10.96.0.10 \n    forward . 10.96.0.11 {\n        force_tcp\n    }\n}\n.:53 {\n    forward . /etc/resolv.conf {\n            force_tcp\n    }\n    prometheus :9253\n}\n"
        );
        let kube_dns = KubeDns {
            stub_domains: [(
                "acme.local".to_owned(),
                vec!["192.0.2.1".to_owned(), "192.0.2.2:5353".to_owned()],
            )]
            .into(),
            upstreams: vec!["192.0.2.3".to_owned()],
        };
        assert_eq!(
            fill(BASE, &template(), &kube_dns).expect("filled"),
            "cluster.local:53 {\n    bind 169.254.20.10 10.96.0.10 \n    forward . 10.96.0.11 {\n        force_tcp\n    }\n}\n.:53 {\n    forward . 192.0.2.3\n\n\n    prometheus :9253\n}\n\nacme.local:53 {\n    errors\n    cache 30\n    bind 169.254.20.10 10.96.0.10\n    forward . 192.0.2.1 192.0.2.2:5353\n}\n"
        );
    }

    #[test]
    fn unknown_variable_is_an_error() {
        let none = Template { cluster_dns: None, ..template() };
        let error = fill(BASE, &none, &KubeDns::default()).expect_err("no address");
        assert!(error.to_string().contains("KUBE_DNS_UPSTREAM_SERVICE_HOST is not set"), "{error}");
        let error =
            fill("__PILLAR__DNS__DOMAIN__:53 {", &template(), &KubeDns::default()).expect_err("unfilled");
        assert!(
            error.to_string().starts_with("line 1: __PILLAR__DNS__DOMAIN__ was not replaced when"),
            "{error}"
        );
        let named = KubeDns { upstreams: vec!["192.0.2.3".to_owned()], ..KubeDns::default() };
        let last = format!("{BASE}\n# __PILLAR__CLUSTER__DNS__\n__PILLAR__OTHER__:53 {{");
        for kube_dns in [KubeDns::default(), named] {
            let error = fill(&last, &template(), &kube_dns).expect_err("unfilled").to_string();
            assert!(error.starts_with("line 15: __PILLAR__OTHER__ was not replaced when"), "{error}");
        }
        assert!(fill(".:53 {}", &none, &KubeDns::default()).is_ok());
    }
}
