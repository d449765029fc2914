//! `localdns node`: its commands and flags, which the environment may set, too.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use ::node::{LINK, LinkName};
use admin::AdminAddress;
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, Command, value_parser};

use super::{Invocation, NodeCommand, flag, flags, served, shared};
use node_run::{Annotation, AtStop, FailoverClients, HostResolver, NodeSettings, RuleSet};

pub(super) fn command() -> Command {
    Command::new("node")
        .about("Serve a node's DNS, and fail over to an upstream while no server is running")
        .subcommand_required(true)
        .args_override_self(true)
        .subcommand(with_names(run()).about(
            "Serve; once every address has answered, add the failover rules and hold leases",
        ))
        .subcommand(with_names(settings(shared(Command::new("up")))).about(
            "Add the Corefile's addresses and the failover rules, which send queries to an upstream while no server is running",
        ))
        .subcommand(Command::new("down").about(
            "Remove the addresses, the rules, the host-resolver setting, and leftovers of AKS's script",
        ))
        .subcommand(Command::new("stopped").about(
            "For ExecStopPost: restore the host's resolver when the unit stops, unless a start follows",
        ))
        .subcommand(annotate())
        .subcommand(
            with_names(settings(shared(Command::new("status"))).arg(flag("json", "Print one JSON object")))
                .about("Show addresses, rules, leases and problems: exit code 0 if there are none, else 1"),
        )
}

fn run() -> Command {
    settings(served(Command::new("run"))).arg(exporter()).mut_arg("pidfile", |arg| arg.default_value(PIDFILE))
}

fn annotate() -> Command {
    Command::new("annotate")
        .about("Set AKS's annotation of this node: whether names are answered from a hosts file")
        .arg(file("kubeconfig", "Kubeconfig with the API's address and credentials").default_value(Annotation::KUBECONFIG))
        .arg(
            Arg::new("node")
                .long("node")
                .value_name("NAME")
                .help("The node's name [default: the machine's, in lower case]"),
        )
        .arg(
            Arg::new("wait")
                .long("wait")
                .value_name("DURATION")
                .default_value("3m")
                .value_parser(|text: &str| corefile::go_values::parse_duration(text).map_err(|error| error.to_string()))
                .help("How long to retry, every 3 s: at boot neither the server nor kubelet's credentials may exist yet"),
        )
}

fn exporter() -> Arg {
    Arg::new("exporter")
        .long("exporter")
        .value_name("ADDRESS:PORT")
        .default_value(":9353")
        .value_parser(exporter_address)
        .help("Address of /metrics with the metrics of production's exporter only; off: none")
}

/// Returns the name of the environment variable of a flag of `node run`, `up` and `status`.
pub(super) fn variable(flag: &str) -> String {
    format!("LOCALDNS_NODE_{}", flag.replace(['-', '.'], "_").to_uppercase())
}

/// Adds the name of its variable to the help of each flag.
fn with_names(command: Command) -> Command {
    command.mut_args(|arg| {
        let Some(flag) = arg.get_long() else { return arg };
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let help = format!("{help} [env: {}]", variable(flag));
        arg.help(help)
    })
}

/// Inserts the flags that environment variables set before the typed flags, since the last of
/// repeated flags counts.
pub(super) fn with_variables(mut args: Vec<OsString>, env: &dyn Fn(&str) -> Option<String>) -> Vec<OsString> {
    let ([first, name, ..], node) = (args.as_slice(), command()) else { return args };
    let Some(sub) = name.to_str().and_then(|name| node.find_subcommand(name)).filter(|_| first == "node")
    else {
        return args;
    };
    let from_environment = |flag: &str| env(&variable(flag)).filter(|value| !value.is_empty());
    // `-conf` and `-environment` exclude each other: either of them typed overrides the variable of
    // the other one. If both variables are set, that of `-environment` wins, since the systemd unit
    // sets that of `-conf`.
    let is_excluded = |flag: &str| match flag {
        "conf" => is_typed(&args, "environment") || from_environment("environment").is_some(),
        "environment" => is_typed(&args, "conf"),
        _ => false,
    };
    let of_environment = sub.get_arguments().filter_map(|arg| {
        let flag = arg.get_long().filter(|flag| !is_excluded(flag))?;
        let value = from_environment(flag)?;
        Some(OsString::from(format!("--{flag}={value}")))
    });
    let of_environment: Vec<_> = of_environment.collect();
    args.splice(2..2, of_environment);
    args
}

/// Whether a flag is on a command line.
pub(super) fn is_typed(words: &[OsString], flag: &str) -> bool {
    let mut names = words.iter().map(|word| word.to_string_lossy());
    names.any(|word| word.starts_with('-') && word.trim_start_matches('-').split('=').next() == Some(flag))
}

pub(super) fn settings(command: Command) -> Command {
    command
        .arg(
            file("upstreams", "resolv.conf of the node's network, read again when it changes: the servers that 168.63.129.16 in the Corefile stands for")
                .default_value(NodeSettings::UPSTREAMS),
        )
        .arg(
            file("environment", "AKS's environment file, which holds the Corefile, in place of -conf")
                .conflicts_with("conf"),
        )
        .arg(
            Arg::new("rules")
                .long("rules")
                .value_name("SET")
                .default_value("nft")
                .value_parser(PossibleValuesParser::new(RuleSet::NAMES))
                .help("Firewall rules: nft, own tables with leases and failover; iptables, AKS's eight rules; node-cache, its twelve rules for each address; or none"),
        )
        .arg(
            Arg::new("health-port")
                .long("health-port")
                .value_name("PORT")
                .default_value("8080")
                .value_parser(value_parser!(u16))
                .help("Port of `health`, which -rules node-cache exempts from conntrack, too"),
        )
        .arg(
            Arg::new("link")
                .long("link")
                .value_name("NAME")
                .default_value(LINK)
                .value_parser(link)
                .help("Interface that the addresses are added to; created if it does not exist, and otherwise left unchanged"),
        )
        .arg(
            Arg::new("host-resolver")
                .long("host-resolver")
                .value_name("METHOD")
                .default_value("networkd")
                .value_parser(PossibleValuesParser::new(HOST_RESOLVERS))
                .help("What sends the host's own lookups to this server: networkd, resolved, resolv.conf, or none"),
        )
        .arg(
            Arg::new("lease")
                .long("lease")
                .value_name("DURATION")
                .default_value("600ms")
                .value_parser(lease)
                .help("Time after which queries fail over from a server that hangs, 200ms to 10s; off: only when its process ends"),
        )
        .arg(
            Arg::new("probe-mark")
                .long("probe-mark")
                .value_name("N")
                .default_value("0x6c646e73")
                .value_parser(mark)
                .help("SO_MARK of the server's own probes; another program's packets must not carry it"),
        )
        .arg(
            flag("masquerade", "Hide pods' addresses from upstreams that are no Service")
                .default_value("true")
                .hide_default_value(false),
        )
        .arg(
            Arg::new("failover-clients")
                .long("failover-clients")
                .value_name("CIDR,...|all")
                .value_parser(failover_clients)
                .help("Clients that fail over while no server is running: those with an address in these networks, or all [default: those on links that are not uplinks]"),
        )
        .arg(
            Arg::new("failover-acl")
                .long("failover-acl")
                .value_name("HOW")
                .default_value("open")
                .value_parser(PossibleValuesParser::new(FAILOVER_ACL))
                .help("An address with `acl` while no server is running: open, its clients fail over; closed, every client is refused"),
        )
        .arg(
            Arg::new("at-stop")
                .long("at-stop")
                .value_name("WHAT")
                .value_parser(PossibleValuesParser::new(AT_STOP))
                .help("What a stop leaves: failover, addresses and rules, so that clients are answered by an upstream; clean, nothing [default: failover with -rules nft, else clean]"),
        )
}

fn file(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name("FILE").value_parser(value_parser!(PathBuf)).help(help)
}

pub(super) fn read(matches: &ArgMatches, env: &dyn Fn(&str) -> Option<String>) -> Result<Invocation, String> {
    let (command, sub) = match matches.subcommand() {
        Some(("run", sub)) => (NodeCommand::Run, sub),
        Some(("up", sub)) => (NodeCommand::Up, sub),
        Some(("status", sub)) => (NodeCommand::Status(sub.get_one("json").copied().unwrap_or(false)), sub),
        Some(("down", _)) => return Ok(Invocation::NodeDown),
        Some(("stopped", _)) => return Ok(Invocation::NodeStopped),
        Some(("annotate", sub)) => return Ok(Invocation::NodeAnnotate(annotation(sub))),
        _ => return Err("`node` needs a command: run, up, down, status, stopped or annotate".to_owned()),
    };
    let mut flags = flags(sub, env)?;
    flags.exporter = sub.try_get_one::<Option<AdminAddress>>("exporter").ok().flatten().copied().flatten();
    Ok(Invocation::Node(command, flags, settings_of(sub)))
}

fn annotation(sub: &ArgMatches) -> Annotation {
    Annotation {
        kubeconfig: sub.get_one("kubeconfig").cloned().unwrap_or_else(|| Annotation::KUBECONFIG.into()),
        node: sub.get_one("node").cloned(),
        wait: sub.get_one("wait").copied().unwrap_or_default(),
    }
}

/// Returns the settings from the flags of [`settings`].
pub(super) fn settings_of(sub: &ArgMatches) -> NodeSettings {
    let text = |name: &str| sub.get_one::<String>(name).map(String::as_str);
    let health = sub.get_one("health-port").copied().unwrap_or(NodeSettings::HEALTH_PORT);
    let rules = text("rules").and_then(|name| RuleSet::named(name, health)).expect("clap takes only these");
    NodeSettings {
        rules,
        clears_rules: true,
        fallback: None,
        adds_addresses: true,
        link: sub.get_one("link").copied().unwrap_or_default(),
        looks_every: NodeSettings::LOOKS_EVERY,
        lease: sub.get_one::<Option<Duration>>("lease").copied().flatten().filter(|_| rules.has_leases()),
        mark: sub.get_one("probe-mark").copied().unwrap_or_default(),
        masquerade: sub.get_one("masquerade").copied().unwrap_or(true),
        failover_clients: sub.get_one("failover-clients").cloned().unwrap_or(FailoverClients::Local),
        acl_fails_closed: text("failover-acl") == Some("closed"),
        at_stop: match text("at-stop") {
            Some("clean") => AtStop::Clean,
            // Without leases, the rules cannot fail clients over. The addresses are then removed,
            // so that clients get an error at once.
            None if !rules.has_leases() => AtStop::Clean,
            _ => AtStop::Failover,
        },
        upstreams: sub.get_one("upstreams").cloned().unwrap_or_else(|| NodeSettings::UPSTREAMS.into()),
        host_resolver: match text("host-resolver") {
            Some("none") => HostResolver::None,
            Some("resolved") => HostResolver::Resolved,
            Some("resolv.conf") => HostResolver::ResolvConf,
            _ => HostResolver::Networkd,
        },
        environment: sub.get_one("environment").cloned(),
    }
}

fn exporter_address(text: &str) -> Result<Option<AdminAddress>, String> {
    match text {
        "off" => Ok(None),
        text => AdminAddress::from_text(text).map(Some).ok_or_else(|| "no address".to_owned()),
    }
}

fn link(text: &str) -> Result<LinkName, String> {
    LinkName::new(text).ok_or_else(|| "no name".to_owned())
}

fn lease(text: &str) -> Result<Option<Duration>, String> {
    if text == "off" {
        return Ok(None);
    }
    let lease = corefile::go_values::parse_duration(text).map_err(|error| error.to_string())?;
    match LEASE_RANGE.contains(&lease) {
        true => Ok(Some(lease)),
        false => Err("out of range".to_owned()),
    }
}

fn failover_clients(text: &str) -> Result<FailoverClients, String> {
    FailoverClients::from_text(text).ok_or_else(|| "no networks".to_owned())
}

fn mark(text: &str) -> Result<u32, String> {
    let number = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    number.ok().filter(|mark| *mark != 0).ok_or_else(|| "no mark".to_owned())
}

/// Values of `-host-resolver`.
pub(super) const HOST_RESOLVERS: [&str; 4] = ["networkd", "resolved", "resolv.conf", "none"];
/// Values of `-failover-acl`.
pub(super) const FAILOVER_ACL: [&str; 2] = ["open", "closed"];
/// Values of `-at-stop`.
pub(super) const AT_STOP: [&str; 2] = ["failover", "clean"];
/// Default of `-pidfile` for `node run`.
const PIDFILE: &str = "/run/localdns.pid";
/// Range of `-lease`.
const LEASE_RANGE: std::ops::RangeInclusive<Duration> = Duration::from_millis(200)..=Duration::from_secs(10);
