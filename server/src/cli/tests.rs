//! What words mean, and which are refused.

use super::*;

fn wish(args: &[&str]) -> Result<Wish, String> {
    parse(args.iter().map(OsString::from), &|_| None)
}

#[test]
fn flags_are_read_as_go_reads_them() {
    for args in [
        &["-conf", "F", "-p", "1053", "-quiet"][..],
        &["--conf=F", "--dns.port=1053", "--quiet"],
        &["-conf=F", "-dns.port", "1053", "-quiet"],
    ] {
        let Ok(Wish::Serve(flags)) = wish(args) else { panic!("{args:?}: {:?}", wish(args)) };
        assert_eq!((flags.conf, flags.dns_port, flags.quiet), (Some("F".into()), 1053, true));
    }
    assert!(matches!(wish(&["--version"]), Ok(Wish::Print(text)) if text.starts_with("localdns-0.")));
    assert!(matches!(wish(&["-plugins"]), Ok(Wish::Print(text)) if text.contains("forward\n")));
    assert!(matches!(wish(&["check", "-conf", "F"]), Ok(Wish::Check(_))));
    let Ok(Wish::Explain(_, explain)) = wish(&["explain", "example.org", "AAAA", "@127.0.0.1", "-conf", "F"])
    else {
        panic!("no explain")
    };
    assert_eq!((explain.rtype, explain.address), (RType::AAAA, Some("127.0.0.1".parse().unwrap())));
}

#[test]
fn truth_values_and_repetitions_are_read_as_go_reads_them() {
    for (args, quiet, conf) in [
        (&["-quiet"][..], true, None),
        (&["-quiet=true"], true, None),
        (&["--quiet=1"], true, None),
        (&["-quiet=T"], true, None),
        (&["-quiet=false"], false, None),
        (&["-quiet=0"], false, None),
        (&["-quiet", "-quiet=false"], false, None),
        (&["-conf", "A", "-conf=B"], false, Some("B")),
        (&["-quiet", "-conf", "A"], true, Some("A")),
        (&[], false, None),
    ] {
        let Ok(Wish::Serve(flags)) = wish(args) else { panic!("{args:?}: {:?}", wish(args)) };
        assert_eq!((flags.quiet, flags.conf), (quiet, conf.map(PathBuf::from)), "{args:?}");
    }
    assert!(matches!(wish(&["-version=false"]), Ok(Wish::Serve(_))));
}

#[test]
fn the_environment_stands_in_for_a_flag_that_is_not_given() {
    let with =
        |value: &'static str| move |name: &str| (name == "LOCALDNS_CACHE_BYTES").then(|| value.to_owned());
    for (args, value, bytes) in [
        (&[][..], "", cache::Cache::DEFAULT_BYTES),
        (&[], "1048576", 1 << 20),
        (&["-cache-bytes", "2097152"], "1048576", 2 << 20),
    ] {
        let Ok(Wish::Serve(flags)) = parse(args.iter().map(OsString::from), &with(value)) else {
            panic!("{args:?}")
        };
        assert_eq!(flags.cache_bytes, bytes, "{args:?} {value:?}");
    }
    assert_eq!(
        parse([], &with("64M")),
        Err("LOCALDNS_CACHE_BYTES=\"64M\" is not a number of bytes, 1048576 to 4294967296".to_owned())
    );
    for bytes in ["1048575", "4294967297", "0"] {
        let error = parse([], &with(bytes)).unwrap_err();
        assert!(error.ends_with("1048576 to 4294967296"), "{error}");
        let error = parse([format!("-cache-bytes={bytes}").into()], &|_| None).unwrap_err();
        assert!(error.contains("1048576") && !error.contains('\n'), "{error}");
    }
}

#[test]
fn explain_takes_type_and_address_in_any_order() {
    for (args, rtype, address) in [
        (&["explain", "a"][..], RType::A, None),
        (&["explain", "a", "txt"], RType::TXT, None),
        (&["explain", "a", "@::1", "TYPE65"], RType::HTTPS, Some("::1")),
    ] {
        let Ok(Wish::Explain(_, explain)) = wish(args) else { panic!("{args:?}") };
        assert_eq!((explain.rtype, explain.address), (rtype, address.map(|a| a.parse().unwrap())));
    }
    for (args, error) in [
        (&["explain", "a..b"][..], "\"a..b\" is not a domain name: "),
        (&["explain", "a", "@host"], "\"host\" behind @ is not an IP address"),
        (&["explain", "a", "AAAAA"], "\"AAAAA\" is not a record type such as AAAA"),
    ] {
        let told = wish(args).unwrap_err();
        assert!(told.starts_with(error) && !told.contains('\n'), "{told}");
    }
}

#[test]
fn the_node_resolver_has_flags_and_variables_of_its_own() {
    let env = |name: &str| (name == "SERVICES").then(|| "a.n.svc".to_owned());
    let args = ["node-resolver", "-once", "--services-file=S", "-interval", "5", "-log-format", "json"];
    let Ok(Wish::NodeResolver(request)) = parse(args.iter().map(OsString::from), &env) else {
        panic!("no node-resolver")
    };
    let want = Request {
        once: true,
        remove: false,
        hosts_file: "/etc/hosts".into(),
        services_file: Some("S".into()),
        marker: "openshift-generated-node-resolver".to_owned(),
        interval_seconds: 5,
        metrics: None,
        json: true,
        services: Some("a.n.svc".to_owned()),
        nameserver: None,
        cluster_domain: None,
        service_cidrs: None,
    };
    assert_eq!(*request, want);
}

#[test]
fn what_cannot_be_read_is_one_line() {
    for args in [
        &["-bogus"][..],
        &["extra"],
        &["-p", "x"],
        &["-p", "65536"],
        &["-conf"],
        &["-quiet=maybe"],
        &["-log-format", "xml"],
        &["-cache-bytes", "64M"],
        &["check", "-pidfile", "F"],
        &["explain"],
        &["node-resolver", "-interval", "0"],
        &["node-resolver", "-conf", "F"],
        &["node-resolver", "a.n.svc"],
    ] {
        let error = wish(args).unwrap_err();
        assert!(!error.contains('\n'), "{error}");
        assert!(error.contains("; see localdns ") && error.ends_with("-help"), "{error}");
    }
}

#[test]
fn what_is_wrong_is_told_as_it_was_typed_with_what_is_wanted() {
    for (args, told) in [
        (&["-dns.port", "abc"][..], "-dns.port \"abc\" is not a port, 0 to 65535; see localdns -help"),
        (&["-p", "70000"], "-dns.port \"70000\" is not a port, 0 to 65535; see localdns -help"),
        (&["-dns.port"], "-dns.port wants a port, 0 to 65535 behind it; see localdns -help"),
        (&["-foo"], "unknown flag -foo; see localdns -help"),
        (&["--foo=x"], "unknown flag --foo; see localdns -help"),
        (&["-cnof", "x"], "unknown flag -cnof; did you mean -conf?; see localdns -help"),
        (&["check", "extra"], "unexpected argument \"extra\"; see localdns check -help"),
        (
            &["explain"],
            "`explain` wants a NAME, such as in `localdns explain example.org AAAA @127.0.0.1`; see localdns explain -help",
        ),
        (&["explain", "a", "A", "@::1", "x"], "unexpected argument \"x\"; see localdns explain -help"),
        (&["-log-format", "xml"], "-log-format \"xml\" is not text or json; see localdns -help"),
        (&["-quiet=maybe"], "-quiet \"maybe\" is not true or false; see localdns -help"),
        (
            &["bogus"],
            "unknown command \"bogus\"; there are check, explain, node, node-cache, node-resolver, refresh, status; see localdns -help",
        ),
        (
            &["node-resolver", "-interval", "0"],
            "-interval \"0\" is not a number of seconds, 1 to 3600; see localdns node-resolver -help",
        ),
    ] {
        assert_eq!(wish(args).unwrap_err(), told);
    }
    let Ok(Wish::Print(help)) = wish(&["explain", "-help"]) else { panic!("no help") };
    assert!(help.contains("Usage: localdns explain [OPTIONS] <NAME> "), "{help}");
    assert!(
        help.lines()
            .filter(|line| line.starts_with("  [") || line.starts_with("  <"))
            .all(|line| line.split("  ").count() > 2),
        "{help}"
    );
}

#[test]
fn json_is_known_of_a_command_line_that_cannot_be_read() {
    for (args, json) in [
        (&["-log-format", "json", "-bogus"][..], true),
        (&["--log-format=json"], true),
        (&["-log-format", "text"], false),
        (&["-bogus", "json"], false),
    ] {
        assert_eq!(wants_json(&args.iter().map(OsString::from).collect::<Vec<_>>()), json, "{args:?}");
    }
}
