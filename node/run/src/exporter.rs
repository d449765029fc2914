//! Computes the metrics of AKS's exporter, with the exporter's names and help texts.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use admin::Process;
use metrics::{Families, Form, names};
use wire::Name;

use configuration::Configuration;

/// Returns the metrics in Prometheus's text format.
pub fn page(configuration: &Configuration) -> Vec<u8> {
    let mut families = Families::default();
    collect(configuration, &mut families);
    Form::Text.encode(&families.into_messages())
}

/// Adds the six metric families.
pub fn collect(configuration: &Configuration, into: &mut Families) {
    into.gauge(names::SERVICE_STATUS, &[("status", "active")], 1.0);
    let group = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let [memory, cpu] = of_group(&group, Path::new("/sys/fs/cgroup")).unwrap_or_else(Process::memory_and_cpu);
    if let Some(memory) = memory {
        into.gauge(names::MEMORY_USAGE, &[], memory);
    }
    if let Some(cpu) = cpu {
        into.counter(names::CPU_USAGE, &[], cpu);
    }
    into.gauge(names::LAST_UPDATE, &[], (clock::wall_ms() / 1000) as f64);
    for (metric, listener) in [(names::VNETDNS_FORWARD, 10), (names::KUBEDNS_FORWARD, 11)] {
        let rows = forwards(configuration, Ipv4Addr::new(169, 254, 10, listener).into());
        for (ip, block) in &rows {
            into.gauge(metric, &[("ip", ip), ("block", block), ("status", "ok")], 1.0);
        }
        if rows.is_empty() {
            into.gauge(metric, &[("ip", "unknown"), ("block", "none"), ("status", "missing")], 0.0);
        }
    }
}

/// Returns the memory in bytes and the CPU time in seconds of the service's control group, if
/// systemd created one.
fn of_group(group: &str, root: &Path) -> Option<[Option<f64>; 2]> {
    let path = group.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let (before, _) = path.split_once(".service")?;
    let directory = root.join(format!("{before}.service"));
    let read = |name: &str| std::fs::read_to_string(directory.join(name)).ok();
    let memory: f64 = read("memory.current")?.trim().parse().ok()?;
    let stat = read("cpu.stat")?;
    let micros: f64 = stat.lines().find_map(|line| line.strip_prefix("usage_usec "))?.trim().parse().ok()?;
    Some([Some(memory), Some(micros / 1e6)])
}

/// Returns the IPv4 addresses to which the zones of a listen address forward all names, each with
/// the zone and port.
fn forwards(configuration: &Configuration, listener: IpAddr) -> Vec<(String, String)> {
    let mut rows = Vec::new();
    for endpoint in configuration.endpoints.keys().filter(|at| at.address.ip() == listener) {
        let label = endpoint.label();
        for zone in configuration.zones.iter().filter(|zone| zone.server == label) {
            let chain = zone.block.pipeline.forwarding().map(|forwarding| &forwarding.chain);
            let groups = chain.into_iter().flat_map(|chain| chain.stanzas());
            for group in groups.filter(|group| group.spec().from == Name::ROOT) {
                let v4 = |upstream: &std::sync::Arc<forwarder::Upstream>| match upstream.address().ip() {
                    IpAddr::V4(ip) => Some(ip.to_string()),
                    IpAddr::V6(_) => None,
                };
                let name = zone.zone.to_string();
                let name = if zone.zone == Name::ROOT { "." } else { name.trim_end_matches('.') };
                let block = format!("{name}:{}", endpoint.address.port());
                rows.extend(group.upstreams().iter().filter_map(v4).map(|ip| (ip, block.clone())));
            }
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_the_control_group() {
        let root = tempfile::tempdir().expect("a directory");
        let group = root.path().join("localdns.slice/localdns.service");
        std::fs::create_dir_all(&group).expect("made");
        let figures = |group: &str| of_group(group, root.path());
        assert_eq!(figures("0::/localdns.slice/localdns.service\n"), None, "no controller");
        std::fs::write(group.join("memory.current"), "1048576\n").expect("written");
        std::fs::write(group.join("cpu.stat"), "usage_usec 2500000\nuser_usec 1\n").expect("written");
        let expected = Some([Some(1_048_576.0), Some(2.5)]);
        assert_eq!(figures("0::/localdns.slice/localdns.service\n"), expected);
        assert_eq!(figures("1:name=x:/\n0::/localdns.slice/localdns.service/main\n"), expected);
        for none in ["0::/\n", "", "0::/user.slice/session-1.scope\n", "0::/other.service\n"] {
            assert_eq!(figures(none), None, "{none}");
        }
    }
}
