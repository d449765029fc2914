//! More queries than the server can answer cause no failover.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tests::{
    Ask, Cgroup, Held, Message, Options, Stream, eventually, flood, isolated_for, isolated_steadily, now,
    report, run, skip, tool,
};

use super::availability::status;
use super::clients::{ADDRESSES, at};
use super::lab::{CLUSTER, COREFILE, Lab, NAME, POD, US, within};

/// Three times the server's capacity in queries ends no lease.
#[test]
fn overload_ends_no_lease() {
    let _alone = ONE_FLOOD.lock().unwrap_or_else(PoisonError::into_inner);
    isolated_steadily(Duration::from_secs(180), || overload(Duration::from_secs(8), 2.0));
}

/// Minutes of three times the server's capacity in queries end no lease.
#[test]
#[ignore = "takes two minutes, or OVERLOAD_MINUTES"]
fn minutes_of_overload_end_no_lease() {
    let minutes = std::env::var("OVERLOAD_MINUTES").map_or(2, |minutes| minutes.parse().expect("a number"));
    let length = Duration::from_secs(60 * minutes);
    // A run of an hour is not repeated on failure: it must show that no lease ends.
    match minutes {
        ..=2 => isolated_steadily(length + Duration::from_secs(480), || overload(length, 2.7)),
        _ => isolated_for(2 * length + Duration::from_secs(480), || overload(length, 2.7)),
    }
}

/// The lease ends under a flood, too, of which the other workers take their share.
#[test]
fn stuck_worker_ends_its_lease() {
    let _alone = ONE_FLOOD.lock().unwrap_or_else(PoisonError::into_inner);
    isolated_steadily(Duration::from_secs(120), || {
        let test = "stuck_worker_ends_its_lease";
        if !tool(test, "nft") {
            return;
        }
        let lab = Lab::new();
        let corefile = COREFILE.replace("    bind ", "    multisocket 2\n    bind ");
        let server = lab.serve_of(&corefile, &["-host-resolver", "none"]);
        for ip in ADDRESSES {
            server.wait_for_log(&format!("queries to {ip} are answered here"), PATIENCE);
        }
        let streams: Vec<_> = (0..16)
            .map(|_| Stream::start(at(HOST), 100, |_| Ask::new(NAME, "A"), |_, message| message.rcode() == 0))
            .collect();
        let go_on = || {
            let before: Vec<_> = streams.iter().map(Stream::sent).collect();
            eventually("the flood", PATIENCE, || {
                let mut sent = streams.iter().zip(&before);
                sent.all(|(stream, before)| stream.sent() >= before + 150).then_some(())
            });
        };
        go_on();
        // The effect of a full receive buffer, for our own probes alone.
        run("nft", &["add table inet flood"]);
        run("nft", &["add chain inet flood input { type filter hook input priority 0; }"]);
        run(
            "nft",
            &[&format!("add rule inet flood input meta mark 0x6c646e73 ip daddr {HOST} udp dport 53 drop")],
        );
        go_on();
        let log = server.log_text();
        assert!(!log.contains("the lease of"), "a lease ended although both take datagrams:\n{log}");
        let held = match Held::stop(server.threads("worker-")[1]) {
            Ok(held) => held,
            Err(why) => return skip(test, &why.to_string()),
        };
        let ended = server.wait_for_log(&format!("the lease of {HOST} ended"), PATIENCE);
        assert!(ended.contains("worker 1"), "{ended}");
        let ask = Ask::new(NAME, "A").timeout(Duration::from_millis(250));
        eventually("an answer of the upstream", PATIENCE, || {
            ask.try_of(at(HOST)).ok().filter(|reply| reply.short() == [CLUSTER])
        });
        drop(held);
        run("nft", &["delete table inet flood"]);
        server.wait_for_lines(&format!("queries to {HOST} are answered here"), 2, PATIENCE);
    });
}

/// Floods a server, limited with its lease thread to a fraction of a core, from the host and a pod.
/// A load measured at `times` its peak or more counts as three times.
fn overload(length: Duration, times: f64) {
    let test = "overload_ends_no_lease";
    if !tool(test, "nft") {
        return;
    }
    let group = match Cgroup::cpu(10) {
        Ok(group) => group,
        Err(why) => return skip(test, &why),
    };
    let lab = Lab::new();
    let server = lab.serve_with(|options: Options| options.within(&group));
    for ip in ADDRESSES {
        server.wait_for_log(&format!("queries to {ip} are answered here"), PATIENCE);
    }
    let query = |_| Ask::new(NAME, "A");
    let right = |_, message: &Message| message.answers.first().is_some_and(|record| record.data == US);
    flood(at(HOST), 5_000, 64, query, right);
    let started = now();
    let peak = flood(at(HOST), 20_000, 64, query, right).answered as f64 / started.elapsed().as_secs_f64();
    let asked = lab.asked();
    // From two places, at most 10,000 a second for each stream.
    let streams = (peak * 1.5 / 8_000.0).ceil();
    let rate = ((peak * 1.5 / streams) as u32).clamp(1, 10_000);
    let mut running = Vec::new();
    for _ in 0..streams as usize {
        running.push(Stream::start(at(HOST), rate, query, right));
        let in_pod = within(POD, move || Stream::start(at(IN_POD), rate, query, right));
        running.push(in_pod.join().expect("a client starts"));
    }
    let (begun, wanted) = (now(), (f64::from(rate) * length.as_secs_f64()) as usize);
    eventually("the queries", 4 * length, || {
        let all = running.iter().all(|one| one.sent() >= wanted);
        (all || begun.elapsed() > 2 * length).then_some(())
    });
    let took = begun.elapsed().as_secs_f64();
    let counts: Vec<_> = running.into_iter().map(|one| one.finish(Duration::ZERO)).collect();
    let sum = |of: fn(&tests::StreamCounts) -> usize| counts.iter().map(of).sum::<usize>();
    let (sent, answered) = (sum(|one| one.sent), sum(|one| one.answered));
    report(&format!("measured: peak {peak:.0} a second; {sent} sent and {answered} answered in {took:.1} s"));
    assert_eq!(sum(|one| one.wrong + one.duplicate), 0, "another server answered, or twice");
    assert_eq!(lab.asked(), asked, "queries that the upstream was asked");
    let log = server.log_text();
    assert!(!log.contains("the lease of"), "a lease ended meanwhile:\n{log}");
    // Probes of `status` wait behind the queued queries too.
    for ip in [HOST, IN_POD] {
        let ask = Ask::new(NAME, "A").timeout(Duration::from_secs(1));
        eventually("what lay in the queues is answered", PATIENCE, || ask.try_of(at(ip)).ok());
    }
    let status = status(&server, 0);
    assert_eq!(status.matches("held, lost 0 times").count(), ADDRESSES.len(), "{status}");
    if (sent as f64) < times * peak * took {
        skip(test, "this machine is too busy to offer three times what it takes");
    }
}

/// Floods must not overlap.
static ONE_FLOOD: Mutex<()> = Mutex::new(());
const HOST: &str = "169.254.10.10";
const IN_POD: &str = "169.254.10.11";
const PATIENCE: Duration = Duration::from_secs(20);
