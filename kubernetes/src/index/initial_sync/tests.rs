use crate::testing::*;
use kubernetes_api::settings::{PodWatch, WatchConfig, WatchError};
use kubernetes_api::{Kind, Sink};

const KINDS: [Kind; 3] = [Kind::Service, Kind::Slice, Kind::Namespace];

fn wants() -> WatchConfig {
    WatchConfig { endpoints: true, ..WatchConfig::default() }
}

fn zones() -> crate::Rules {
    rules("cluster.local in-addr.arpa")
}

/// Reverse lookups do not need pods, which RBAC may forbid for good.
#[test]
fn reverse_lookup_without_pods() {
    let wants = WatchConfig { pods: Some(PodWatch::default()), ..wants() };
    let mut cluster = Cluster::new(&wants, zones());
    for kind in KINDS.into_iter().chain([Kind::Pod]) {
        cluster.writer.begin(kind);
    }
    let objects = [namespace("a"), service("a/hl", "None", ""), slice("a/hl-1", "hl", "10.1.0.1=h", "")];
    objects.into_iter().for_each(|object| cluster.writer.apply(object));
    KINDS.into_iter().for_each(|kind| cluster.writer.complete(kind));
    for _ in 0..2 {
        assert_eq!(cluster.ask("1.0.1.10.in-addr.arpa PTR"), "PTR h.hl.a.svc.cluster.local.");
        assert_eq!(cluster.ask("2.0.1.10.in-addr.arpa PTR"), "NXDOMAIN in-addr.arpa.");
        cluster.writer.complete(Kind::Pod);
    }
}

/// Services are answered before endpoints are synced, and follow changes of their kind.
#[test]
fn initial_lists_show_at_their_end() {
    let mut cluster = Cluster::new(&wants(), zones());
    let asks = |cluster: &Cluster, what: &str, expected: [&str; 4]| {
        let names = ["web.a.svc.cluster.local A", "hl.a.svc.cluster.local A"];
        let addresses = ["1.0.0.10.in-addr.arpa PTR", "1.0.1.10.in-addr.arpa PTR"];
        let answers = names.into_iter().chain(addresses).map(|question| cluster.ask(question));
        assert_eq!(answers.collect::<Vec<_>>(), expected, "{what}");
    };
    const NO: [&str; 2] = ["services are not known", "endpointslices are not known"];
    let writer = |cluster: &mut Cluster, visit: &dyn Fn(&mut crate::IndexWriter)| visit(&mut cluster.writer);
    writer(&mut cluster, &|writer| {
        KINDS.into_iter().for_each(|kind| writer.begin(kind));
        writer.apply(service("a/web", "10.0.0.1", ""));
        writer.apply(slice("a/hl-1", "hl", "10.1.0.1=h", ""));
        writer.apply(namespace("a"));
        writer.complete(Kind::Namespace);
    });
    asks(&cluster, "namespaces alone", [NO[0], NO[0], NO[1], NO[1]]);
    writer(&mut cluster, &|writer| {
        writer.apply(service("a/hl", "None", ""));
        writer.complete(Kind::Service);
    });
    let web = ["A 10.0.0.1", NO[1], "PTR web.a.svc.cluster.local.", NO[1]];
    asks(&cluster, "services", web);
    writer(&mut cluster, &|writer| writer.apply(service("a/web", "10.0.0.2", "")));
    asks(&cluster, "one has another address", ["A 10.0.0.2", NO[1], NO[1], NO[1]]);
    writer(&mut cluster, &|writer| writer.apply(service("a/web", "10.0.0.1", "")));
    // The list breaks off, and the next one has another slice.
    writer(&mut cluster, &|writer| {
        writer.failed(Kind::Slice, &WatchError::Silent(std::time::Duration::from_secs(150)));
        writer.begin(Kind::Slice);
        writer.apply(slice("a/hl-2", "hl", "10.1.0.1=i", ""));
    });
    asks(&cluster, "slices that break off", web);
    writer(&mut cluster, &|writer| writer.complete(Kind::Slice));
    asks(&cluster, "slices", ["A 10.0.0.1", "A 10.1.0.1", web[2], "PTR i.hl.a.svc.cluster.local."]);
}
