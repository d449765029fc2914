//! Random kills, stops, hangs, reloads, upgrades and losses of upstreams, rules and addresses, one
//! after another, while two pods and the host send queries: each query gets an answer within 5 s.

mod questions;

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::scope;
use std::time::{Duration, Instant};

use tests::{
    Action, Ask, Asked, Says, Systemd, Upstream, eventually, isolated_for, isolated_steadily, now, report,
    run, wire,
};

use super::clients::at;
use super::lab::{NAME, OUTSIDE, POD, US, within};
use super::restart::{UNIT, boot};
use questions::Questions;

/// Every question is answered within 5 s through each kind of fault.
#[test]
fn each_fault_once() {
    isolated_steadily(Duration::from_secs(400), || chaos(Duration::ZERO, 90.0));
}

/// Every question is answered within 5 s.
#[test]
#[ignore = "long: half an hour of faults, or CHAOS_MINUTES"]
fn random_faults_for_half_an_hour() {
    let minutes = number("CHAOS_MINUTES").unwrap_or(30);
    isolated_for(Duration::from_secs(minutes * 60 + 400), || {
        let minutes = number("CHAOS_MINUTES").unwrap_or(30);
        chaos(Duration::from_secs(minutes * 60), 1000.0);
    });
}

/// Injects every fault once, then random ones until `lasts` has elapsed; clients send `rate`
/// queries a second over UDP.
fn chaos(lasts: Duration, rate: f64) {
    let test = "each_fault_once";
    let Some((_lab, systemd)) = boot(test) else { return };
    let node = Node::new(systemd);
    let seed = number("CHAOS_SEED")
        .unwrap_or_else(|| u64::from(std::process::id()) ^ node.began.elapsed().as_nanos() as u64);
    let mut random = Random(seed);
    let (questions, mut faults) = (Questions::default(), Vec::new());
    let wanted = scope(|scope| {
        // Ends the clients in case of a panic too.
        let _over = Over(&questions);
        let began = now();
        questions.ask(scope, &[None, Some(POD), Some(SECOND)], &ADDRESSES, rate);
        node.serves("the server answers");
        for fault in FAULTS {
            node.meets(*fault, &questions, &mut random, &mut faults);
        }
        while node.began.elapsed() < lasts {
            let fault = FAULTS[random.below(FAULTS.len() as u64) as usize];
            node.meets(fault, &questions, &mut random, &mut faults);
        }
        (0.9 * rate * began.elapsed().as_secs_f64()) as usize
    });
    let mut counts = BTreeMap::<String, usize>::new();
    for (_, fault) in &faults {
        *counts.entry(format!("{fault:?}")).or_default() += 1;
    }
    let counts: Vec<_> = counts.iter().map(|(fault, count)| format!("{fault} {count}")).collect();
    let minutes = node.began.elapsed().as_secs_f64() / 60.0;
    report(&format!(
        "measured: chaos of {minutes:.1} min, seed {seed}: {}; {}",
        counts.join(", "),
        questions.summary()
    ));
    let failed = questions.failed(node.began);
    assert!(failed.is_empty(), "{failed:#?}\nfaults: {faults:#?}\n{}", node.systemd.log(UNIT));
    let asked = questions.over_udp.load(Relaxed);
    assert!(
        asked >= wanted,
        "{asked} questions over UDP are less than {wanted}: nothing is shown of that rate"
    );
}

/// A fault that a node may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Kill,
    Stop,
    Hang,
    Reload,
    Restart,
    Upgrade,
    LostUpstream,
    LostRules,
    LostAddress,
}

const FAULTS: &[Fault] = &[
    Fault::Kill,
    Fault::Stop,
    Fault::Hang,
    Fault::Reload,
    Fault::Restart,
    Fault::Upgrade,
    Fault::LostUpstream,
    Fault::LostRules,
    Fault::LostAddress,
];

/// The node with its unit and its upstreams.
struct Node {
    systemd: Systemd,
    upstreams: Vec<Upstream>,
    began: Instant,
}

impl Node {
    fn new(systemd: Systemd) -> Self {
        wire(SECOND, 3);
        for (address, _) in UPSTREAMS {
            // Without `nodad` the kernel makes an IPv6 address usable only later, on a work queue.
            let (host, flags) = if address.contains(':') { (128, "nodad") } else { (32, "noprefixroute") };
            run("ip", &["-n", OUTSIDE, "addr", "add", &format!("{address}/{host}"), "dev", "lo", flags]);
        }
        let upstream = |(ip, responder): &(&'static str, &'static str)| {
            let (address, responder) = (at(ip), *responder);
            within(OUTSIDE, move || Upstream::at(address, answer(responder)))
                .join()
                .expect("an upstream starts")
        };
        let upstreams: Vec<_> = UPSTREAMS.iter().map(upstream).collect();
        for upstream in &upstreams {
            let ask = Ask::new(NAME, "A").timeout(Duration::from_millis(250));
            eventually("an upstream is reached", PATIENCE, || ask.try_of(upstream.address()).ok());
        }
        fs::write(COREFILE_PATH, corefile(30)).expect("the test's own");
        systemd.ctl(&["start", UNIT]);
        Self { systemd, upstreams, began: now() }
    }

    /// Injects a fault and reverts it.
    fn meets(
        &self,
        fault: Fault,
        questions: &Questions,
        random: &mut Random,
        faults: &mut Vec<(Duration, Fault)>,
    ) {
        faults.push((self.began.elapsed(), fault));
        let pass = |from_ms: u64, to_ms: u64, random: &mut Random| {
            let until = now() + Duration::from_millis(from_ms + random.below(to_ms - from_ms));
            // Waits for further queries too, so that a slow machine has no more faults per query.
            let asked = questions.asked.load(Relaxed);
            eventually("questions", PATIENCE * 2, || {
                (now() >= until && questions.asked.load(Relaxed) > asked + ADDRESSES.len()).then_some(())
            });
        };
        let kill = |signal: &str| {
            self.systemd.ctl(&["kill", "--kill-who=main", &format!("--signal={signal}"), UNIT]);
        };
        let pid = self.systemd.main_pid(UNIT);
        let followed = || {
            eventually("the next process", PATIENCE, || {
                let next = self.systemd.main_pid(UNIT);
                (next != pid && next != "0").then_some(())
            });
        };
        match fault {
            Fault::Kill => {
                kill("KILL");
                followed();
            }
            Fault::Stop => {
                self.systemd.ctl(&["stop", UNIT]);
                pass(300, 3000, random);
                self.systemd.ctl(&["start", UNIT]);
            }
            Fault::Hang => {
                kill("STOP");
                pass(200, 4000, random);
                kill("CONT");
            }
            Fault::Reload => {
                fs::write(COREFILE_PATH, corefile(30 + random.below(30))).expect("the test's own");
                self.systemd.ctl(&["reload", UNIT]);
            }
            Fault::Restart => {
                self.systemd.ctl(&["restart", UNIT]);
                followed();
            }
            Fault::Upgrade => {
                kill("USR2");
                followed();
            }
            Fault::LostUpstream => {
                // One of the two IPv4 upstreams.
                let lost = random.below(2) as usize;
                self.upstreams[lost].answer_by(|_| Action::Silent);
                pass(1000, 6000, random);
                self.upstreams[lost].answer_by(answer(UPSTREAMS[lost].1));
            }
            Fault::LostRules => drop(run("nft", &["delete", "table", "inet", "localdns"])),
            Fault::LostAddress => {
                let address = format!("{}/32", ADDRESSES[random.below(2) as usize]);
                run("ip", &["addr", "del", &address, "dev", "localdns"]);
            }
        }
        self.serves(&format!("{fault:?}"));
        pass(300, 1500, random);
    }

    /// Waits until the server itself answers and all rules and addresses are back.
    fn serves(&self, after: &str) {
        eventually(&format!("{after}: back again"), PATIENCE * 2, || {
            let ask = Ask::new(NAME, "A").timeout(Duration::from_millis(250));
            let is_ours = |ip: &&str| ask.try_of(at(ip)).is_ok_and(|reply| reply.short() == [US]);
            let links = run("ip", &["addr", "show", "dev", "localdns"]);
            let is_there = |ip: &&str| links.contains(&format!("{ip}/"));
            let tables = run("nft", &["list", "tables", "inet"]);
            let all = ADDRESSES.iter().all(|ip| is_there(ip) && is_ours(ip));
            (all && tables.contains("table inet localdns\n") && tables.contains("localdns-lease-"))
                .then_some(())
        });
    }
}

struct Over<'q>(&'q Questions);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Relaxed);
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % bound
    }
}

/// Answers each A query with this upstream's address, any other type with NOERROR.
fn answer(responder: &'static str) -> impl Fn(&Asked) -> Action {
    move |asked| match asked.rtype {
        1 => Action::Reply(Says::answer(&format!("{} 5 IN A {responder}\n", asked.name))),
        _ => Action::rcode(0),
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn corefile(cache: u64) -> String {
    let (ips, servers) = (ADDRESSES.join(" "), UPSTREAMS.map(|(ip, _)| ip).join(" "));
    format!(
        ".:53 {{
    errors
    bind {ips}
    hosts {{
        {US} {NAME}
        ttl 5
        fallthrough
    }}
    cache {cache}
    forward . {servers} {{
        policy sequential
    }}
}}
"
    )
}

const COREFILE_PATH: &str = "/etc/localdns/Corefile";
const SECOND: &str = "pod2";
const ADDRESSES: [&str; 3] = ["169.254.10.10", "169.254.10.11", "fd10::11"];
/// One IPv4 upstream at a time may be down; IPv6 has only one.
const UPSTREAMS: [(&str, &str); 3] =
    [("10.4.0.2", "192.0.2.4"), ("10.5.0.2", "192.0.2.5"), ("fd04::2", "192.0.2.6")];
const PATIENCE: Duration = Duration::from_secs(20);
