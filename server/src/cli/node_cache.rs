//! `localdns node-cache`: the command line of NodeLocal DNSCache's node-cache, for `node run` with a template.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use admin::AdminAddress;
use clap::{Arg, ArgMatches, Command, value_parser};

use super::{Invocation, NodeCommand, flag, flags, node, plugins, served, version};
use node_cache::Template;
use node_run::{AtStop, RuleSet, is_of_one_link};

pub(super) fn command() -> Command {
    let command = node::settings(served(Command::new("node-cache")));
    command
        .about("Serve as NodeLocal DNSCache's node-cache does, with its template and flags, and fail over")
        .disable_version_flag(true)
        .args_override_self(true)
        .mut_arg("host-resolver", |arg| arg.default_value("none"))
        .mut_arg("link", |arg| {
            arg.alias("interfacename").default_value("nodelocaldns").help(
                "Link that -setupinterface adds the addresses to; also -interfacename, as node-cache calls it",
            )
        })
        .mut_arg("conf", |arg| arg.help("File to write the filled Corefile to, for inspection"))
        .arg(
            Arg::new("localip")
                .long("localip")
                .value_name("IP,...")
                .value_delimiter(',')
                .value_parser(local_ip)
                .help("Addresses to serve at, of either family"),
        )
        .arg(yes("setupinterface", "Add these addresses to a link of localdns"))
        .arg(yes("setupiptables", "Change the firewall as -rules says; false means -rules none"))
        .arg(flag("skipteardown", "Leave addresses and rules at a stop"))
        .arg(flag(
            "reloadwithsignal",
            "Reload when the template or ConfigMap changes, even without `reload` in the template",
        ))
        .arg(
            text("syncinterval", "SECONDS", "How often iptables rules are checked and restored, at least 1 s; nft rules are checked several times a second [default: 2]")
                .value_parser(interval),
        )
        .arg(
            text("metrics-listen-address", "ADDRESS:PORT", "Address of /metrics besides the Corefile's `prometheus`")
                .default_value("0.0.0.0:9353")
                .value_parser(address),
        )
        .arg(
            text("prometheus-listen-address", "ADDRESS:PORT", "What __PROMETHEUS__ENDPOINT__ stands for")
                .default_value(":9253"),
        )
        .arg(path("basecorefile", "Template of the Corefile").default_value("/etc/coredns/Corefile.base"))
        .arg(path("corefile", "Accepted and ignored, as by node-cache; see -conf"))
        .arg(path("kubednscm", "Directory of kube-dns's ConfigMap [default: /etc/kube-dns, if it is there]"))
        .arg(
            text("upstreamsvc", "SERVICE", "Service whose address __PILLAR__CLUSTER__DNS__ stands for; also the fallback")
                .default_value("kube-dns"),
        )
        .arg(flag("version", "Print the version, and exit"))
        .arg(flag("plugins", "Print the supported directives, and exit"))
}

pub(super) fn read(sub: &ArgMatches, env: &dyn Fn(&str) -> Option<String>) -> Result<Invocation, String> {
    let is = |name: &str| sub.get_one::<bool>(name) == Some(&true);
    if is("version") {
        return Ok(Invocation::Print(version()));
    }
    if is("plugins") {
        return Ok(Invocation::Print(plugins()));
    }
    let text = |name: &str| sub.get_one::<String>(name).cloned().unwrap_or_default();
    let path = |name: &str| sub.get_one::<PathBuf>(name).filter(|path| !path.as_os_str().is_empty()).cloned();
    let local_ips: Vec<IpAddr> = sub.get_many("localip").into_iter().flatten().copied().collect();
    if local_ips.is_empty() {
        return Err("`node-cache` needs -localip, such as -localip 169.254.20.10,10.96.0.10".to_owned());
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
    settings.fallback = template.cluster_dns;
    if !is("setupiptables") {
        settings.rules = RuleSet::None;
        settings.clears_rules = false;
        settings.lease = None;
        settings.at_stop = AtStop::Clean;
    }
    if is("skipteardown") {
        settings.at_stop = AtStop::Failover;
    }
    settings.adds_addresses = is("setupinterface");
    settings.looks_every = sub.get_one("syncinterval").copied().unwrap_or(settings.looks_every);
    flags.reloads_by_itself = is("reloadwithsignal");
    flags.template = Some(template);
    flags.more_metrics = sub.get_one::<AdminAddress>("metrics-listen-address").copied();
    Ok(Invocation::Node(NodeCommand::Run, flags, settings))
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

/// Parses a number of seconds or a duration. node-cache multiplies a duration by one second, so
/// that `30ns` means 30 s there; a duration below a microsecond is multiplied here, too.
fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<u32>().ok().map(|seconds| Duration::from_secs(seconds.into()));
    let interval =
        seconds.or_else(|| corefile::go_values::parse_duration(text).ok()).filter(|one| !one.is_zero());
    let interval = interval.ok_or_else(|| "no interval".to_owned())?;
    Ok(match interval < Duration::from_micros(1) {
        true => Duration::from_secs(interval.as_nanos() as u64),
        false => interval.max(Duration::from_secs(1)),
    })
}

/// Parses an address that a pod can have in its resolv.conf.
fn local_ip(text: &str) -> Result<IpAddr, String> {
    let ip = text.parse().ok().filter(|ip: &IpAddr| {
        !(ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() || is_of_one_link(*ip))
    });
    ip.ok_or_else(|| "no address to serve at".to_owned())
}

fn address(text: &str) -> Result<AdminAddress, String> {
    AdminAddress::from_text(text).ok_or_else(|| "no address".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_units() {
        for (text, seconds) in [
            ("60", Some(60)),
            ("1", Some(1)),
            ("60s", Some(60)),
            ("1m30s", Some(90)),
            ("30ns", Some(30)),
            ("10ms", Some(1)),
            ("0", None),
            ("0s", None),
            ("-1", None),
            ("soon", None),
        ] {
            assert_eq!(interval(text).ok(), seconds.map(Duration::from_secs), "{text}");
        }
    }
}
