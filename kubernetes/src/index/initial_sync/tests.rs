use crate::testing::*;
use kubernetes_api::settings::{Lost, PodsWanted, Wants};
use kubernetes_api::{Kind, Sink};

const KINDS: [Kind; 3] = [Kind::Service, Kind::Slice, Kind::Namespace];

fn wants() -> Wants {
    Wants { endpoints: true, ..Wants::default() }
}

fn zones() -> crate::Rules {
    rules("cluster.local in-addr.arpa")
}

/// What an address leads back to has nothing to do with pods: they may be forbidden, and never known.
#[test]
fn addresses_of_endpoints_lead_back_while_pods_are_not_known() {
    let wants = Wants { pods: Some(PodsWanted::default()), ..wants() };
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

/// Names of services are answered before endpoints are known, and keep up with their own kind meanwhile.
#[test]
fn what_the_first_lists_tell_is_answered_when_each_ends_and_what_changes_meanwhile_at_once() {
    let mut cluster = Cluster::new(&wants(), zones());
    let asks = |cluster: &Cluster, what: &str, expected: [&str; 4]| {
        let names = ["web.a.svc.cluster.local A", "hl.a.svc.cluster.local A"];
        let addresses = ["1.0.0.10.in-addr.arpa PTR", "1.0.1.10.in-addr.arpa PTR"];
        let told = names.into_iter().chain(addresses).map(|question| cluster.ask(question));
        assert_eq!(told.collect::<Vec<_>>(), expected, "{what}");
    };
    const NO: [&str; 2] = ["services are not known", "endpointslices are not known"];
    let writer = |cluster: &mut Cluster, tell: &dyn Fn(&mut crate::Writer)| tell(&mut cluster.writer);
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
    // It breaks off, and comes again with another slice.
    writer(&mut cluster, &|writer| {
        writer.lost(Kind::Slice, &Lost::Silent(std::time::Duration::from_secs(150)));
        writer.begin(Kind::Slice);
        writer.apply(slice("a/hl-2", "hl", "10.1.0.1=i", ""));
    });
    asks(&cluster, "slices that break off", web);
    writer(&mut cluster, &|writer| writer.complete(Kind::Slice));
    asks(&cluster, "slices", ["A 10.0.0.1", "A 10.1.0.1", web[2], "PTR i.hl.a.svc.cluster.local."]);
}
