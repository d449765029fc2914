//! `localdns node-cache`: the command line of NodeLocal DNSCache's node-cache, for `node run` with a template.

use std::net::IpAddr;
use std::path::PathBuf;

use admin::AdminAddress;
use clap::{Arg, ArgMatches, Command, value_parser};

use super::{NodeCommand, Wish, flag, flags, node, plugins, served, version};
use crate::node_cache::Template;
use crate::node_run::{AtStop, RuleSet};

pub(super) fn command() -> Command {
    let command = node::settings(served(Command::new("node-cache")));
    command
        .about("Serve as NodeLocal DNSCache's node-cache does, from its template and by its flags, and go dark less")
        .disable_version_flag(true)
        .args_override_self(true)
        .mut_arg("host-resolver", |arg| arg.default_value("none"))
        .mut_arg("link", |arg| {
            arg.alias("interfacename").default_value("nodelocaldns").help(
                "Link that -setupinterface adds the addresses to; also -interfacename, as node-cache calls it",
            )
        })
        .mut_arg("conf", |arg| arg.help("Where the filled Corefile is written, for those who look"))
        .arg(
            Arg::new("localip")
                .long("localip")
                .value_name("IP,...")
                .value_delimiter(',')
                .value_parser(value_parser!(IpAddr))
                .help("Addresses to serve at, of either family"),
        )
        .arg(yes("setupinterface", "Add these addresses to a link of our own"))
        .arg(yes("setupiptables", "Change the firewall as -rules says; false means -rules none"))
        .arg(flag("skipteardown", "Leave addresses and rules at a stop"))
        .arg(flag("reloadwithsignal", "Taken and not needed: `reload` sees what changes"))
        .arg(
            text("syncinterval", "SECONDS", "Taken: rules are looked at every 2 s or more often")
                .default_value("60")
                .value_parser(interval),
        )
        .arg(
            text("metrics-listen-address", "ADDRESS:PORT", "Where /metrics is besides the Corefile's `prometheus`")
                .default_value("0.0.0.0:9353")
                .value_parser(address),
        )
        .arg(
            text("prometheus-listen-address", "ADDRESS:PORT", "What __PROMETHEUS__ENDPOINT__ stands for")
                .default_value(":9253"),
        )
        .arg(path("basecorefile", "Template of the Corefile").default_value("/etc/coredns/Corefile.base"))
        .arg(path("corefile", "Taken and not used, as by node-cache: -conf counts"))
        .arg(path("kubednscm", "Directory of kube-dns's ConfigMap [default: /etc/kube-dns, if it is there]"))
        .arg(
            text("upstreamsvc", "SERVICE", "Service whose address __PILLAR__CLUSTER__DNS__ stands for, and who answers while we do not")
                .default_value("kube-dns"),
        )
        .arg(flag("version", "Print the version and end"))
        .arg(flag("plugins", "Print the directives that are served and end"))
}

pub(super) fn read(sub: &ArgMatches, env: &dyn Fn(&str) -> Option<String>) -> Result<Wish, String> {
    let is = |name: &str| sub.get_one::<bool>(name) == Some(&true);
    if is("version") {
        return Ok(Wish::Print(version()));
    }
    if is("plugins") {
        return Ok(Wish::Print(plugins()));
    }
    let text = |name: &str| sub.get_one::<String>(name).cloned().unwrap_or_default();
    let path = |name: &str| sub.get_one::<PathBuf>(name).filter(|path| !path.as_os_str().is_empty()).cloned();
    let local_ips: Vec<IpAddr> = sub.get_many("localip").into_iter().flatten().copied().collect();
    if local_ips.is_empty() {
        return Err("`node-cache` wants -localip, such as -localip 169.254.20.10,10.96.0.10".to_owned());
    }
    let mut flags = flags(sub, env)?;
    let variable = Template::variable_of(&text("upstreamsvc"));
    let template = Template {
        base: path("basecorefile").unwrap_or_default(),
        kube_dns: path("kubednscm"),
        local_ips,
        cluster_dns: env(&variable).and_then(|text| text.parse().ok()),
        cluster_dns_variable: variable,
        port: flags.dns_port,
        prometheus: text("prometheus-listen-address"),
        written: flags.conf.take(),
    };
    let mut settings = node::settings_of(sub);
    settings.way_out = template.cluster_dns;
    if !is("setupiptables") {
        settings.rules = RuleSet::None;
        settings.lease = None;
        settings.at_stop = AtStop::Clean;
    }
    if is("skipteardown") {
        settings.at_stop = AtStop::WayOut;
    }
    settings.adds_addresses = is("setupinterface");
    flags.template = Some(template);
    flags.more_metrics = sub.get_one::<AdminAddress>("metrics-listen-address").copied();
    Ok(Wish::Node(NodeCommand::Run, flags, settings))
}

fn yes(name: &'static str, help: &'static str) -> Arg {
    flag(name, help).default_value("true").hide_default_value(false)
}

fn text(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).help(help)
}

fn path(name: &'static str, help: &'static str) -> Arg {
    text(name, "PATH", help).value_parser(value_parser!(PathBuf))
}

/// A number of seconds or a duration; node-cache multiplies the latter by a second.
fn interval(text: &str) -> Result<String, String> {
    let seconds = text.parse::<u32>().is_ok_and(|seconds| seconds > 0);
    let duration = corefile::go::parse_duration(text).is_ok_and(|duration| !duration.is_zero());
    (seconds || duration).then(|| text.to_owned()).ok_or_else(|| "no interval".to_owned())
}

fn address(text: &str) -> Result<AdminAddress, String> {
    AdminAddress::from_text(text).ok_or_else(|| "no address".to_owned())
}
