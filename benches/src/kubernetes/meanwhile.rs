//! Changes to a cluster during an outage of its API, as another API server would make them: objects
//! in etcd are deleted, restored, and changed in their bytes.
//!
//! Each kind changes, and etcd is compacted: a server that shows the changes once the API is back
//! has listed every kind again.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::ops::Range;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use data_encoding::BASE64;
use serde_json::{Value, json};
use wire::Rcode;

use super::api::{Api, Size};
use super::subject::Probe;
use load::judge::Expect;

/// A key of etcd with the bytes of its object.
type Pair = (String, Vec<u8>);

/// The changes during an outage: a namespace and a service are deleted or restored, and endpoints
/// get other addresses.
pub(super) struct Meanwhile {
    size: Size,
    /// The namespace and the service.
    recreated: [Pair; 2],
    /// The service's address.
    address: Ipv4Addr,
}

/// The two states of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The namespace and the service exist.
    Filled,
    /// The namespace and the service are deleted, and endpoints have other addresses.
    Changed,
}

impl Meanwhile {
    /// Creates the namespace and the service; the state is then [`State::Filled`], regardless of
    /// earlier runs.
    ///
    /// # Errors
    /// When the API or etcd refuses.
    pub(super) fn new(api: &Api, size: Size) -> Result<Self> {
        let ports = json!([{"name": "http", "port": 80, "protocol": "TCP"}]);
        api.create_one("/api/v1/namespaces", &json!({"metadata": {"name": NAME}}))?;
        let service = json!({"metadata": {"name": NAME}, "spec": {"ports": ports}});
        api.create_one("/api/v1/namespaces/ns-0/services", &service)?;
        let service = api.get(&format!("/api/v1/namespaces/ns-0/services/{NAME}"))?;
        let address = service["spec"]["clusterIP"].as_str().and_then(|text| text.parse().ok());
        let address = address.with_context(|| format!("a service without an address: {service}"))?;
        let keys = [format!("/registry/namespaces/{NAME}"), format!("/registry/services/specs/ns-0/{NAME}")];
        let read = |key: String| {
            let found = range(&key, None)?.pop();
            found.with_context(|| format!("etcd has no {key}"))
        };
        let [namespace, service] = keys.map(read);
        let this = Self { size, recreated: [namespace?, service?], address };
        this.become_state(State::Filled)?;
        Ok(this)
    }

    /// Changes each kind, and compacts etcd; returns the number of changed slices.
    ///
    /// # Errors
    /// When etcd refuses.
    pub(super) fn happen(&self, state: State) -> Result<usize> {
        let changed = self.become_state(state)?;
        compact()?;
        Ok(changed)
    }

    /// Changes each kind as [`Self::happen`] does, but without compaction, while the API watches
    /// etcd.
    ///
    /// # Errors
    /// Those of [`Self::happen`].
    pub(super) fn become_state(&self, state: State) -> Result<usize> {
        match state {
            State::Filled => put(&self.recreated)?,
            State::Changed => self.recreated.iter().try_for_each(|(key, _)| delete(key))?,
        }
        let mut changed = Vec::new();
        for (key, octets) in range(SLICES, Some(SLICES_END))? {
            let of = key.rsplit('/').next().and_then(|name| name.split('-').nth(1)?.parse().ok());
            if of.is_some_and(|of: u32| self.services().contains(&of)) {
                let moved = moved(&octets, state);
                changed.extend((moved != octets).then_some((key, moved)));
            }
        }
        put(&changed)?;
        Ok(changed.len())
    }

    /// Waits until all changes are visible in a server's answers.
    ///
    /// # Errors
    /// When they are not in time.
    pub(super) fn until_seen(&self, probe: &Probe, state: State) -> Result<()> {
        let (service, namespace) =
            (format!("{NAME}.ns-0.svc.cluster.local"), format!("{NAME}.svc.cluster.local"));
        let (of_service, of_namespace) = match state {
            State::Filled => (Expect::Address(self.address), Expect::Rcode(Rcode::NOERROR)),
            State::Changed => (Expect::Rcode(Rcode::NXDOMAIN), Expect::Rcode(Rcode::NXDOMAIN)),
        };
        probe.until_is(&service, of_service)?;
        probe.until_is(&namespace, of_namespace)?;
        for number in self.services().filter(|number| super::api::is_headless(*number)) {
            let (name, address) = self.size.known(number);
            let moved = address.octets();
            let second = moved[1] + if state == State::Changed { FURTHER } else { 0 };
            probe.until(&name, Ipv4Addr::new(moved[0], second, moved[2], moved[3]))?;
        }
        Ok(())
    }

    /// Returns the number of changed slices.
    pub(super) fn slices(&self) -> usize {
        self.services().map(|number| self.size.slices(number)).sum()
    }

    /// Returns the services with endpoints that move: three in ten, and none that is queried at a
    /// start.
    fn services(&self) -> Range<u32> {
        self.size.services / 10 + 1..self.size.services / 10 * 4
    }
}

/// Returns the bytes of a slice with its endpoints moved to 10.128 and above, or to 10.228 and
/// above. The length stays the same.
fn moved(octets: &[u8], state: State) -> Vec<u8> {
    let hundreds = if state == State::Changed { b'2' } else { b'1' };
    let mut octets = octets.to_vec();
    for at in 0..octets.len().saturating_sub(6) {
        if let [b'1', b'0', b'.', own @ (b'1' | b'2'), b'2'..=b'4', b'0'..=b'9', b'.'] =
            &mut octets[at..at + 7]
        {
            *own = hundreds;
        }
    }
    octets
}

/// Returns the objects of one key, or of a range of keys, read in pages.
fn range(key: &str, end: Option<&str>) -> Result<Vec<Pair>> {
    let (mut all, mut from) = (Vec::new(), key.as_bytes().to_vec());
    loop {
        let mut body = json!({"key": BASE64.encode(&from), "limit": PAGE.to_string()});
        if let Some(end) = end {
            body["range_end"] = BASE64.encode(end.as_bytes()).into();
        }
        let reply = call("range", &body)?;
        // The field is missing if there are no objects.
        let page = reply["kvs"].as_array().map(Vec::as_slice).unwrap_or_default();
        for pair in page {
            let [key, octets] = ["key", "value"]
                .map(|field| BASE64.decode(pair[field].as_str().unwrap_or_default().as_bytes()));
            all.push((String::from_utf8(key?)?, octets?));
        }
        match all.last() {
            Some((last, _)) if end.is_some() && page.len() == PAGE => from = [last.as_bytes(), &[0]].concat(),
            _ => return Ok(all),
        }
    }
}

fn put(pairs: &[Pair]) -> Result<()> {
    for some in pairs.chunks(AT_ONCE) {
        let one = |(key, octets): &Pair| json!({"request_put": {"key": BASE64.encode(key.as_bytes()), "value": BASE64.encode(octets)}});
        let puts: Vec<Value> = some.iter().map(one).collect();
        let reply = call("txn", &json!({ "success": puts }))?;
        ensure!(reply["succeeded"] == true, "etcd: {reply}");
    }
    Ok(())
}

fn delete(key: &str) -> Result<()> {
    let reply = call("deleterange", &json!({"key": BASE64.encode(key.as_bytes())}))?;
    ensure!(reply["deleted"] == "1", "{key}: {reply}");
    Ok(())
}

/// Compacts etcd to its current revision.
fn compact() -> Result<()> {
    let reply = call("range", &json!({"key": BASE64.encode(b"/")}))?;
    let revision = reply["header"]["revision"].as_str().context("each reply has the revision")?;
    call("compaction", &json!({"revision": revision, "physical": true})).map(drop)
}

/// Calls etcd's JSON gateway.
fn call(call: &str, body: &Value) -> Result<Value> {
    let body = body.to_string();
    let mut stream = TcpStream::connect(ETCD).context("etcd")?;
    stream.set_read_timeout(Some(PATIENCE)).context("SO_RCVTIMEO")?;
    // With HTTP/1.0 the reply has one part and ends with the connection.
    let head =
        format!("POST /v3/kv/{call} HTTP/1.0\r\nHost: {ETCD}\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).context("etcd")?;
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).context("etcd")?;
    let start = memchr::memmem::find(&reply, b"\r\n\r\n").context("etcd: no reply")?;
    let (head, body) = (String::from_utf8_lossy(&reply[..start]), &reply[start + 4..]);
    ensure!(head.split(' ').nth(1) == Some("200"), "etcd: {call}: {head}: {}", String::from_utf8_lossy(body));
    serde_json::from_slice(body).with_context(|| format!("etcd: {call}"))
}

/// Name of the namespace and of the service.
const NAME: &str = "relisted";
const SLICES: &str = "/registry/endpointslices/";
/// The key after all slices.
const SLICES_END: &str = "/registry/endpointslices0";
/// The distance from 10.128 to 10.228.
const FURTHER: u8 = 100;
const ETCD: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 2379);
/// Objects of a page.
const PAGE: usize = 500;
/// Objects of a transaction, which is limited to 1.5 MiB; a slice of a hundred endpoints has 25 KB.
const AT_ONCE: usize = 40;
const PATIENCE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_move_in_the_octets_of_their_slice() {
        let slice = b"k8s\0\x0a\x0a10.128.0.5\x0a\x0d10.143.66.254\x0a\x0910.96.1.2 ep-10 10.250.0.1";
        let further = b"k8s\0\x0a\x0a10.228.0.5\x0a\x0d10.243.66.254\x0a\x0910.96.1.2 ep-10 10.250.0.1";
        assert_eq!(moved(slice, State::Changed), further);
        assert_eq!(moved(further, State::Changed), further);
        assert_eq!(moved(further, State::Filled), slice);
        assert_eq!(moved(b"10.128", State::Changed), b"10.128");
    }
}
