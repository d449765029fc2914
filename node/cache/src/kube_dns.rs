//! Reads kube-dns's ConfigMap, which is mounted as a directory with a file for each key.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

use forwarder::MAX_UPSTREAMS;
use node::Diagnosis;

/// The supported keys of the ConfigMap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct KubeDns {
    /// Stub domains, each with the DNS servers for it.
    pub(super) stub_domains: BTreeMap<String, Vec<String>>,
    /// Upstreams of all other names.
    pub(super) upstreams: Vec<String>,
}

impl KubeDns {
    /// Reads the ConfigMap's directory; absent and empty keys have defaults.
    pub(super) fn read(directory: &Path) -> Result<Self, Diagnosis> {
        if !directory.is_dir() {
            let problem = format!("{} is no directory", directory.display());
            return Err(Diagnosis::new(problem, "name that of kube-dns's ConfigMap with -kubednscm"));
        }
        let mut read = Self::default();
        let path = directory.join("stubDomains");
        if let Some(text) = key(&path)? {
            let form = "{\"DOMAIN\": [\"ADDRESS\"]}";
            read.stub_domains = serde_json::from_str(&text).map_err(|error| no_json(&path, form, &error))?;
        }
        let path = directory.join("upstreamNameservers");
        if let Some(text) = key(&path)? {
            let form = "[\"ADDRESS\"]";
            read.upstreams = serde_json::from_str(&text).map_err(|error| no_json(&path, form, &error))?;
        }
        read.validate()?;
        Ok(read)
    }

    fn validate(&self) -> Result<(), String> {
        if self.upstreams.len() > MOST_UPSTREAMS {
            return Err(format!(
                "upstreamNameservers has {}, and {MOST_UPSTREAMS} at most",
                self.upstreams.len()
            ));
        }
        if let Some(server) = self.upstreams.iter().find(|server| !is_server(server)) {
            return Err(format!("upstreamNameservers: {server:?} is no address with or without a port"));
        }
        for (domain, servers) in &self.stub_domains {
            if !is_domain(domain) {
                return Err(format!("stubDomains: {domain:?} is no domain in lower case"));
            }
            if servers.is_empty() {
                return Err(format!("stubDomains: {domain} has no servers"));
            }
            if servers.len() > MAX_UPSTREAMS {
                let count = servers.len();
                return Err(format!(
                    "stubDomains: {domain} has {count} servers, and {MAX_UPSTREAMS} at most"
                ));
            }
            if let Some(server) = servers.iter().find(|server| !is_server(server)) {
                return Err(format!(
                    "stubDomains: {server:?} of {domain} is no address with or without a port"
                ));
            }
        }
        Ok(())
    }
}

/// Returns a key's value; `None` if the key is absent or empty.
fn key(path: &Path) -> Result<Option<String>, String> {
    match files::read_with_timeout(path, LONGEST).map_err(std::io::Error::from) {
        Ok(bytes) => {
            Ok(Some(String::from_utf8_lossy(&bytes).trim().to_owned()).filter(|text| !text.is_empty()))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

fn no_json(path: &Path, form: &str, error: &serde_json::Error) -> Diagnosis {
    Diagnosis::new(format!("{}: {error}", path.display()), format!("expected {form}"))
}

fn is_server(text: &str) -> bool {
    node::socket_address(text, 53).is_some()
}

/// Whether the text is a DNS-1123 subdomain.
fn is_domain(text: &str) -> bool {
    let inner = |octet: u8| octet.is_ascii_lowercase() || octet.is_ascii_digit() || octet == b'-';
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(label)
}

/// Maximum number of upstreams, as in kube-dns.
const MOST_UPSTREAMS: usize = 3;
/// Maximum size of a key's file in bytes, which is Kubernetes' limit for a ConfigMap.
const LONGEST: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configmap_is_valid_or_ignored() {
        let directory = tempfile::tempdir().expect("a directory");
        let read = |stubs: &str, upstreams: &str| {
            std::fs::write(directory.path().join("stubDomains"), stubs).expect("written");
            std::fs::write(directory.path().join("upstreamNameservers"), upstreams).expect("written");
            KubeDns::read(directory.path()).map_err(|error| error.to_string())
        };
        assert_eq!(read("", " \n"), Ok(KubeDns::default()));
        let good = read(r#"{"acme.local": ["192.0.2.1", "[2001:db8::1]:5353"]}"#, r#"["192.0.2.2:53"]"#);
        let good = good.expect("it is right");
        assert_eq!(good.stub_domains["acme.local"], ["192.0.2.1", "[2001:db8::1]:5353"]);
        assert_eq!(good.upstreams, ["192.0.2.2:53"]);
        let servers: Vec<_> = (1..=16).map(|n| format!("\"192.0.2.{n}\"")).collect();
        let of = |servers: &[String]| format!("{{\"acme.local\": [{}]}}", servers.join(","));
        assert_eq!(read(&of(&servers[..15]), "").expect("it is right").stub_domains["acme.local"].len(), 15);
        let sixteen = of(&servers);
        for (stubs, upstreams, part) in [
            ("{", "", "expected {\"DOMAIN\": [\"ADDRESS\"]}"),
            ("[]", "", "expected"),
            ("", r#"["1.1.1.1","1.1.1.2","1.1.1.3","1.1.1.4"]"#, "has 4, and 3 at most"),
            ("", r#"["dns.example"]"#, "\"dns.example\" is no address"),
            ("", r#"["192.0.2.1:x"]"#, "is no address"),
            (r#"{"Acme.local": ["192.0.2.1"]}"#, "", "is no domain in lower case"),
            (r#"{"a..b": ["192.0.2.1"]}"#, "", "is no domain"),
            (r#"{"x {": ["192.0.2.1"]}"#, "", "is no domain"),
            (r#"{"acme.local": []}"#, "", "has no servers"),
            (r#"{"acme.local": ["dns.example"]}"#, "", "of acme.local is no address"),
            (&sixteen, "", "stubDomains: acme.local has 16 servers, and 15 at most"),
        ] {
            let error = read(stubs, upstreams).expect_err(part);
            assert!(error.contains(part), "{error}");
        }
        assert!(KubeDns::read(&directory.path().join("absent")).is_err());
    }
}
