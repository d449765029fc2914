//! Tests of the name store with a clock that only the test moves.

use std::collections::BTreeSet;

use super::*;

mod model;

/// A name store with its clock.
struct Scene {
    names: NameStore,
    clock: Clock,
}

impl Scene {
    fn new(settings: Settings) -> Self {
        #[allow(clippy::disallowed_methods, reason = "some instant has to be the first")]
        let clock = Clock { now: Instant::now(), wall: 1_800_000_000 };
        Self { names: NameStore::new(settings, clock), clock }
    }

    fn with(names: &[&str]) -> Self {
        Self::new(Settings { names: names.iter().map(|text| name(text)).collect(), ..Settings::default() })
    }

    fn wait(&mut self, seconds: u64) {
        self.clock.now += Duration::from_secs(seconds);
        self.clock.wall += seconds;
    }

    fn read(&mut self, text: &str) -> String {
        string(&self.names.read(text.as_bytes(), Duration::ZERO, self.clock))
    }

    /// Finishes a round that takes no time; names without an `outcome` stay unchanged.
    fn round(&mut self, outcome: impl Fn(&Question) -> Option<LookupOutcome>) -> Round {
        let questions = self.names.begin(self.clock.now);
        let outcomes =
            questions.into_iter().filter_map(|q| outcome(&q).map(|outcome| (q, outcome))).collect();
        self.names.finish(self.clock.now, outcomes, self.clock, 0.0)
    }

    /// Advances the time until a lookup is due; returns the wait.
    fn until_due(&mut self) -> u64 {
        let due = self.names.due().expect("something is due");
        let wait = due.saturating_duration_since(self.clock.now).as_secs();
        self.wait(wait);
        wait
    }

    /// The lines with addresses that are served, sorted.
    fn lines(&self) -> BTreeSet<String> {
        lines(&string(&self.names.text()))
    }

    fn publish(&mut self) -> Option<String> {
        let text = self.names.to_publish()?;
        self.names.published(text.clone(), self.clock.now);
        Some(string(&text))
    }
}

fn name(text: &str) -> Name {
    Name::from_text(text).unwrap()
}

fn string(text: &[u8]) -> String {
    String::from_utf8(text.to_vec()).unwrap()
}

fn lines(text: &str) -> BTreeSet<String> {
    text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).map(str::to_owned).collect()
}

fn set(lines: &[&str]) -> BTreeSet<String> {
    lines.iter().map(|&line| line.to_owned()).collect()
}

fn addresses(texts: &[&str]) -> Option<LookupOutcome> {
    let mut addresses: Vec<IpAddr> = texts.iter().map(|text| text.parse().unwrap()).collect();
    addresses.sort_unstable();
    Some(LookupOutcome::Addresses { addresses, ttl: 3600 })
}

fn four(question: &Question, texts: &[&str]) -> Option<LookupOutcome> {
    if question.family == Family::Ipv4 { addresses(texts) } else { Some(LookupOutcome::NoData) }
}

const SERVFAIL: LookupOutcome = LookupOutcome::Failed(LookupError::Rcode(2));

#[test]
fn good_answers_replace_others_keep() {
    let mut scene = Scene::with(&["a.test", "b.test"]);
    let round = scene.round(|q| four(q, &["192.0.2.1", "192.0.2.2"]));
    assert_eq!((round.answered, round.failed, round.changes.len()), (4, 0, 2), "no AAAA is an answer");
    assert!(scene.names.entries().all(|(_, entry)| entry.failure.is_none()));
    let all = ["192.0.2.1 a.test", "192.0.2.2 a.test", "192.0.2.1 b.test", "192.0.2.2 b.test"];
    assert_eq!(scene.lines(), set(&all));
    for outcome in [
        LookupOutcome::NoSuchName,
        LookupOutcome::NoData,
        SERVFAIL,
        LookupOutcome::Failed(LookupError::Silent),
        addresses(&["127.0.0.1", "169.254.10.10"]).unwrap(),
        addresses(&["::ffff:192.0.2.9"]).unwrap(),
    ] {
        scene.wait(3600);
        let round = scene.round(|_| Some(outcome.clone()));
        // An empty answer is no good one if addresses are kept; without addresses it is a good one.
        let answered = if outcome == LookupOutcome::NoData { 2 } else { 0 };
        assert_eq!(
            (round.answered, round.failed, round.changes),
            (answered, 4 - answered, vec![]),
            "{outcome:?}"
        );
        assert_eq!(scene.lines(), set(&all), "{outcome:?}");
    }
    scene.wait(3600);
    let round = scene.round(|q| match q.name == name("a.test") {
        true => four(q, &["192.0.2.3", "127.0.0.1"]),
        false => Some(SERVFAIL),
    });
    let before = vec!["192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap()];
    let after = vec!["192.0.2.3".parse().unwrap()];
    assert_eq!(round.changes, [Change { name: name("a.test"), before, after }]);
    assert_eq!(scene.lines(), set(&["192.0.2.3 a.test", "192.0.2.1 b.test", "192.0.2.2 b.test"]));
    let b = Question { name: name("b.test"), family: Family::Ipv4 };
    let (_, entry) = scene.names.entries().find(|(question, _)| **question == b).unwrap();
    assert_eq!((entry.failures, entry.failure), (7, Some(LookupFailure::Lookup(LookupError::Rcode(2)))));
}

#[test]
fn sinkholes_are_refused() {
    let mut scene = Scene::new(Settings {
        names: vec![name("a.test")],
        sinkholes: vec!["192.0.2.66".parse().unwrap()],
        ..Settings::default()
    });
    scene.round(|q| four(q, &["192.0.2.66"]));
    assert_eq!(scene.lines(), set(&[]));
    let (_, entry) = scene.names.entries().next().unwrap();
    assert_eq!(entry.failure.unwrap().to_string(), "every address was refused: a sinkhole");
}

#[test]
fn lines_of_other_programs() {
    let mut scene = Scene::with(&["a.test", "b.test"]);
    scene.round(|q| four(q, &["192.0.2.1"]));
    let published = scene.publish().unwrap();
    assert_eq!(scene.read(&published), published, "our own text is not news");

    let foreign = "192.0.2.50 a.test\n192.0.2.99 canary\n";
    assert_eq!(scene.read(foreign), foreign);
    assert_eq!(scene.names.to_publish(), None, "the file has it already");
    scene.wait(3600);
    scene.round(|_| Some(SERVFAIL));
    assert_eq!(scene.lines(), lines(foreign), "a failure keeps the content of the file");
    scene.wait(3600);
    scene.round(|q| four(q, &["192.0.2.2"]));
    let merged = set(&["192.0.2.2 a.test", "192.0.2.2 b.test", "192.0.2.99 canary"]);
    assert_eq!(scene.lines(), merged);
    assert_eq!(lines(&scene.publish().unwrap()), merged);
    // The same foreign text again replaces this process's: newer, so it counts again.
    assert_eq!(scene.read(foreign), foreign);
}

#[test]
fn unwritable_file() {
    let mut scene = Scene::with(&["a.test"]);
    let old = "192.0.2.1 a.test\n";
    scene.read(old);
    scene.round(|q| four(q, &["192.0.2.2"]));
    assert!(scene.names.to_publish().is_some());
    // The unchanged file is read again before the new text is written, as by another hosts table:
    // the refreshed address stays.
    assert_eq!(lines(&scene.read(old)), set(&["192.0.2.2 a.test"]));
    assert!(scene.names.to_publish().is_some(), "until it is written");
    assert!(scene.publish().is_some());
    assert_eq!(scene.publish(), None);
}

#[test]
fn inherit_later_addresses() {
    let mut before = Scene::with(&["a.test", "b.test", "c.test"]);
    let old = "192.0.2.1 a.test\n192.0.2.1 b.test\n192.0.2.99 canary\n";
    before.read(old);
    before.wait(60);
    before.round(|q| (q.name != name("b.test")).then(|| four(q, &["192.0.2.2"])).flatten());
    let section = before.names.section(before.clock);
    assert!(!string(&section).contains("canary"), "what others wrote is in the file");
    let mut after = Scene::with(&["a.test", "b.test"]);
    after.clock = before.clock;
    // It has read the file as it was written 70 s ago.
    after.wait(10);
    after.names.read(old.as_bytes(), Duration::from_secs(70), after.clock);
    assert!(after.names.inherit(&section, after.clock));
    let merged = set(&["192.0.2.2 a.test", "192.0.2.1 b.test", "192.0.2.99 canary"]);
    assert_eq!(after.lines(), merged);
    assert_eq!(lines(&after.publish().unwrap()), merged);
    // A repetition changes nothing; and newer content of the file wins.
    assert!(!after.names.inherit(&section, after.clock));
    after.wait(1);
    after.read("192.0.2.7 a.test\n");
    assert!(!after.names.inherit(&section, after.clock));
    assert_eq!(after.lines(), set(&["192.0.2.7 a.test"]));
    for torn in [&b""[..], b"\xff", &section[..section.len() / 2]] {
        after.names.inherit(torn, after.clock);
        assert!(after.lines().contains("192.0.2.7 a.test"));
    }
}

#[test]
fn shipped_file() {
    let shipped = "192.0.2.7 a.test\n2001:db8::7 a.test\n192.0.2.8 unkept.test\n";
    let mut scene = Scene::with(&["a.test", "b.test"]);
    scene.names.ship(shipped.as_bytes(), scene.clock);
    assert_eq!(scene.lines(), set(&["192.0.2.7 a.test", "2001:db8::7 a.test"]));
    assert!(scene.names.entries().all(|(_, e)| e.addresses.is_empty() || e.source == Origin::Shipped));
    scene.round(|_| Some(SERVFAIL));
    assert_eq!(scene.names.to_publish(), None, "what is shipped is not published by itself");
    scene.wait(60);
    scene.round(|q| four(q, &["192.0.2.1"]));
    let text = scene.publish().unwrap();
    assert_eq!(lines(&text), set(&["192.0.2.1 a.test", "2001:db8::7 a.test", "192.0.2.1 b.test"]));

    // A restart with that file still recognises the shipped addresses.
    let mut restarted = Scene::with(&["a.test", "b.test"]);
    restarted.read(&text);
    let sources: Vec<_> = restarted
        .names
        .entries()
        .filter(|(_, entry)| !entry.addresses.is_empty())
        .map(|(question, entry)| (question.name.to_string(), question.family, entry.source))
        .collect();
    let [a, b] = ["a.test.".to_owned(), "b.test.".to_owned()];
    let expected = [
        (a.clone(), Family::Ipv4, Origin::File),
        (a, Family::Ipv6, Origin::Shipped),
        (b, Family::Ipv4, Origin::File),
    ];
    assert_eq!(sources, expected);

    let mut empty = Scene::with(&["a.test"]);
    empty.read("");
    empty.names.ship(shipped.as_bytes(), empty.clock);
    assert_eq!(empty.lines(), set(&[]), "an empty file is a file");
    let mut late = Scene::with(&["a.test"]);
    late.names.ship(shipped.as_bytes(), late.clock);
    assert_eq!(late.read(""), "");
}

#[test]
fn max_age() {
    let mut scene = Scene::new(Settings {
        names: vec![name("a.test")],
        max_age: Some(Duration::from_secs(5000)),
        ..Settings::default()
    });
    scene.round(|q| four(q, &["192.0.2.1"]));
    let text = scene.publish().unwrap();
    for _ in 0..20 {
        scene.until_due();
        scene.names.expire(scene.clock);
        if scene.lines().is_empty() {
            break;
        }
        scene.round(|_| Some(SERVFAIL));
    }
    assert_eq!(scene.lines(), set(&[]));
    assert_eq!(scene.clock.wall, 1_800_005_000, "neither earlier nor later");
    assert_eq!(lines(&scene.publish().unwrap()), set(&[]), "nor does the file keep it");

    // A new process reads an entry's age from the file.
    let mut restarted = Scene::new(scene.names.settings().clone());
    restarted.wait(4000);
    restarted.read(&text);
    restarted.wait(999);
    assert_eq!(restarted.names.expire(restarted.clock), []);
    restarted.wait(1);
    assert_eq!(restarted.names.expire(restarted.clock).len(), 1);
}

#[test]
fn preferred_family() {
    for (families, expected, asked) in [
        (Families::Both, &["192.0.2.1 a.test", "192.0.2.1 v4.test", "2001:db8::1 a.test"][..], 4),
        (Families::PreferIpv4, &["192.0.2.1 a.test", "192.0.2.1 v4.test"], 4),
        (Families::PreferIpv6, &["2001:db8::1 a.test", "192.0.2.1 v4.test"], 4),
        (Families::Ipv4, &["192.0.2.1 a.test", "192.0.2.1 v4.test"], 2),
        (Families::Ipv6, &["2001:db8::1 a.test"], 2),
    ] {
        let names = vec![name("a.test"), name("v4.test")];
        let mut scene = Scene::new(Settings { names, families, ..Settings::default() });
        let round = scene.round(|q| match (q.name == name("a.test"), q.family) {
            (_, Family::Ipv4) => addresses(&["192.0.2.1"]),
            (true, Family::Ipv6) => addresses(&["2001:db8::1"]),
            (false, Family::Ipv6) => Some(LookupOutcome::NoData),
        });
        assert_eq!(scene.lines(), set(expected), "{families:?}");
        assert_eq!(round.answered + round.failed, asked, "{families:?}");
    }
}

#[test]
fn reload_keeps_state() {
    let mut scene = Scene::with(&["a.test", "b.test"]);
    scene.round(|q| four(q, &["192.0.2.1"]));
    scene.publish();
    let settings = Settings { names: vec![name("b.test"), name("c.test")], ..Settings::default() };
    scene.names.set(settings.clone(), scene.clock);
    assert_eq!(scene.lines(), set(&["192.0.2.1 b.test"]));
    let due: Vec<_> = scene.names.begin(scene.clock.now).iter().map(|q| q.name.to_string()).collect();
    assert_eq!(due, ["c.test.", "c.test."], "only the new one is due");
    assert_eq!(lines(&scene.publish().unwrap()), set(&["192.0.2.1 b.test"]));
    let schedule = Schedule::exactly(Duration::from_secs(5));
    scene.names.set(Settings { schedule, ..settings }, scene.clock);
    assert_eq!(scene.names.begin(scene.clock.now).len(), 4, "another schedule begins anew");
}

#[test]
fn ages_are_written_hourly() {
    let mut scene = Scene::with(&["a.test"]);
    scene.round(|q| four(q, &["192.0.2.1"]));
    assert!(scene.publish().is_some());
    let mut writes = 0;
    for _ in 0..96 {
        scene.wait(900);
        assert_eq!(scene.round(|q| four(q, &["192.0.2.1"])).changes, []);
        writes += usize::from(scene.publish().is_some());
    }
    assert_eq!(writes, 24);
}

#[test]
fn lookups_of_a_day() {
    const DAY: u64 = 24 * 3600;
    for (schedule, ttl, least, most) in [
        (Schedule::default(), 3600, DAY / 960, DAY / 900 + 1),
        (Schedule::default(), 30, DAY / 360, DAY / 300 + 1),
        (Schedule::exactly(Duration::from_secs(300)), 30, DAY / 300, DAY / 300 + 1),
    ] {
        let names = vec![name("a.test"), name("b.test")];
        let mut scene = Scene::new(Settings { names, schedule, ..Settings::default() });
        let end = scene.clock.now + Duration::from_secs(DAY);
        let mut asked = BTreeMap::<Question, u64>::new();
        let mut draw = 0.37_f64;
        while scene.clock.now < end {
            let questions = scene.names.begin(scene.clock.now);
            for question in &questions {
                *asked.entry(*question).or_default() += 1;
            }
            let outcome = |q: Question| {
                let addresses = vec![if q.family == Family::Ipv4 {
                    [192, 0, 2, 1].into()
                } else {
                    [0x2001u16, 0xdb8, 0, 0, 0, 0, 0, 1].into()
                }];
                (q, LookupOutcome::Addresses { addresses, ttl })
            };
            let began = scene.clock.now;
            // The duration of rounds must not add up.
            scene.wait(1);
            let outcomes = questions.into_iter().map(outcome).collect();
            draw = (draw * 997.0).fract();
            scene.names.finish(began, outcomes, scene.clock, draw);
            let wait = scene.names.due().unwrap().saturating_duration_since(scene.clock.now);
            scene.clock.now += wait;
        }
        assert_eq!(asked.len(), 4);
        assert!(asked.values().all(|count| (least..=most).contains(count)), "{schedule:?} {ttl}: {asked:?}");
    }
}

#[test]
fn outage_backoff() {
    let mut scene = Scene::with(&["a.test"]);
    let mut waits = Vec::new();
    for _ in 0..9 {
        scene.round(|_| Some(LookupOutcome::Failed(LookupError::Silent)));
        waits.push(scene.until_due());
    }
    assert_eq!(waits, [5, 10, 20, 40, 80, 160, 320, 640, 900]);
    scene.round(|q| four(q, &["192.0.2.1"]));
    assert_eq!(scene.until_due(), 900);
    scene.round(|_| Some(LookupOutcome::Failed(LookupError::Silent)));
    assert_eq!(
        scene.names.due().unwrap() - scene.clock.now,
        Duration::from_secs(30),
        "no hurry where something is known"
    );
}

#[test]
fn jitter_spreads_nodes() {
    use proptest::test_runner::{Config, TestRunner};
    let mut runner = TestRunner::new_with_rng(
        Config::default(),
        proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
    );
    let mut tenths = [0u32; 10];
    for _ in 0..1000 {
        let draw = f64::from(rand_core(&mut runner)) / f64::from(u32::MAX);
        let mut scene = Scene::with(&["a.test"]);
        let questions = scene.names.begin(scene.clock.now);
        assert_eq!(questions.len(), 2, "round one at once");
        let outcomes = questions.into_iter().map(|q| (q, addresses(&["192.0.2.1"]).unwrap())).collect();
        scene.names.finish(scene.clock.now, outcomes, scene.clock, draw);
        let wait = (scene.names.due().unwrap() - scene.clock.now).as_secs_f64();
        assert!((900.0..=960.0).contains(&wait), "{wait}");
        tenths[(((wait - 900.0) / 6.0) as usize).min(9)] += 1;
    }
    // Nine degrees of freedom: an even spread exceeds 27.9 once in a thousand runs, and these draws never change.
    let chi: f64 = tenths.iter().map(|&count| (f64::from(count) - 100.0).powi(2) / 100.0).sum();
    assert!(chi < 27.9, "{tenths:?}");
}

fn rand_core(runner: &mut proptest::test_runner::TestRunner) -> u32 {
    use proptest::strategy::{Strategy, ValueTree};
    proptest::num::u32::ANY.new_tree(runner).unwrap().current()
}
