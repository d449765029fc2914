//! A list in pages, from an API without WatchList, after etcd was compacted: every object changes
//! meanwhile, and the answers then equal the API's state. Unchanged names are answered all the
//! time.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use kubernetes_api::{Access, Kind, PodWatch, WatchConfig, WatchHandle};
use serde_json::{Value, json};
use tests::kube::{Cluster, Door, SLICES};
use tests::{
    Ask, Message, Metrics, Server, Stream, ask, eventually, fresh_ip, isolated_steadily, now, port, report,
};

use super::lab::{self, PATIENCE, delete, endpoints, labelled, namespace, service, services, slices, spec};
use super::scripted_faults::start;
use super::store::{Seen, Store};

/// Number of slices, three pages, before and after.
const FIRST: usize = 255;
const DELETED: usize = 40;
const ENDPOINTS: usize = 15;
/// Names, types, and the single record of each.
const UNCHANGED: [(&str, &str, &str); 5] = [
    ("stays.t1.svc.cluster.local", "A", "10.96.7.2"),
    ("2.7.96.10.in-addr.arpa", "PTR", "stays.t1.svc.cluster.local."),
    ("keeps.t1.svc.cluster.local", "A", "172.30.0.1"),
    ("k1.keeps.t1.svc.cluster.local", "A", "172.30.0.1"),
    ("1.0.30.172.in-addr.arpa", "PTR", "k1.keeps.t1.svc.cluster.local."),
];
/// Pages listed after a compaction include every change and nothing that was deleted.
#[test]
fn pages_after_a_compaction() {
    isolated_steadily(Duration::from_secs(300), || {
        const TEST: &str = "pages_after_a_compaction";
        // The API server caches no events, so a compaction of etcd loses them.
        let flags = "--watch-cache=false --feature-gates=WatchList=false";
        let Some(cluster) = Cluster::up_with(flags, TEST) else { return };
        fill(&cluster);
        let door = Door::to(([127, 0, 0, 1], 6443).into());
        let kubeconfig = cluster.path("door.kubeconfig");
        let text = fs::read_to_string(cluster.path("dns.kubeconfig")).expect("it was made");
        let text = text.replace("127.0.0.1:6443", &door.address().to_string());
        fs::write(&kubeconfig, text).expect("it is the test's own");
        let at = SocketAddr::from((fresh_ip(), port()));
        let server = Server::start(&format!(
            ".:{} {{\nbind {ip}\nprometheus {ip}:9153\nkubernetes cluster.local in-addr.arpa {{\nkubeconfig {}\nstartup_timeout 60s\n}}\n}}\n",
            at.port(),
            kubeconfig.display(),
            ip = at.ip()
        ));
        let (seen, _following) = follow(&kubeconfig);
        assert_eq!(big(at), addresses(0, 0..FIRST));

        // Without a compaction a watch resumes.
        door.shut();
        until_lost(&seen, at);
        put(&cluster, &[change(1, 0)]);
        door.open();
        let mut expected = addresses(0, 1..FIRST);
        expected.extend(addresses(1, 0..1));
        expected.sort_unstable();
        eventually("one change", PATIENCE, || (big(at) == expected).then_some(()));
        seen.until_following(&[Kind::Slice]);
        assert_eq!(seen.store().lists[&Kind::Slice], 1);

        door.shut();
        until_lost(&seen, at);
        put(&cluster, &(0..FIRST).map(|number| change(2, number)).collect::<Vec<_>>());
        for number in 0..DELETED {
            delete(&cluster, &format!("{}/s-{number}", slices("t1")));
        }
        delete(&cluster, &format!("{}/goes", services("t1")));
        service(&cluster, "t1/new", spec(&["10.96.7.3"], "http:80/TCP"));
        cluster.compact();
        let stream = stream(at);
        asked_more(&stream);
        let (memory, before) = (peak_kb(&server), pages(&cluster));
        let began = now();
        door.open();
        seen.until("all is listed again", |store| {
            [Kind::Service, Kind::Slice].iter().all(|kind| store.lists[kind] == 2)
        });
        let expected = addresses(2, DELETED..FIRST);
        eventually("what the API has", PATIENCE, || (big(at) == expected).then_some(()));
        report(&format!("measured: {FIRST} slices, all changed, listed again in {:?}", began.elapsed()));
        asked_more(&stream);
        let counts = stream.finish(PATIENCE);
        counts.assert_clean();
        report(&format!("measured: {} queries meanwhile, all answered", counts.sent));
        let forgotten = |store: &Store| {
            let reason = "resource version expired";
            store.lost.iter().any(|(kind, why)| *kind == Kind::Slice && why.starts_with(reason))
        };
        assert!(forgotten(&seen.store()), "{:?}", seen.store().lost);
        // Kinds are listed independently, and the API counts a request when it has ended.
        let status = |name: &str| ask(at, &format!("{name}.t1.svc.cluster.local"), "A").status().to_owned();
        eventually("services as they are", PATIENCE, || {
            (status("goes") == "NXDOMAIN" && status("new") == "NOERROR").then_some(())
        });
        eventually("six pages of slices for two followers", PATIENCE, || {
            (pages(&cluster) - before >= 6.0).then_some(())
        });
        let listed = nothing_is_kept_that_is_gone(&cluster, &seen, at);
        // A server that held the whole list beside its answers would grow by more than the list's
        // JSON. Peak memory, since the allocator returns the buffers of the first list entirely or
        // not at all; the allocator's own noise is half a MiB. Tests in `kubernetes` and
        // `kubernetes-api` (`relist_needs_little_memory`) count allocations without that noise.
        let (grown, listed) = (peak_kb(&server).saturating_sub(memory), listed / 1024);
        assert!(grown < listed, "{grown} KiB more while {listed} KiB were listed again, from {memory}");
        report(&format!("measured: {grown} KiB more while {listed} KiB were listed again"));
    });
}

fn fill(cluster: &Cluster) {
    namespace(cluster, "t1");
    service(cluster, "t1/big", json!({"clusterIP": "None", "ports": [{"name": "c", "port": 1234}]}));
    service(cluster, "t1/goes", spec(&["10.96.7.1"], "http:80/TCP"));
    service(cluster, "t1/stays", spec(&["10.96.7.2"], "http:80/TCP"));
    service(cluster, "t1/keeps", json!({"clusterIP": "None", "ports": [{"name": "c", "port": 1234}]}));
    lab::slice(cluster, "t1/keeps-1", "keeps", "172.30.0.1=k1", "c:1234/TCP");
    let slice = |number| {
        let labels = json!({"kubernetes.io/service-name": "big"});
        labelled(&format!("t1/s-{number}"), labels, &all(0, number), "c:1234/TCP")
    };
    cluster.send_all("POST", &(0..FIRST).map(slice).collect::<Vec<_>>());
}

/// Queries unchanged names at a constant rate: a service, and one of its endpoints.
fn stream(at: SocketAddr) -> Stream {
    let row = |n: usize| UNCHANGED[n % UNCHANGED.len()];
    let ask = move |n| Ask::new(row(n).0, row(n).1);
    Stream::start(at, 1_000, ask, move |n, reply: &Message| {
        let data: Vec<_> = reply.answers.iter().map(|record| &*record.data).collect();
        data == [row(n).2]
    })
}

fn asked_more(stream: &Stream) {
    let before = stream.sent();
    eventually("queries", PATIENCE, || (stream.sent() >= before + 100).then_some(()));
}

/// The endpoints of a slice after `change` changes.
fn all(change: usize, number: usize) -> String {
    let one = |endpoint| format!("{}={}", address(change, number, endpoint), host(change, number, endpoint));
    (0..ENDPOINTS).map(one).collect::<Vec<_>>().join(" ")
}

fn address(change: usize, number: usize, endpoint: usize) -> Ipv4Addr {
    let [change, number, endpoint] =
        [change, number, endpoint].map(|number| u8::try_from(number).expect("they are few"));
    Ipv4Addr::new(172, 20 + change, number, endpoint)
}

fn host(change: usize, number: usize, endpoint: usize) -> String {
    format!("e{change}-{number}-{endpoint}")
}

/// A change of a slice: its path and the new object.
fn change(change: usize, number: usize) -> (String, String) {
    let object = json!({"endpoints": endpoints(&all(change, number))});
    (format!("{}/s-{number}", slices("t1")), object.to_string())
}

fn put(cluster: &Cluster, changes: &[(String, String)]) {
    cluster.send_all("PATCH", changes);
}

/// The addresses of some slices, sorted.
fn addresses(change: usize, slices: Range<usize>) -> Vec<String> {
    let all = slices.flat_map(|number| (0..ENDPOINTS).map(move |endpoint| (number, endpoint)));
    let mut all: Vec<String> =
        all.map(|(number, endpoint)| address(change, number, endpoint).to_string()).collect();
    all.sort_unstable();
    all
}

/// The service's addresses, over TCP: 64 KiB hold all of them.
fn big(at: SocketAddr) -> Vec<String> {
    let reply = Ask::new("big.t1.svc.cluster.local", "A").tcp().of(at);
    reply.short().into_iter().map(str::to_owned).collect()
}

fn follow(kubeconfig: &Path) -> (Seen, WatchHandle) {
    let wants = WatchConfig { endpoints: true, pods: Some(PodWatch::default()), ..WatchConfig::default() };
    let access = Access::Kubeconfig { file: kubeconfig.into(), context: Some("kube".into()) };
    let (seen, following) = start(access, wants);
    seen.until_following(&[Kind::Service, Kind::Slice, Kind::Namespace, Kind::Pod]);
    (seen, following)
}

/// Waits until both clients have lost the API.
fn until_lost(seen: &Seen, at: SocketAddr) {
    seen.until("the loss", |store| store.following.is_empty());
    eventually("the loss", PATIENCE, || {
        let metrics = Metrics::of((at.ip(), 9153).into());
        (metrics.value("localdns_kubernetes_followed", &[]) == Some(0.0)).then_some(())
    });
}

/// The number of lists of slices that the API has served.
fn pages(cluster: &Cluster) -> f64 {
    let (code, body) = cluster.send("GET", "/metrics", "");
    assert_eq!(code, 200, "{body}");
    let list = [("resource", "endpointslices"), ("verb", "LIST"), ("code", "200")];
    Metrics::parse(&body).count("apiserver_request_total", &list)
}

/// Queries every name and every address that ever existed. Returns the length of the API's list of
/// slices, as JSON.
fn nothing_is_kept_that_is_gone(cluster: &Cluster, seen: &Seen, at: SocketAddr) -> u64 {
    for number in 0..FIRST {
        for change in 0..3 {
            let is_there = change == 2 && number >= DELETED;
            let (address, host) = (address(change, number, 3), host(change, number, 3));
            let name = format!("{host}.big.t1.svc.cluster.local");
            let [a, b, c, d] = address.octets();
            let pointer = ask(at, &format!("{d}.{c}.{b}.{a}.in-addr.arpa"), "PTR");
            let reply = ask(at, &name, "A");
            if is_there {
                assert_eq!(reply.short(), [address.to_string()], "{name}");
                assert_eq!(pointer.short(), [format!("{name}.")], "{address}");
            } else {
                assert_eq!((reply.status(), pointer.status()), ("NXDOMAIN", "NXDOMAIN"), "{name}");
            }
        }
    }
    for (name, status) in [("goes", "NXDOMAIN"), ("stays", "NOERROR"), ("new", "NOERROR")] {
        assert_eq!(ask(at, &format!("{name}.t1.svc.cluster.local"), "A").status(), status, "{name}");
    }
    assert_eq!(ask(at, "1.7.96.10.in-addr.arpa", "PTR").status(), "NXDOMAIN");
    let (code, body) = cluster.send("GET", SLICES, "");
    assert_eq!(code, 200, "{body}");
    let list: Value = serde_json::from_str(&body).expect("it is JSON");
    let there = list["items"].as_array().expect("a list").len();
    assert_eq!(seen.store().count(Kind::Slice), there);
    let kept = Metrics::of((at.ip(), 9153).into());
    let kept = kept.value("localdns_kubernetes_objects", &[("kind", "endpointslices")]);
    assert_eq!(kept, Some(there as f64));
    body.len() as u64
}

/// The peak resident memory (proc(5), `status`).
fn peak_kb(server: &Server) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}
