//! Compares the served names with a map after random operations in random order.

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Step {
    /// A round with an outcome for each of the four names and families.
    Round([Reply; 4]),
    /// Another program writes the file: each name's addresses, and whether it has a canary.
    Foreign([Option<u8>; 4], bool),
    /// Writes the text, if it differs from the file.
    Publish,
    /// Time passes, and expired entries are removed.
    Wait(u64),
    /// The process restarts with the current file.
    Restart,
}

#[derive(Debug, Clone)]
enum Reply {
    Addresses(BTreeSet<u8>),
    /// Addresses that are refused.
    Inside,
    Mixed(u8),
    NoSuchName,
    NoData,
    Failed,
    /// No reply.
    Lost,
}

fn reply() -> impl Strategy<Value = Reply> {
    prop_oneof![
        4 => proptest::collection::btree_set(1u8..5, 1..4).prop_map(Reply::Addresses),
        1 => Just(Reply::Inside),
        1 => (1u8..5).prop_map(Reply::Mixed),
        1 => Just(Reply::NoSuchName),
        1 => Just(Reply::NoData),
        2 => Just(Reply::Failed),
        1 => Just(Reply::Lost),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => [reply(), reply(), reply(), reply()].prop_map(Step::Round),
        1 => (proptest::array::uniform4(proptest::option::of(5u8..9)), any::<bool>())
            .prop_map(|(lines, canary)| Step::Foreign(lines, canary)),
        2 => Just(Step::Publish),
        3 => (0u64..2000).prop_map(Step::Wait),
        1 => Just(Step::Restart),
    ]
}

const MAX_AGE: u64 = 3000;
const NAMES: [&str; 2] = ["a.test", "b.test"];

fn questions() -> [Question; 4] {
    let [a, b] = NAMES.map(name);
    [(a, Family::Ipv4), (a, Family::Ipv6), (b, Family::Ipv4), (b, Family::Ipv6)]
        .map(|(name, family)| Question { name, family })
}

fn address(family: Family, last: u8) -> IpAddr {
    match family {
        Family::Ipv4 => [192, 0, 2, last].into(),
        Family::Ipv6 => [0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::from(last)].into(),
    }
}

fn inside(family: Family) -> IpAddr {
    if family == Family::Ipv4 { [127, 0, 0, 1].into() } else { [0, 0, 0, 0, 0, 0, 0, 1].into() }
}

/// Addresses of each name and family, with the time of their last good answer.
type Known = [Option<(BTreeSet<u8>, u64)>; 4];

/// The expected content: the refreshed names, and the foreign line.
#[derive(Debug, Default, Clone)]
struct Model {
    known: Known,
    canary: bool,
    /// The expected content of the file.
    file: Option<(Known, bool)>,
}

impl Model {
    fn lines(&self) -> BTreeSet<String> {
        let mut lines = BTreeSet::new();
        for (question, known) in questions().iter().zip(&self.known) {
            for last in known.iter().flat_map(|(addresses, _)| addresses) {
                let text = question.name.to_string();
                lines.insert(format!("{} {}", address(question.family, *last), text.trim_end_matches('.')));
            }
        }
        if self.canary {
            lines.insert("192.0.2.99 canary".into());
        }
        lines
    }

    fn expire(&mut self, wall: u64) {
        for known in &mut self.known {
            if known.as_ref().is_some_and(|(_, good)| good + MAX_AGE <= wall) {
                *known = None;
            }
        }
    }
}

fn settings() -> Settings {
    Settings {
        names: NAMES.map(name).to_vec(),
        schedule: Schedule::exactly(Duration::from_secs(5)),
        max_age: Some(Duration::from_secs(MAX_AGE)),
        ..Settings::default()
    }
}

proptest! {
    #[test]
    fn store_agrees_with_model(steps in proptest::collection::vec(step(), 0..40)) {
        let mut scene = Scene::new(settings());
        let mut model = Model::default();
        let mut file: Option<String> = None;
        for step in steps {
            match &step {
                Step::Round(replies) => {
                    scene.wait(60);
                    model.expire(scene.clock.wall);
                    scene.names.expire(scene.clock);
                    let all = questions();
                    let round = scene.round(|question| {
                        let at = all.iter().position(|known| known == question).unwrap();
                        Some(match &replies[at] {
                            Reply::Addresses(lasts) => {
                                let addresses = lasts.iter().map(|last| address(question.family, *last)).collect();
                                LookupOutcome::Addresses { addresses, ttl: 60 }
                            }
                            Reply::Inside => LookupOutcome::Addresses { addresses: vec![inside(question.family)], ttl: 60 },
                            Reply::Mixed(last) => {
                                let addresses = vec![inside(question.family), address(question.family, *last)];
                                LookupOutcome::Addresses { addresses, ttl: 60 }
                            }
                            Reply::NoSuchName => LookupOutcome::NoSuchName,
                            Reply::NoData => LookupOutcome::NoData,
                            Reply::Failed => SERVFAIL,
                            Reply::Lost => return None,
                        })
                    });
                    let before = model.lines();
                    for (known, reply) in model.known.iter_mut().zip(replies) {
                        match reply {
                            Reply::Addresses(lasts) => *known = Some((lasts.clone(), scene.clock.wall)),
                            Reply::Mixed(last) => *known = Some((BTreeSet::from([*last]), scene.clock.wall)),
                            _ => {}
                        }
                    }
                    prop_assert_eq!(round.changes.is_empty(), before == model.lines());
                }
                Step::Foreign(all, canary) => {
                    let mut text = String::new();
                    for (question, last) in questions().iter().zip(all) {
                        if let Some(last) = last {
                            text.push_str(&format!("{} {}\n", address(question.family, *last), question.name));
                        }
                    }
                    if *canary {
                        text.push_str("192.0.2.99 canary\n");
                    }
                    // Unchanged text is ignored.
                    if file.as_ref() != Some(&text) {
                        model.known = all.map(|last| Some((BTreeSet::from([last?]), scene.clock.wall)));
                        model.canary = *canary;
                        model.file = Some((model.known.clone(), model.canary));
                        scene.read(&text);
                        file = Some(text);
                    }
                }
                Step::Publish => {
                    if let Some(text) = scene.publish() {
                        prop_assert_eq!(lines(&text), model.lines());
                        model.file = Some((model.known.clone(), model.canary));
                        file = Some(text);
                    } else if let Some(file) = &file {
                        prop_assert_eq!(lines(file).iter().map(|line| line.trim_end_matches('.').to_owned()).collect::<BTreeSet<_>>(), model.lines());
                    } else {
                        prop_assert_eq!(model.lines(), BTreeSet::new());
                    }
                }
                Step::Wait(seconds) => {
                    scene.wait(*seconds);
                    model.expire(scene.clock.wall);
                    scene.names.expire(scene.clock);
                }
                Step::Restart => {
                    let clock = scene.clock;
                    scene = Scene::new(settings());
                    scene.clock = Clock { wall: clock.wall, ..scene.clock };
                    (model.known, model.canary) = model.file.clone().unwrap_or_default();
                    if let Some(text) = &file {
                        scene.read(text);
                        for (known, (_, entry)) in model.known.iter_mut().zip(scene.names.entries()) {
                            if let Some((_, good)) = known {
                                let refreshed_at = scene.clock.wall - entry.age(scene.clock.now).as_secs();
                                // This server's file has the age of an entry; an entry of another
                                // program's file is as old as the file.
                                prop_assert!(refreshed_at == *good || !text.contains("localdns") && refreshed_at == scene.clock.wall);
                                *good = refreshed_at;
                            }
                        }
                    }
                    scene.names.expire(scene.clock);
                    model.expire(scene.clock.wall);
                }
            }
            let served: BTreeSet<_> =
                scene.lines().iter().map(|line| line.trim_end_matches('.').to_owned()).collect();
            prop_assert_eq!(served, model.lines(), "after {:?}", step);
        }
    }

    #[test]
    fn foreign_lines_survive_any_text(text in "[a-c #.:\n0-9]{0,200}") {
        let mut scene = Scene::with(&["a"]);
        scene.read(&text);
        scene.round(|q| four(q, &["192.0.2.1"]));
        let written = string(&scene.names.text());
        prop_assert!(written.contains("192.0.2.1 a\n"));
        let foreign = |text: &str| -> Vec<String> {
            text.lines().filter(|line| !line.split('#').next().unwrap().split(' ').any(|word| word.trim_end_matches('.') == "a"))
                .filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
        };
        let kept = foreign(&written);
        for line in foreign(&text) {
            prop_assert!(kept.contains(&line), "{line:?} in {written:?}");
        }
    }
}
