//! `snapshot`: after a restart without an API the server answers from its last state.

use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::Duration;

use serde_json::json;
use tests::kube::Cluster as RealCluster;
use tests::{Ask, Metrics, Server, ask, assert_contains, eventually, fresh_ip, isolated, now, tempdir};

use tests::kube::{SERVICES, SLICES, ScriptedCluster};

use super::program::{corefile, not_ready, objects, ready, service, slice, until, upstream};

const PATIENCE: Duration = Duration::from_secs(30);

/// kubeadm's Corefile with a snapshot and a short startup timeout.
fn with_snapshot(corefile: &str, file: &Path) -> String {
    let properties =
        format!("pods insecure\n    startup_timeout 300ms\n    snapshot {} 1s\n", file.display());
    let text = corefile.replace("pods insecure\n", &properties);
    assert_ne!(text, corefile);
    text
}

/// Waits until there is a snapshot different from `others`.
fn another(file: &Path, others: &[&[u8]]) -> Vec<u8> {
    eventually("a snapshot", PATIENCE, || {
        let octets = fs::read(file).ok()?;
        (!others.contains(&&*octets)).then_some(octets)
    })
}

fn age(at: SocketAddr) -> Option<f64> {
    Metrics::of((at.ip(), 9153).into()).value("localdns_kubernetes_snapshot_age_seconds", &[])
}

/// A restart without an API answers at once and catches up when the API is back.
#[test]
fn restart_without_an_api() {
    let (cluster, upstream, directory) = (ScriptedCluster::start(objects(), false), upstream(), tempdir());
    let file = directory.path().join("cluster");
    let at = SocketAddr::from((fresh_ip(), tests::port()));
    let text = with_snapshot(&corefile(at, &cluster.api, &upstream), &file);
    let server = Server::start(&text);
    let first = another(&file, &[]);
    assert_eq!(age(at), None, "answers are the API's");
    drop(server);

    cluster.fail();
    cluster.put(SERVICES, "DELETED", service("web", json!({})));
    cluster.put(SLICES, "MODIFIED", slice(102, &[("172.17.0.252", "h3")]));
    let server = Server::start(&text);
    for (name, rtype, expected) in [
        ("web.t1.svc.cluster.local", "A", &["10.96.0.100"][..]),
        ("hl.t1.svc.cluster.local", "A", &["172.17.0.254"]),
        ("254.0.17.172.in-addr.arpa", "PTR", &["h1.hl.t1.svc.cluster.local."]),
        ("1-2-3-4.t1.pod.cluster.local", "A", &["1.2.3.4"]),
    ] {
        assert_eq!(ask(at, name, rtype).short(), expected, "{name}");
    }
    assert_eq!(ask(at, "other.t1.svc.cluster.local", "A").status(), "NXDOMAIN");
    assert_eq!(ready(at), (200, "OK".to_owned()));
    assert!(age(at).is_some_and(|age| (0.0..600.0).contains(&age)), "{:?}", age(at));
    let line = server.wait_for_log("Answers are from the snapshot", PATIENCE);
    assert!(
        line.contains(&*file.to_string_lossy())
            && line.contains(" s old, until the lists of the API are complete"),
        "{line}"
    );
    server.wait_for_log("Cannot follow", PATIENCE);
    assert_eq!(fs::read(&file).unwrap(), first, "what is old is not written as if it were new");

    cluster.recover();
    until(at, "hl.t1.svc.cluster.local", &["172.17.0.252"]);
    eventually("what went meanwhile is gone", PATIENCE, || {
        (ask(at, "web.t1.svc.cluster.local", "A").status() == "NXDOMAIN").then_some(())
    });
    server.wait_for_log("the snapshot is not used any more", PATIENCE);
    assert_eq!(age(at), None);
    another(&file, &[&first]);
    let written = [("result", "written")];
    // The file is renamed into place before it is counted.
    let metrics = eventually("a snapshot that is counted", PATIENCE, || {
        let metrics = Metrics::of((at.ip(), 9153).into());
        let count = metrics.value("localdns_kubernetes_snapshots_total", &written);
        count.is_some_and(|count| count >= 1.0).then_some(metrics)
    });
    assert_eq!(metrics.value("localdns_kubernetes_snapshots_total", &[("result", "failed")]), Some(0.0));
}

/// A snapshot is written once all is known, and again at a stop and at an upgrade.
#[test]
fn snapshot_times() {
    isolated(|| {
        let (cluster, upstream, directory) =
            (ScriptedCluster::start(objects(), false), upstream(), tempdir());
        let file = directory.path().join("cluster");
        let at = SocketAddr::from((fresh_ip(), tests::port()));
        let text = with_snapshot(&corefile(at, &cluster.api, &upstream), &file);
        let seldom = text.replace(" 1s\n", " 1h\n");
        let change = |address: &str| {
            cluster.put(SLICES, "MODIFIED", slice(102, &[(address, "h3")]));
            until(at, "hl.t1.svc.cluster.local", &[address]);
        };
        cluster.fail();
        let mut server = Server::start(&seldom);
        server.wait_for_log("unsynced", PATIENCE);
        cluster.recover();
        let first = another(&file, &[]);
        change("172.17.0.252");
        assert_eq!(fs::read(&file).unwrap(), first, "an hour is not over");
        assert!(server.stop().success());
        let last = fs::read(&file).unwrap();
        assert_ne!(last, first);
        drop(server);

        let server = Server::start(&seldom);
        another(&file, &[&last]);
        change("172.17.0.251");
        cluster.fail();
        server.signal("USR2");
        server.wait_for_log("Upgrade finished", PATIENCE);
        // One line from each of the two processes.
        server.wait_for_lines("Answers are from the snapshot", 2, PATIENCE);
        for (name, address) in [("hl", "172.17.0.251"), ("web", "10.96.0.100")] {
            assert_eq!(ask(at, &format!("{name}.t1.svc.cluster.local"), "A").short(), [address]);
        }
    });
}

/// An unusable snapshot is reported and replaced, and no answer uses it.
#[test]
fn unusable_snapshot_is_replaced() {
    let (cluster, upstream, directory) = (ScriptedCluster::start(objects(), false), upstream(), tempdir());
    let file = directory.path().join("cluster");
    let at = SocketAddr::from((fresh_ip(), tests::port()));
    let text = with_snapshot(&corefile(at, &cluster.api, &upstream), &file);
    let server = Server::start(&text);
    let good = another(&file, &[]);
    drop(server);
    let damaged = |at: usize| {
        let mut octets = good.clone();
        octets[at] ^= 1;
        octets
    };
    // Damage in a name used in answers, at the end, and by truncation.
    let middle = good.windows(3).position(|octets| octets == b"web").expect("it is in there");
    for (octets, cause) in [
        (damaged(middle), "its checksum is wrong"),
        (damaged(good.len() - 1), "its checksum is wrong"),
        (good[..good.len() / 2].to_vec(), "its checksum is wrong"),
        (b"127.0.0.1 localhost\n".to_vec(), "expected a snapshot of this version, found another file"),
        (Vec::new(), "expected a snapshot of this version, found another file"),
    ] {
        cluster.fail();
        fs::write(&file, &octets).unwrap();
        let server = Server::start(&text);
        let line = server.wait_for_log("Cannot use the snapshot", PATIENCE);
        assert!(line.contains(&format!("{}: {cause}; it is replaced", file.display())), "{line}");
        not_ready(at, "kubernetes: 503 from the API: scripted: ServiceUnavailable");
        let reply = Ask::new("web.t1.svc.cluster.local", "A").edns(1232).of(at);
        assert_eq!((reply.status(), reply.extended_error().map(|(code, _)| code)), ("SERVFAIL", Some(14)));
        cluster.recover();
        until(at, "web.t1.svc.cluster.local", &["10.96.0.100"]);
        another(&file, &[&octets]);
    }
    // A file that other users can change; an ordinary user cannot give a file away.
    let me = fs::metadata(&file).unwrap().uid();
    for (mode, owner) in [(0o666, me), (0o664, me), (0o644, if me == 0 { 65_534 } else { me })] {
        if (mode, owner) == (0o644, me) {
            continue;
        }
        cluster.fail();
        fs::write(&file, &good).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        std::os::unix::fs::chown(&file, Some(owner), None).unwrap();
        let server = Server::start(&text);
        let line = server.wait_for_log("Cannot use the snapshot", PATIENCE);
        assert_contains!(
            line,
            format!("found owner {owner} and mode 0{mode:o}; set owner and mode, or remove it")
        );
        let reply = Ask::new("web.t1.svc.cluster.local", "A").of(at);
        assert_eq!(reply.status(), "SERVFAIL", "{mode:o} {owner}");
        // What replaces it is the server's own.
        cluster.recover();
        until(at, "web.t1.svc.cluster.local", &["10.96.0.100"]);
        eventually("a snapshot", PATIENCE, || {
            let found = fs::metadata(&file).ok()?;
            ((found.uid(), found.mode() & 0o777) == (me, 0o644)).then_some(())
        });
    }
    // The same file with other properties, and with another cluster.
    for (from, to) in [
        ("pods insecure", "pods verified"),
        ("    endpoint http://", "    endpoint http://none.invalid:1 http://"),
    ] {
        fs::write(&file, &good).unwrap();
        let server = Server::start(&text.replace(from, to));
        let line = server.wait_for_log("Cannot use the snapshot", PATIENCE);
        assert!(line.contains("it is of another cluster, or of other properties of `kubernetes`"), "{line}");
    }
}

/// After a kill during a write, the former or the new snapshot is complete.
#[test]
fn kill_during_a_snapshot() {
    const KILLS: u32 = 8;
    // Large, so that writing takes time: a hundred slices of a hundred endpoints.
    let endpoint = |of: u32, n: u32| (format!("172.18.{of}.{n}"), format!("endpoint-{n}-of-the-slice-{of}"));
    let slices = (0..100).map(|of| {
        let endpoints: Vec<(String, String)> = (0..100).map(|n| endpoint(of, n)).collect();
        let endpoints: Vec<(&str, &str)> = endpoints.iter().map(|(ip, name)| (&**ip, &**name)).collect();
        let mut slice = slice(3, &endpoints);
        slice["metadata"]["name"] = format!("hl-large-{of}").into();
        (SLICES, slice)
    });
    let cluster = ScriptedCluster::start(objects().into_iter().chain(slices), false);
    let (upstream, directory) = (upstream(), tempdir());
    let file = directory.path().join("cluster");
    let at = SocketAddr::from((fresh_ip(), tests::port()));
    let text = with_snapshot(&corefile(at, &cluster.api, &upstream), &file);
    let number = |round: u32| format!("10.96.1.{round}");
    let put = |round: u32| {
        let spec = json!({"clusterIP": number(round), "clusterIPs": [number(round)]});
        cluster.put(SERVICES, "ADDED", service("number", spec));
    };
    put(0);
    let first = Server::start(&text);
    another(&file, &[]);
    drop(first);
    let mut torn = 0;
    for round in 1..=KILLS {
        // A temporary file of the last round would look like a write in progress.
        for beside in fs::read_dir(directory.path()).expect("it is there") {
            let beside = beside.expect("it is there").path();
            if beside != file {
                fs::remove_file(beside).expect("no other program removes it");
            }
        }
        let mut server = Server::start(&text);
        server.wait_for_log("the snapshot is not used any more", PATIENCE);
        put(round);
        until(at, "number.t1.svc.cluster.local", &[&number(round)]);
        // Waits for a temporary file or a change of the file, then kills the process, 0.5 ms later
        // in each round.
        let names = || fs::read_dir(directory.path()).expect("it is there").count();
        let written = |found: &fs::Metadata| (found.ino(), found.len(), found.mtime(), found.mtime_nsec());
        let is_new =
            |before: &fs::Metadata| fs::metadata(&file).is_ok_and(|now| written(&now) != written(before));
        let before = fs::metadata(&file).expect("it is there");
        let deadline = now() + PATIENCE;
        while names() == 1 && !is_new(&before) {
            assert!(now() < deadline, "nothing is written");
        }
        let seen = now();
        while seen.elapsed() < Duration::from_micros(500) * (round - 1) {}
        server.signal("KILL");
        server.wait(PATIENCE);
        torn += usize::from(names() > 1);
        drop(server);

        cluster.fail();
        let server = Server::start(&text);
        let line = server.wait_for_log("napshot", PATIENCE);
        assert!(line.contains("Answers are from the snapshot"), "killed in round {round}: {line}");
        let found = ask(at, "number.t1.svc.cluster.local", "A");
        let (former, new) = (number(round - 1), number(round));
        assert!(found.short() == [&*former] || found.short() == [&*new], "{round}: {:?}", found.short());
        let (address, name) = endpoint(99, 99);
        assert_eq!(ask(at, &format!("{name}.hl.t1.svc.cluster.local"), "A").short(), [&*address]);
        cluster.recover();
        // This round's snapshot is the next round's former one.
        server.wait_for_log("the snapshot is not used any more", PATIENCE);
        eventually("a snapshot of this round", PATIENCE, || {
            let octets = fs::read(&file).ok()?;
            octets.windows(4).any(|octets| octets == [10, 96, 1, round as u8]).then_some(())
        });
    }
    assert!(torn > 0, "no kill was during a write");
}

/// A snapshot that cannot be written is reported once, and the server serves on.
#[test]
fn unwritable_snapshot_is_reported_once() {
    let (cluster, upstream, directory) = (ScriptedCluster::start(objects(), false), upstream(), tempdir());
    let file = directory.path().join("missing/cluster");
    let at = SocketAddr::from((fresh_ip(), tests::port()));
    let server = Server::start(&with_snapshot(&corefile(at, &cluster.api, &upstream), &file));
    let failed = || {
        let metrics = Metrics::of((at.ip(), 9153).into());
        metrics.value("localdns_kubernetes_snapshots_total", &[("result", "failed")]).unwrap_or(0.0)
    };
    eventually("two failures", PATIENCE, || (failed() >= 2.0).then_some(()));
    assert_eq!(ask(at, "web.t1.svc.cluster.local", "A").short(), ["10.96.0.100"]);
    let reports =
        server.log_lines().into_iter().filter(|line| line.contains("Cannot keep the snapshot")).count();
    assert_eq!(reports, 1);
    // Once it can be written, it is.
    fs::create_dir(directory.path().join("missing")).unwrap();
    another(&file, &[]);
}

/// The real API's objects survive a restart without it.
#[test]
fn real_objects_survive_a_restart() {
    isolated(|| {
        let Some(cluster) = RealCluster::up("real_objects_survive_a_restart") else {
            return;
        };
        let services = "/api/v1/namespaces/default/services";
        let create = |name: &str, address: &str| {
            let spec = json!({"clusterIP": address, "ports": [{"port": 80}]});
            cluster.create(services, &json!({"metadata": {"name": name}, "spec": spec}).to_string());
        };
        create("stays", "10.96.7.1");
        create("goes", "10.96.7.2");
        let (upstream, directory) = (upstream(), tempdir());
        let file = directory.path().join("cluster");
        let at = SocketAddr::from((fresh_ip(), tests::port()));
        let unused_api = tests::kube::Api::start(|_| panic!("no client queries it"));
        let text = corefile(at, &unused_api, &upstream);
        let kubeconfig = format!("kubeconfig {}", cluster.path("dns.kubeconfig").display());
        let text =
            with_snapshot(&text.replace(&format!("endpoint {}", unused_api.url()), &kubeconfig), &file);
        // On a busy machine the first lists may take longer than the startup timeout of 300 ms.
        let server = Server::start(&text);
        until(at, "goes.default.svc.cluster.local", &["10.96.7.2"]);
        another(&file, &[]);
        drop(server);
        let (status, body) = cluster.send("DELETE", &format!("{services}/goes"), "");
        assert_eq!(status, 200, "{body}");
        cluster.lose();

        let server = Server::start(&text);
        for (name, address) in [("stays", "10.96.7.1"), ("goes", "10.96.7.2"), ("kubernetes", "10.96.0.1")] {
            assert_eq!(ask(at, &format!("{name}.default.svc.cluster.local"), "A").short(), [address]);
        }
        assert_eq!(ready(at).0, 200);
        server.wait_for_log("Cannot follow", PATIENCE);
        cluster.start();
        eventually("what was deleted is gone", PATIENCE, || {
            (ask(at, "goes.default.svc.cluster.local", "A").status() == "NXDOMAIN").then_some(())
        });
        assert_eq!(ask(at, "stays.default.svc.cluster.local", "A").short(), ["10.96.7.1"]);
        server.wait_for_log("the snapshot is not used any more", PATIENCE);
    });
}
