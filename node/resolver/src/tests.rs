use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use hostsfile::managed::{ManagedLine, Marker, Text};
use proptest::collection::vec;
use proptest::prelude::*;
use stub_resolver::{Family, LookupError, LookupOutcome};

use super::DEFAULT_MARKER;
use super::reconcile::{FAMILIES, Outcomes, Reason, Rules, Verdict, WantedLines, plan};
use super::services::Service;

#[test]
fn an_answer_replaces_a_denial_removes_and_a_failure_keeps() {
    let (silent, servfail) =
        (LookupOutcome::Failed(LookupError::Silent), LookupOutcome::Failed(LookupError::Rcode(2)));
    let standing = &["10.96.0.1", "fd00::1"][..];
    for (v4, v6, want, verdict) in [
        (addresses(&["10.96.0.2"]), addresses(&["fd00::2"]), &["10.96.0.2", "fd00::2"][..], Verdict::Known),
        (addresses(&["10.96.0.2"]), LookupOutcome::NoData, &["10.96.0.2"], Verdict::Known),
        (LookupOutcome::NoData, LookupOutcome::NoData, &[], Verdict::Absent),
        (LookupOutcome::NoSuchName, LookupOutcome::NoSuchName, &[], Verdict::Absent),
        (LookupOutcome::NoSuchName, silent.clone(), &[], Verdict::Absent),
        (silent.clone(), LookupOutcome::NoSuchName, &[], Verdict::Absent),
        (LookupOutcome::NoData, silent.clone(), &["fd00::1"], Verdict::Kept(LookupError::Silent)),
        (
            addresses(&["10.96.0.2"]),
            servfail.clone(),
            &["10.96.0.2", "fd00::1"],
            Verdict::Kept(LookupError::Rcode(2)),
        ),
        (silent.clone(), servfail, standing, Verdict::Kept(LookupError::Silent)),
        (addresses(&["10.96.0.2"]), LookupOutcome::NoSuchName, &["10.96.0.2"], Verdict::Known),
        (
            addresses(&["10.96.0.2"]),
            LookupOutcome::Failed(LookupError::Alias),
            &[],
            Verdict::LeftOut(Reason::Alias),
        ),
        (addresses(&["10.96.0.2", "10.96.0.3"]), silent, &[], Verdict::LeftOut(Reason::Headless(2))),
    ] {
        let made = one(&[], standing, v4.clone(), v6.clone(), "127.0.0.1 localhost\n");
        assert_eq!(of(&made), want, "{v4:?} {v6:?}");
        assert_eq!(made.verdicts[&web()], verdict, "{v4:?} {v6:?}");
    }
}

#[test]
fn only_addresses_of_services_enter() {
    let networks = &["10.96.0.0/12", "fd00:96::/112"][..];
    for (networks, v4, v6, want) in [
        (networks, &["10.96.0.1"][..], &["fd00:96::64"][..], &["10.96.0.1", "fd00:96::64"][..]),
        (networks, &["10.96.0.1", "10.97.0.2"], &[], &["10.96.0.1", "10.97.0.2"]),
        (networks, &["10.96.0.1", "172.17.0.254"], &["fd00:17::1"], &["10.96.0.1"]),
        (networks, &["93.184.216.34"], &["fd00:17::1"], &[]),
        // Host bits are ignored.
        (&["10.100.3.4/12"], &["10.96.0.1", "10.112.0.0"], &["fd00:96::64"], &["10.96.0.1"]),
        (&[], &["127.0.0.1"], &["::1"], &[]),
        (&[], &["169.254.1.1"], &["fe80::1"], &[]),
        (&[], &["0.0.0.0"], &["::ffff:10.96.0.1"], &[]),
        (&[], &["224.0.0.1"], &["fd00::1"], &["fd00::1"]),
        (&["0.0.0.0/0", "::/0"], &["127.0.0.1"], &["fe80::1"], &[]),
    ] {
        // Existing lines with addresses that the rules refuse are not kept, either.
        let made = one(networks, &["127.0.0.9"], addresses(v4), addresses(v6), "");
        assert_eq!(of(&made), want, "{networks:?} {v4:?} {v6:?}");
        let refused = matches!(made.verdicts[&web()], Verdict::LeftOut(Reason::Refused(_)));
        assert_eq!(refused, want.is_empty(), "{:?}", made.verdicts);
    }
    let failed = || LookupOutcome::Failed(LookupError::Silent);
    assert_eq!(of(&one(networks, &["93.184.216.34", "127.0.0.1"], failed(), failed(), "")), [""; 0]);
}

#[test]
fn a_name_that_others_define_is_left_out() {
    for (text, defined) in [
        ("10.0.0.1 web.t1.svc\n", Some("web.t1.svc")),
        ("10.0.0.1 x WEB.t1.svc. # c\n", Some("web.t1.svc")),
        ("::1 web.t1.svc.cluster.local", Some("web.t1.svc.cluster.local")),
        ("10.0.0.1 web.t1\n10.0.0.1 web.t1.svc.other\n# 10.0.0.1 web.t1.svc\n", None),
    ] {
        for outcome in [addresses(&["10.96.0.1"]), LookupOutcome::Failed(LookupError::Silent)] {
            let made = one(&[], &["10.96.0.1"], outcome, LookupOutcome::NoData, text);
            assert_eq!(of(&made).is_empty(), defined.is_some(), "{text}");
            let reason =
                defined.map(|name| Verdict::LeftOut(Reason::Defined { name: name.to_owned(), line: 1 }));
            assert!(reason.is_none_or(|reason| made.verdicts[&web()] == reason), "{:?}", made.verdicts);
        }
    }
}

/// The result of one family's lookup, in the model.
#[derive(Debug, Clone, Copy)]
enum FamilyLookup {
    One(u8),
    Two(u8),
    Loopback,
    Denied,
    Empty,
    Alias,
    Silent,
    Missing,
}

fn lookup() -> impl Strategy<Value = FamilyLookup> {
    prop_oneof![
        3 => (0..3_u8).prop_map(FamilyLookup::One),
        1 => (0..3_u8).prop_map(FamilyLookup::Two),
        1 => Just(FamilyLookup::Loopback),
        2 => Just(FamilyLookup::Denied),
        2 => Just(FamilyLookup::Empty),
        1 => Just(FamilyLookup::Alias),
        3 => Just(FamilyLookup::Silent),
        1 => Just(FamilyLookup::Missing),
    ]
}

impl FamilyLookup {
    fn outcome(self, family: Family) -> Option<LookupOutcome> {
        let texts: Vec<String> = match self {
            Self::One(n) => vec![address(family, n)],
            Self::Two(n) => vec![address(family, n), address(family, n + 1)],
            Self::Loopback if family == Family::Ipv4 => vec!["127.0.0.1".to_owned()],
            Self::Loopback => vec!["::1".to_owned()],
            Self::Denied => return Some(LookupOutcome::NoSuchName),
            Self::Empty => return Some(LookupOutcome::NoData),
            Self::Alias => return Some(LookupOutcome::Failed(LookupError::Alias)),
            Self::Silent => return Some(LookupOutcome::Failed(LookupError::Silent)),
            Self::Missing => return None,
        };
        Some(addresses(&texts.iter().map(String::as_str).collect::<Vec<_>>()))
    }
}

/// The published lines in the model: the addresses of each service and family.
type Model = BTreeMap<(usize, bool), BTreeSet<String>>;

fn step(
    model: &mut Model,
    service: usize,
    lookup: [FamilyLookup; 2],
    known_networks: bool,
    is_defined: bool,
) {
    let headless = !known_networks && lookup.iter().any(|lookup| matches!(lookup, FamilyLookup::Two(_)));
    if is_defined || headless || lookup.iter().any(|lookup| matches!(lookup, FamilyLookup::Alias)) {
        model.retain(|(of, _), _| *of != service);
        return;
    }
    let denied = lookup.iter().any(|lookup| matches!(lookup, FamilyLookup::Denied));
    for (lookup, is_v6) in lookup.into_iter().zip([false, true]) {
        let family = if is_v6 { Family::Ipv6 } else { Family::Ipv4 };
        let now = match lookup {
            FamilyLookup::One(n) => vec![address(family, n)],
            FamilyLookup::Two(n) => vec![address(family, n), address(family, n + 1)],
            FamilyLookup::Silent | FamilyLookup::Missing if !denied => continue,
            _ => vec![],
        };
        model.insert((service, is_v6), now.into_iter().collect());
    }
}

proptest! {
    #[test]
    fn published_lines_match_model(
        rounds in vec(([[lookup(), lookup()], [lookup(), lookup()], [lookup(), lookup()]], 0..8_usize), 1..12),
        known_networks in any::<bool>(),
        others in "(# c\r?\n|127.0.0.1 localhost\n|\n){0,4}",
    ) {
        let names = ["a.n.svc", "b.n.svc", "c.n.svc"];
        let services: BTreeSet<Service> = names.iter().map(|name| Service::read(name).unwrap()).collect();
        let networks: &[&str] = if known_networks { &["10.96.0.0/12", "fd00::/16"] } else { &[] };
        let marker = Marker::new(DEFAULT_MARKER).unwrap();
        let mut file = others.clone().into_bytes();
        let mut model = Model::new();
        for (round, defined) in rounds {
            let mut outcomes = Outcomes::new();
            for (service, lookup) in services.iter().zip(round) {
                for (family, lookup) in FAMILIES.into_iter().zip(lookup) {
                    outcomes.extend(lookup.outcome(family).map(|outcome| ((service.clone(), family), outcome)));
                }
            }
            // One of the names is defined by an unmanaged line, for this round only.
            let foreign = names.get(defined).map(|name| format!("192.0.2.1 {name}\n")).unwrap_or_default();
            let with_foreign = [foreign.as_bytes(), &file].concat();
            let text = Text::new(&with_foreign, &marker);
            let rules = rules(networks);
            let taken = text.defined_by_others(&rules.names_of(&services));
            let made = plan(&services, &rules, &outcomes, &text.entries(), &taken);
            let written = text.with(&made.entries).unwrap_or_else(|| with_foreign.clone());
            prop_assert!(written.starts_with(foreign.as_bytes()));
            file = written[foreign.len()..].to_vec();
            for (service, lookup) in round.into_iter().enumerate() {
                step(&mut model, service, lookup, known_networks, defined == service);
            }
            let mut want: Vec<String> = model
                .iter()
                .flat_map(|((service, _), addresses)| addresses.iter().map(|address| (names[*service], address)))
                .map(|(name, address)| format!("{address} {name} {name}.cluster.local # {DEFAULT_MARKER}"))
                .collect();
            let all = String::from_utf8(file.clone()).unwrap();
            let (ours, theirs): (Vec<&str>, Vec<&str>) =
                all.split_inclusive('\n').partition(|line| line.contains(DEFAULT_MARKER));
            let mut found: Vec<String> = ours.iter().map(|line| line.trim_end().to_owned()).collect();
            want.sort();
            found.sort();
            prop_assert_eq!(found, want);
            prop_assert_eq!(theirs.concat(), others.clone());
        }
    }
}

fn address(family: Family, n: u8) -> String {
    if family == Family::Ipv4 { format!("10.96.0.{}", n + 1) } else { format!("fd00::{}", n + 1) }
}

fn addresses(texts: &[&str]) -> LookupOutcome {
    if texts.is_empty() {
        return LookupOutcome::NoData;
    }
    LookupOutcome::Addresses { addresses: texts.iter().map(|text| text.parse().unwrap()).collect(), ttl: 30 }
}

fn rules(networks: &[&str]) -> Rules {
    let networks = networks.iter().map(|network| network.parse().unwrap()).collect();
    Rules { domain: "cluster.local".into(), networks }
}

fn web() -> Service {
    Service::read("web.t1.svc").unwrap()
}

/// Plans a round with the service `web.t1.svc` only.
fn one(
    networks: &[&str],
    standing: &[&str],
    v4: LookupOutcome,
    v6: LookupOutcome,
    others: &str,
) -> WantedLines {
    let entry = |address: &&str| ManagedLine {
        name: "web.t1.svc".into(),
        domain: "cluster.local".into(),
        address: address.parse::<IpAddr>().unwrap(),
    };
    let standing: Vec<ManagedLine> = standing.iter().map(entry).collect();
    let outcomes = Outcomes::from([((web(), Family::Ipv4), v4), ((web(), Family::Ipv6), v6)]);
    let marker = Marker::new(DEFAULT_MARKER).unwrap();
    let (services, rules) = (BTreeSet::from([web()]), rules(networks));
    let others = Text::new(others.as_bytes(), &marker).defined_by_others(&rules.names_of(&services));
    plan(&services, &rules, &outcomes, &standing, &others)
}

fn of(plan: &WantedLines) -> Vec<String> {
    plan.entries.iter().map(|entry| entry.address.to_string()).collect()
}
