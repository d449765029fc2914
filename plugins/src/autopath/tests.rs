use super::*;
use crate::read_corefile::tests::{good, parsed, refused, refused_properties};
use crate::testing::{Others, a, packet, through};
use corefile::Location;
use logging::Format;
use logging::captured_log::CapturedLog;
use plugin::hooks::Hooks;
use plugin::reload_state::ReloadState;

fn name(text: &str) -> Name {
    Name::from_text(text).unwrap()
}

fn spec(source: PathSource) -> AutopathSpec {
    AutopathSpec {
        zones: vec![Name::ROOT],
        source,
        at: Location::file_only("Corefile"),
        ndots: 0,
        noerror: false,
    }
}

#[test]
fn zones_and_search_path_source() {
    let read = |lines: &str| parsed::<AutopathSpec>(lines).unwrap();
    let file = |path: &str| PathSource::File(path.into());
    assert_eq!(read("autopath my-resolv.conf").source, file("my-resolv.conf"));
    assert_eq!(read("autopath my-resolv.conf\nroot /etc").source, file("/etc/my-resolv.conf"));
    assert_eq!(read("autopath @kubernetes").source, PathSource::Plugin("kubernetes"));
    let zones = |lines: &str| read(lines).zones;
    assert_eq!(zones("autopath r"), [Name::ROOT]);
    assert_eq!(
        zones("autopath example.org 10.0.0.0/8 @kubernetes"),
        [name("example.org"), name("10.in-addr.arpa")]
    );
    let both = read("autopath r {\nndots 15\nresponse noerror\n}");
    assert_eq!((both.ndots, both.noerror), (15, true));
    let none = read("autopath r {\nndots 0\nresponse nxdomain\n}");
    assert_eq!((none.ndots, none.noerror), (0, false));
}

#[test]
fn errors_have_their_place() {
    refused(&[
        ("autopath", "2:1: plugin/autopath: `autopath` needs [ZONES...] RESOLV-CONF, or @kubernetes"),
        (
            "autopath @erratic",
            "2:10: plugin/autopath: \"@erratic\" is not a file or @kubernetes, the only directive that provides search paths",
        ),
        ("autopath a..b r", "2:10: the zone `a..b` has an empty label"),
    ]);
    refused_properties(
        "autopath r",
        &[
            ("ndots", "1: plugin/autopath: `ndots` needs a number of dots, 0 to 15"),
            ("ndots 16", "7: plugin/autopath: \"16\" is not a number of dots, 0 to 15"),
            ("ndots -1", "7: plugin/autopath: \"-1\" is not a number of dots, 0 to 15"),
            (
                "ndots 1 2",
                "9: plugin/autopath: unexpected argument \"2\"; `ndots` needs a number of dots, 0 to 15",
            ),
            ("response", "1: plugin/autopath: `response` needs noerror or nxdomain"),
            ("response NOERROR", "10: plugin/autopath: \"NOERROR\" is not noerror or nxdomain"),
            ("dots 1", "1: plugin/autopath: unknown property \"dots\"; did you mean `ndots`?"),
        ],
    );
}

/// Returns the search list of a file with this text, or the error.
fn list(text: &str) -> std::result::Result<Vec<Name>, String> {
    let directory = tempfile::tempdir().unwrap();
    let file = files::ShownPath::from(directory.path().join("resolv.conf"));
    std::fs::write(&file, text).unwrap();
    let place = format!("{}/", directory.path().display());
    let read = spec(PathSource::File(file.clone())).search_list(&file);
    read.map_err(|error| format!("{error:#}").replace(&place, ""))
}

#[test]
fn search_list_bounds() {
    assert_eq!(list("search B.example. example .\n").unwrap(), [name("b.example"), name("example")]);
    for text in ["", "nameserver 192.0.2.53", "search .", "domain"] {
        let error = "Corefile: plugin/autopath: no search list in resolv.conf; expected a line such as `search example.org`";
        assert_eq!(list(text).unwrap_err(), error, "{text:?}");
    }
    assert_eq!(
        list("search a..b").unwrap_err(),
        "Corefile: plugin/autopath: \"a..b\" in the search list of resolv.conf is no domain: a label is empty"
    );
    let long = "Corefile: plugin/autopath: the search list of resolv.conf is too long; expected at most 32 domains and 2048 octets";
    let domains = |count: usize| format!("search {}", vec!["a.example"; count].join(" "));
    assert_eq!(list(&domains(32)).unwrap().len(), 32);
    assert_eq!(list(&domains(33)).unwrap_err(), long);
    // 31 of 66 bytes, each with a blank, and the rest.
    let octets = |last: usize| {
        let each = format!("{}.xx ", "a".repeat(62));
        format!("search {}{}", each.repeat(31), "a".repeat(last))
    };
    assert_eq!(list(&octets(2_048 - 31 * 66 - 1)).unwrap().len(), 32);
    assert_eq!(list(&octets(2_048 - 31 * 66)).unwrap_err(), long);
    let nowhere = spec(PathSource::File("/nowhere/r".into())).search_list(&"/nowhere/r".into());
    assert!(
        format!("{:#}", nowhere.unwrap_err())
            .starts_with("Corefile: plugin/autopath: cannot read /nowhere/r: No such file or directory")
    );
}

/// Builds middleware with this search path for clients at 192.0.2.9 alone.
fn step(properties: &str, domains: &[&str]) -> Autopath {
    #[derive(Debug)]
    struct OfOne(Vec<Name>);
    impl SearchPaths for OfOne {
        fn search_path(&self, _: &Name, client: IpAddr) -> Option<Vec<Name>> {
            (client == IpAddr::from([192, 0, 2, 9])).then(|| self.0.clone())
        }
    }
    let block = good(&format!("autopath @kubernetes {{\n{properties}\n}}"));
    let spec: AutopathSpec = block.get::<AutopathSpec>().unwrap().clone();
    let paths = Paths::OfEach(Arc::new(OfOne(domains.iter().map(|domain| name(domain)).collect())));
    let answered = vec![("dns://:53".to_owned(), Arc::new(PerThread::new(1)))];
    Autopath { spec, paths, answered }
}

/// Builds answers of subqueries: `NAME BYTE` has an address, `NAME nodata` and `NAME fails`; all
/// other names do not exist.
fn others(rows: &[&str]) -> Others {
    let mut others = Others::default();
    for domain in ["t1.svc.c", "svc.c", "c", "host", "."] {
        for base in ["web", "a.b"] {
            let name = name(&format!("{base}.{}", domain.trim_start_matches('.')));
            let response = Message { rcode: Rcode::NXDOMAIN, ..Message::default() };
            others.0.insert((name, RType::A), SubqueryResult::Answer(Box::new(response)));
        }
    }
    for row in rows {
        let (owner, what) = row.split_once(' ').unwrap();
        let mut response = Message::default();
        if let Ok(octet) = what.parse() {
            response.records.push(a(owner, 7, [192, 0, 2, octet]));
        }
        let result = match what {
            "fails" => SubqueryResult::Failed(Failure::Overload),
            "dropped" => SubqueryResult::Failed(Failure::Dropped),
            "refused" => SubqueryResult::Answer(Box::new(Message { rcode: Rcode::REFUSED, ..response })),
            _ => SubqueryResult::Answer(Box::new(response)),
        };
        others.0.insert((name(owner), RType::A), result);
    }
    others
}

const PATH: &[&str] = &["t1.svc.c", "svc.c", "c", "host"];

#[test]
fn first_existing_name_answers() {
    for (properties, client, asked, rows, tried, response) in [
        ("", 9, "web.t1.svc.c", &["web.t1.svc.c 1"][..], 1, "NOERROR web.t1.svc.c. A"),
        (
            "",
            9,
            "web.t1.svc.c",
            &["web.svc.c 1", "web.c 2"],
            2,
            "NOERROR web.t1.svc.c. CNAME web.svc.c., web.svc.c. A",
        ),
        ("", 9, "a.b.t1.svc.c", &["a.b 1"], 5, "NOERROR a.b.t1.svc.c. CNAME a.b., a.b. A"),
        // The first existing name lacks the type; later candidates with the type do not count.
        ("", 9, "web.t1.svc.c", &["web.c nodata", "web 1"], 3, "NOERROR "),
        ("", 9, "web.t1.svc.c", &["web.svc.c refused", "web 1"], 2, "REFUSED "),
        ("", 9, "web.t1.svc.c", &["web.svc.c fails", "web 1"], 2, "Fails"),
        ("", 9, "web.t1.svc.c", &["web.svc.c dropped", "web 1"], 2, "Silence"),
        ("", 9, "web.t1.svc.c", &[], 5, "NXDOMAIN "),
        ("response nxdomain", 9, "web.t1.svc.c", &[], 5, "NXDOMAIN "),
        ("response noerror", 9, "web.t1.svc.c", &[], 5, "NOERROR "),
        // A client without search path.
        ("", 9, "t1.svc.c", &[], 0, "passed"),
        ("", 9, "web.t2.svc.c", &[], 0, "passed"),
        ("", 9, "web", &[], 0, "passed"),
        ("", 8, "web.t1.svc.c", &[], 0, "passed"),
        ("ndots 0", 9, "web.t1.svc.c", &[], 5, "NXDOMAIN "),
        ("ndots 1", 9, "web.t1.svc.c", &["web 1"], 0, "passed"),
        ("ndots 1", 9, "a.b.t1.svc.c", &["a.b 1"], 5, "NOERROR a.b.t1.svc.c. CNAME a.b., a.b. A"),
    ] {
        let step = step(properties, PATH);
        let mut others = others(rows);
        let below = |_: &EffectiveQuery<'_>| Message { rcode: Rcode::NOTAUTH, ..Message::default() };
        let packet = packet(asked, RType::A);
        let (effective, message) = through(&step, &format!("192.0.2.{client}"), &packet, below, &mut others);
        assert_eq!(effective, format!("{asked}. A"));
        let message = message.map_or_else(
            |no_reply| format!("{no_reply:?}"),
            |message| match message.rcode {
                Rcode::NOTAUTH => "passed".to_owned(),
                rcode => {
                    let rr = |rr: &Rr| match rr.rtype {
                        RType::CNAME => format!("{} CNAME {}", rr.name(), rr.target().unwrap()),
                        rtype => format!("{} {rtype}", rr.name()),
                    };
                    assert!(message.records.iter().all(|rr| rr.ttl == 7));
                    format!("{rcode} {}", message.records.iter().map(rr).collect::<Vec<_>>().join(", "))
                }
            },
        );
        assert_eq!((message.as_str(), others.1.len()), (response, tried), "{asked} {rows:?} {properties}");
        let answered = !["Fails", "Silence", "passed"].contains(&response) && !rows.is_empty();
        assert_eq!(step.answered[0].1.get(), u64::from(answered), "{asked} {rows:?}");
    }
}

#[test]
fn first_domain_gets_nodata() {
    let alias = || vec![Rr::new(Section::Answer, &name("t1.svc.c"), RType::CNAME, 7, name("gone").as_wire())];
    for (client, asked, rcode, records, response) in [
        // Names below the search domain exist.
        (9, "t1.svc.c", Rcode::NXDOMAIN, vec![], "NOERROR 0"),
        (9, "T1.svc.C", Rcode::NXDOMAIN, vec![], "NOERROR 0"),
        // The alias exists; its target does not.
        (9, "t1.svc.c", Rcode::NXDOMAIN, alias(), "NXDOMAIN 1"),
        (9, "t1.svc.c", Rcode::NOERROR, vec![a("t1.svc.c", 7, [192, 0, 2, 1])], "NOERROR 1"),
        (9, "t1.svc.c", Rcode::SERVFAIL, vec![], "SERVFAIL 0"),
        (9, "svc.c", Rcode::NXDOMAIN, vec![], "NXDOMAIN 0"),
        (8, "t1.svc.c", Rcode::NXDOMAIN, vec![], "NXDOMAIN 0"),
    ] {
        let (step, packet) = (step("", PATH), packet(asked, RType::A));
        let below = move |_: &EffectiveQuery<'_>| Message { rcode, records, ..Message::default() };
        let mut others = Others::default();
        let (_, message) = through(&step, &format!("192.0.2.{client}"), &packet, below, &mut others);
        let message = message.expect("it is answered");
        assert_eq!(format!("{} {}", message.rcode, message.records.len()), response, "{asked} {rcode}");
        // No candidate was tried or counted.
        assert_eq!((others.1.len(), step.answered[0].1.get()), (0, 0), "{asked}");
    }
}

#[test]
fn overlong_names_are_skipped() {
    let label = "l".repeat(63);
    let long = format!("{label}.{label}.{label}");
    let step = step("", &["c", &format!("{}.example", "d".repeat(60)), "host"]);
    let packet = packet(&format!("{long}.c"), RType::A);
    let mut others = Others::default();
    let nowhere =
        || SubqueryResult::Answer(Box::new(Message { rcode: Rcode::NXDOMAIN, ..Message::default() }));
    for domain in [".c", ".host", ""] {
        others.0.insert((name(&format!("{long}{domain}")), RType::A), nowhere());
    }
    let (_, response) = through(&step, "192.0.2.9", &packet, |_| Message::default(), &mut others);
    assert_eq!(response.unwrap().rcode, Rcode::NXDOMAIN);
    assert_eq!(others.1.len(), 3, "{:?}", others.1);
}

#[test]
fn requests_for_zones_pass() {
    let step = step("", PATH);
    let mut notify = packet("web.t1.svc.c", RType::SOA);
    notify[2] = 4 << 3;
    for (what, packet, passes) in [
        ("AXFR", packet("web.t1.svc.c", RType::AXFR), true),
        ("IXFR", packet("web.t1.svc.c", RType::IXFR), true),
        ("SOA", packet("web.t1.svc.c", RType::SOA), false),
    ] {
        let passed = |packet: &[u8]| {
            let (wire::Verdict::Pass(query) | wire::Verdict::Zone(wire::ZoneRequest { query, .. })) =
                wire::accept(packet)
            else {
                panic!("refused")
            };
            let client = std::net::SocketAddr::from(([192, 0, 2, 9], 4321)).into();
            let server = "127.0.0.1:53".parse().unwrap();
            let context = QueryContext::new(clock::now(), &client, server, wire::Proto::Udp, 0);
            let mut effective = EffectiveQuery::new(&query, "dns://:53", true);
            matches!(step.on_query(&mut effective, &context), OnQuery::Pass)
        };
        assert_eq!(passed(&packet), passes, "{what}");
        if what == "SOA" {
            assert!(passed(&notify), "NOTIFY");
        }
    }
}

#[test]
fn search_path_source_is_required() {
    let lasting = ReloadState::default();
    let context = BuildContext {
        reload_state: &lasting,
        extensions: &plugin::extensions::Extensions::default(),
        logger: &CapturedLog::logger(Format::Text).0,
        endpoints: &[],
        servers: &[],
        zones: &[],
        plugins: &[],
        last_handler: None,
        threads: 1,
        hooks: Hooks::default(),
    };
    let error = spec(PathSource::Plugin("kubernetes")).build(&context).unwrap_err();
    assert_eq!(
        format!("{error:#}"),
        "Corefile: plugin/autopath: `@kubernetes` needs the directive `kubernetes` in this server block; add it, or name a file"
    );
}
