//! More queries than the server can take are no reason to send anybody elsewhere.

use std::time::Duration;

use tests::{
    Ask, Cgroup, Message, Options, Stream, eventually, flood, isolated_for, isolated_steadily, now, skip,
    tell, tool,
};

use super::clients::{ADDRESSES, at};
use super::lab::{Lab, NAME, POD, US, within};
use super::never_dark::status;

#[test]
fn no_lease_ends_under_three_times_too_many_queries() {
    isolated_steadily(Duration::from_secs(180), || overload(Duration::from_secs(8)));
}

#[test]
#[ignore = "takes two minutes, or OVERLOAD_MINUTES"]
fn no_lease_ends_while_there_are_three_times_too_many_queries_for_minutes() {
    let minutes = std::env::var("OVERLOAD_MINUTES").map_or(2, |minutes| minutes.parse().expect("a number"));
    let length = Duration::from_secs(60 * minutes);
    // An hour is not repeated: what it shows is that nothing happens in it.
    match minutes {
        ..=2 => isolated_steadily(length + Duration::from_secs(480), || overload(length)),
        _ => isolated_for(2 * length + Duration::from_secs(480), || overload(length)),
    }
}

/// A server held to a small share of a core, whose lease thread is held to it, too, flooded from the host and a pod.
fn overload(length: Duration) {
    let test = "no_lease_ends_under_three_times_too_many_queries";
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
        server.wait_for_log(&format!("queries to {ip} come here"), PATIENCE);
    }
    let query = |_| Ask::new(NAME, "A");
    let right = |_, message: &Message| message.answers.first().is_some_and(|record| record.data == US);
    flood(at(HOST), 5_000, 64, query, right);
    let started = now();
    let peak = flood(at(HOST), 20_000, 64, query, right).answered as f64 / started.elapsed().as_secs_f64();
    let asked = lab.asked();
    // Two places, of at most 10,000 a second for each stream.
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
    tell(&format!("measured: peak {peak:.0} a second; {sent} sent and {answered} answered in {took:.1} s"));
    if (sent as f64) < 2.0 * peak * took {
        skip(test, "this machine is too busy to offer three times what it takes");
    }
    assert_eq!(sum(|one| one.wrong + one.duplicate), 0, "somebody else answered, or twice");
    assert_eq!(lab.asked(), asked, "queries that the upstream was asked");
    let log = server.log_text();
    assert!(!log.contains("the lease of"), "a lease ended meanwhile:\n{log}");
    let status = status(&server, 0);
    assert_eq!(status.matches("held, lost 0 times").count(), ADDRESSES.len(), "{status}");
}

const HOST: &str = "169.254.10.10";
const IN_POD: &str = "169.254.10.11";
const PATIENCE: Duration = Duration::from_secs(20);
