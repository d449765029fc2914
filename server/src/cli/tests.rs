//! Accepted and refused command lines.

use super::*;
use node_run::FailoverClients;

fn invocation(args: &[&str]) -> Result<Invocation, String> {
    parse(args.iter().map(OsString::from), &|_| None)
}

#[test]
fn flags_are_read_as_go_reads_them() {
    for args in [
        &["-conf", "F", "-p", "1053", "-quiet"][..],
        &["--conf=F", "--dns.port=1053", "--quiet"],
        &["-conf=F", "-dns.port", "1053", "-quiet"],
    ] {
        let Ok(Invocation::Serve(flags)) = invocation(args) else {
            panic!("{args:?}: {:?}", invocation(args))
        };
        assert_eq!((flags.conf, flags.dns_port, flags.quiet), (Some("F".into()), 1053, true));
    }
    assert!(
        matches!(invocation(&["--version"]), Ok(Invocation::Print(text)) if text.starts_with("localdns-0."))
    );
    assert!(matches!(invocation(&["-plugins"]), Ok(Invocation::Print(text)) if text.contains("forward\n")));
    assert!(matches!(invocation(&["check", "-conf", "F"]), Ok(Invocation::Check(_))));
    let Ok(Invocation::Explain(_, explain)) =
        invocation(&["explain", "example.org", "AAAA", "@127.0.0.1", "-conf", "F"])
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
        let Ok(Invocation::Serve(flags)) = invocation(args) else {
            panic!("{args:?}: {:?}", invocation(args))
        };
        assert_eq!((flags.quiet, flags.conf), (quiet, conf.map(PathBuf::from)), "{args:?}");
    }
    assert!(matches!(invocation(&["-version=false"]), Ok(Invocation::Serve(_))));
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
        let Ok(Invocation::Serve(flags)) = parse(args.iter().map(OsString::from), &with(value)) else {
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
fn each_flag_of_node_has_a_variable_that_counts_where_the_flag_is_not_typed() {
    let with = |set: &'static [(&'static str, &'static str)], args: &[&str]| {
        let env = move |name: &str| Some(set.iter().find(|(of, _)| *of == name)?.1.to_owned());
        parse(["node"].iter().chain(args).map(OsString::from), &env)
    };
    let all: &[_] = &[
        ("LOCALDNS_NODE_RULES", "node-cache"),
        ("LOCALDNS_NODE_HEALTH_PORT", "8081"),
        ("LOCALDNS_NODE_LEASE", ""),
        ("LOCALDNS_NODE_PROBE_MARK", "7"),
        ("LOCALDNS_NODE_MASQUERADE", "false"),
        ("LOCALDNS_NODE_FAILOVER_CLIENTS", "10.1.0.0/16,fd01::/64"),
        ("LOCALDNS_NODE_FAILOVER_ACL", "closed"),
        ("LOCALDNS_NODE_AT_STOP", "failover"),
        ("LOCALDNS_NODE_UPSTREAMS", "/a"),
        ("LOCALDNS_NODE_HOST_RESOLVER", "none"),
        ("LOCALDNS_NODE_LINK", "dns0"),
        ("LOCALDNS_NODE_CONF", "/b"),
        ("LOCALDNS_NODE_DNS_PORT", "1053"),
        ("LOCALDNS_NODE_PIDFILE", "/c"),
        ("LOCALDNS_NODE_QUIET", "true"),
        ("LOCALDNS_NODE_JSON", "1"),
    ];
    let Ok(Invocation::Node(NodeCommand::Run, flags, settings)) = with(all, &["run"]) else {
        panic!("no run")
    };
    assert_eq!((flags.conf, flags.dns_port), (Some("/b".into()), 1053));
    assert_eq!((flags.pidfile, flags.quiet), (Some("/c".into()), true));
    let rules = RuleSet::Iptables(::node::Iptables::NodeCache(8081));
    assert_eq!((settings.rules, settings.lease, settings.mark), (rules, None, 7));
    assert_eq!((settings.masquerade, settings.link.as_str()), (false, "dns0"));
    assert_eq!(settings.host_resolver, node_run::HostResolver::None);
    let networks = ["10.1.0.0/16", "fd01::/64"].map(|network| network.parse().expect("a network"));
    assert_eq!(settings.failover_clients, FailoverClients::In(networks.into()));
    assert!(settings.acl_fails_closed);
    assert!(matches!(with(all, &["status"]), Ok(Invocation::Node(NodeCommand::Status(true), ..))));
    assert!(matches!(
        with(all, &["status", "-json=false"]),
        Ok(Invocation::Node(NodeCommand::Status(false), ..))
    ));
    assert_eq!(with(all, &["down"]), Ok(Invocation::NodeDown));
    // A typed flag overrides its variable, and a typed -conf also the variable of -environment.
    let Ok(Invocation::Node(_, flags, settings)) = with(all, &["up", "-p", "53", "-link=eth9"]) else {
        panic!("no up")
    };
    assert_eq!((flags.dns_port, settings.link.as_str()), (53, "eth9"));
    let environment: &[_] = &[("LOCALDNS_NODE_ENVIRONMENT", "/e")];
    let Ok(Invocation::Node(_, flags, settings)) = with(environment, &["run", "-conf", "/f"]) else {
        panic!("no run")
    };
    assert_eq!((flags.conf, settings.environment), (Some("/f".into()), None));
    let Ok(Invocation::Node(_, _, settings)) = with(environment, &["run"]) else { panic!("no run") };
    assert_eq!(settings.environment, Some("/e".into()));
    // The systemd unit sets LOCALDNS_NODE_CONF, so LOCALDNS_NODE_ENVIRONMENT has precedence.
    let both: &[_] = &[("LOCALDNS_NODE_CONF", "/b"), ("LOCALDNS_NODE_ENVIRONMENT", "/e")];
    let Ok(Invocation::Node(_, flags, settings)) = with(both, &["run"]) else { panic!("no run") };
    assert_eq!((flags.conf, settings.environment), (None, Some("/e".into())));
    // Only `node run` has a default pidfile.
    for (args, pidfile) in
        [(&["run"][..], Some("/run/localdns.pid".into())), (&["run", "-pidfile", ""], None)]
    {
        let Ok(Invocation::Node(_, flags, _)) = with(&[], args) else { panic!("no run") };
        assert_eq!(flags.pidfile, pidfile, "{args:?}");
    }
    // Without `node`, none of the variables is read.
    let serve = parse([], &|name: &str| name.starts_with("LOCALDNS_NODE_").then(|| "so".to_owned()));
    assert!(matches!(serve, Ok(Invocation::Serve(_))), "{serve:?}");
    for (set, args, expected) in [
        (
            &[("LOCALDNS_NODE_LEASE", "1m")][..],
            &["run"][..],
            "LOCALDNS_NODE_LEASE \"1m\" is not a duration such as 600ms, 200ms to 10s, or off; see localdns node -help",
        ),
        (
            &[],
            &["run", "-link", "a/b"],
            "-link \"a/b\" is not the name of an interface, 1 to 15 characters; see localdns node -help",
        ),
        (
            &[],
            &["up", "-failover-clients", "10.1.0.0/33"],
            "-failover-clients \"10.1.0.0/33\" is not a comma-separated list of networks, such as 10.1.0.0/16,fd01::/64, or all; see localdns node -help",
        ),
        (&[("LOCALDNS_NODE_QUIET", "so")], &["up"], "LOCALDNS_NODE_QUIET"),
    ] {
        match with(set, args) {
            Err(error) => assert_eq!(error, expected),
            // `up` does not have this flag, and does not read its variable.
            Ok(_) => assert_eq!(expected, "LOCALDNS_NODE_QUIET"),
        }
    }
}

#[test]
fn the_help_and_the_page_of_node_name_each_variable() {
    let page = include_str!("../../../docs/node.md");
    let node = node::command();
    let mut variables = 0;
    for sub in ["run", "up", "status"] {
        let Ok(Invocation::Print(help)) = invocation(&["node", sub, "-help"]) else {
            panic!("no help of {sub}")
        };
        for flag in node.find_subcommand(sub).expect("it is there").get_arguments() {
            let variable = node::variable(flag.get_long().expect("each has a name"));
            let words = help.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
            assert!(words.contains(&format!("[env: {variable}]")), "{sub}: {variable}\n{help}");
            assert!(page.contains(&format!("`{variable}`")), "{variable}");
            variables += 1;
        }
    }
    assert!(variables > 30, "{variables}");
}

#[test]
fn explain_takes_type_and_address_in_any_order() {
    for (args, rtype, address, port) in [
        (&["explain", "a"][..], RType::A, None, None),
        (&["explain", "a", "txt"], RType::TXT, None, None),
        (&["explain", "a", "@::1", "TYPE65"], RType::HTTPS, Some("::1"), None),
        (&["explain", "a", "@127.0.0.1:5401"], RType::A, Some("127.0.0.1"), Some(5401)),
        (&["explain", "a", "@[::1]:53"], RType::A, Some("::1"), Some(53)),
        (&["explain", "a", "@[fe80::1%2]:53"], RType::A, Some("fe80::1"), Some(53)),
        (&["explain", "a", "@tls://127.0.0.1:853"], RType::A, Some("127.0.0.1"), Some(853)),
    ] {
        let Ok(Invocation::Explain(_, explain)) = invocation(args) else { panic!("{args:?}") };
        let found = (explain.rtype, explain.address, explain.port);
        assert_eq!(found, (rtype, address.map(|a| a.parse().unwrap()), port));
    }
    for (args, error) in [
        (&["explain", "a..b"][..], "\"a..b\" is not a domain name: "),
        (&["explain", "a", "@host"], "\"host\" after @ is neither an IP address nor IP:PORT"),
        (&["explain", "a", "@127.0.0.1:0"], "\"127.0.0.1:0\" after @ is neither an IP address nor IP:PORT"),
        (&["explain", "a", "AAAAA"], "\"AAAAA\" is not a record type such as AAAA"),
    ] {
        let error_text = invocation(args).unwrap_err();
        assert!(error_text.starts_with(error) && !error_text.contains('\n'), "{error_text}");
    }
}

#[test]
fn the_node_resolver_has_flags_and_variables_of_its_own() {
    let env = |name: &str| (name == "SERVICES").then(|| "a.n.svc".to_owned());
    let args = ["node-resolver", "-once", "--services-file=S", "-interval", "5", "-log-format", "json"];
    let Ok(Invocation::NodeResolver(request)) = parse(args.iter().map(OsString::from), &env) else {
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
        tls_servername: None,
        tls_ca: None,
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
        let error = invocation(args).unwrap_err();
        assert!(!error.contains('\n'), "{error}");
        assert!(error.contains("; see localdns ") && error.ends_with("-help"), "{error}");
    }
}

/// An error quotes the flag as typed, and names the expected value.
#[test]
fn errors_quote_typed_flag() {
    for (args, expected) in [
        (&["-dns.port", "abc"][..], "-dns.port \"abc\" is not a port, 0 to 65535; see localdns -help"),
        (&["-p", "70000"], "-dns.port \"70000\" is not a port, 0 to 65535; see localdns -help"),
        (&["-dns.port"], "-dns.port needs a port, 0 to 65535; see localdns -help"),
        (&["-foo"], "unknown flag -foo; see localdns -help"),
        (&["--foo=x"], "unknown flag --foo; see localdns -help"),
        (&["-cnof", "x"], "unknown flag -cnof; did you mean -conf?; see localdns -help"),
        (&["check", "extra"], "unexpected argument \"extra\"; see localdns check -help"),
        (
            &["explain"],
            "`explain` needs a NAME, such as in `localdns explain example.org AAAA @127.0.0.1`; see localdns explain -help",
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
        assert_eq!(invocation(args).unwrap_err(), expected);
    }
    let Ok(Invocation::Print(help)) = invocation(&["explain", "-help"]) else { panic!("no help") };
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
