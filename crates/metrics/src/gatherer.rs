//! Gathers all metrics for a page of /metrics.

use std::sync::Arc;

use prometheus::Registry;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;

use super::families::{Families, MetricSource};
use super::names;

/// The sources of metrics, registered for the life of the process.
#[derive(Debug)]
pub struct Gatherer {
    classic: Registry,
    /// With native histograms, too. A registry of its own, since a registry has one collector without descriptors.
    native: Registry,
}

impl Gatherer {
    /// Of these sources.
    pub fn new<const N: usize>(sources: [Arc<dyn MetricSource>; N]) -> Self {
        let sources: Arc<[_]> = sources.into();
        let registry = |native| {
            let registry = Registry::new();
            let registered = registry.register(Box::new(Sources { sources: Arc::clone(&sources), native }));
            registered.expect("the registry is empty");
            registry
        };
        Self { classic: registry(false), native: registry(true) }
    }

    /// All metrics now: families by name, with their samples by number of labels and then by values; `native`: with native
    /// histograms.
    pub fn gather(&self, native: bool) -> Vec<MetricFamily> {
        if native { self.native.gather() } else { self.classic.gather() }
    }
}

/// All sources as one collector, since several may have samples of one family.
struct Sources {
    sources: Arc<[Arc<dyn MetricSource>]>,
    native: bool,
}

impl Collector for Sources {
    /// None: which families there are is known when they are collected.
    fn desc(&self) -> Vec<&Desc> {
        Vec::new()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut families = Families::new(self.native);
        for source in self.sources.iter() {
            source.collect(&mut families);
        }
        families.into_messages()
    }
}

/// The labels of `coredns_build_info`.
#[derive(Debug, Clone, Copy)]
pub struct Build {
    /// Such as `0.1.0`.
    pub version: &'static str,
    /// The commit, or empty.
    pub revision: &'static str,
    /// The compiler: what CoreDNS calls `goversion`.
    pub compiler: &'static str,
}

impl MetricSource for Build {
    fn collect(&self, into: &mut Families) {
        let Self { version, revision, compiler } = *self;
        let labels = [("version", version), ("revision", revision), ("goversion", compiler)];
        into.gauge(names::BUILD_INFO, &labels, 1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Form;
    use crate::counters::{Counted, ZoneLabels, ZoneRegistry};
    use crate::families::{Distribution, Metric};
    use crate::histogram::NativeCounts;
    use wire::{Proto, RType, Rcode};

    const BUILD: Build = Build { version: "0.1.0", revision: "", compiler: "rustc 1.95" };

    fn text<const N: usize>(sources: [Arc<dyn MetricSource>; N]) -> String {
        String::from_utf8(Form::Text.encode(&Gatherer::new(sources).gather(false))).unwrap()
    }

    fn samples<'t>(text: &'t str, prefix: &str) -> Vec<&'t str> {
        text.lines().filter(|line| line.starts_with(prefix)).collect()
    }

    fn query() -> Counted {
        Counted {
            proto: Proto::Udp,
            ipv6: false,
            rtype: RType::A,
            dnssec_ok: false,
            rcode: Rcode::NOERROR,
            failed: false,
            nanos: 300_000,
        }
    }

    #[test]
    fn unused_server() {
        let printed = text([Arc::new(BUILD), Arc::<ZoneRegistry>::default()]);
        let line = "coredns_build_info{goversion=\"rustc 1.95\",revision=\"\",version=\"0.1.0\"} 1";
        assert_eq!(samples(&printed, "coredns_"), [line]);
    }

    #[test]
    fn queries_are_summed_over_threads() {
        let zones = Arc::new(ZoneRegistry::default());
        let labels = ZoneLabels {
            view: String::new(),
            server: "dns://127.0.0.1:53".into(),
            zone: "example.org.".into(),
            cache_zones: "example.org.".into(),
            plugin: "errors",
            queries: true,
        };
        let set = zones.zone(&labels, 2);
        let sizes = |request, response| [[request, response]].into_iter();
        set[0].count(&query(), sizes(40, 60), false);
        set[1].count(&query(), sizes(40, 60), true);
        set[1].count(
            &Counted {
                proto: Proto::Tcp,
                ipv6: true,
                rtype: RType(65_280),
                dnssec_ok: true,
                rcode: Rcode::NXDOMAIN,
                failed: true,
                nanos: 9_000_000_000,
            },
            sizes(40, 65_000),
            true,
        );
        set[0].cache_requests.add(3);
        set[0].cache_hits[1].add(2);
        set[1].hosts_hits.add(1);
        let text = text([zones]);
        let zone = "server=\"dns://127.0.0.1:53\",view=\"\",zone=\"example.org.\"";
        let requests = |family, proto, rtype, count| {
            format!(
                "coredns_dns_requests_total{{family=\"{family}\",proto=\"{proto}\",server=\"dns://127.0.0.1:53\",\
                 type=\"{rtype}\",view=\"\",zone=\"example.org.\"}} {count}"
            )
        };
        for line in [
            requests("1", "udp", "A", 2),
            requests("2", "tcp", "other", 1),
            format!("coredns_dns_responses_total{{plugin=\"errors\",rcode=\"NOERROR\",{zone}}} 2"),
            format!("coredns_dns_responses_total{{plugin=\"\",rcode=\"NXDOMAIN\",{zone}}} 1"),
            format!("coredns_dns_do_requests_total{{{zone}}} 1"),
            format!("coredns_dns_request_duration_seconds_bucket{{{zone},le=\"0.00025\"}} 0"),
            format!("coredns_dns_request_duration_seconds_bucket{{{zone},le=\"0.0005\"}} 2"),
            format!("coredns_dns_request_duration_seconds_bucket{{{zone},le=\"8.192\"}} 2"),
            format!("coredns_dns_request_duration_seconds_bucket{{{zone},le=\"+Inf\"}} 3"),
            format!("coredns_dns_request_duration_seconds_sum{{{zone}}} 9.0006"),
            format!("coredns_dns_response_size_bytes_bucket{{proto=\"tcp\",{zone},le=\"64000\"}} 0"),
            format!("coredns_dns_response_size_bytes_sum{{proto=\"tcp\",{zone}}} 65000"),
            format!("coredns_dns_request_size_bytes_count{{proto=\"udp\",{zone}}} 2"),
            "coredns_cache_requests_total{server=\"dns://127.0.0.1:53\",view=\"\",zones=\"example.org.\"} 3".to_owned(),
            "coredns_cache_hits_total{server=\"dns://127.0.0.1:53\",type=\"denial\",view=\"\",zones=\"example.org.\"} 2".to_owned(),
            format!("localdns_hosts_hits_total{{{zone}}} 1"),
            format!("localdns_hosts_misses_total{{{zone}}} 0"),
        ] {
            assert!(text.lines().any(|printed| printed == line), "{line} in\n{text}");
        }
        assert_eq!(samples(&text, "coredns_dns_requests_total{").len(), 2, "zeros are not printed");
        assert_eq!(samples(&text, "coredns_cache_hits_total{").len(), 1);
        assert_eq!(samples(&text, "coredns_cache_served_stale_total").len(), 0);
    }

    struct Fixed(fn(&mut Families));

    impl MetricSource for Fixed {
        fn collect(&self, into: &mut Families) {
            (self.0)(into);
        }
    }

    /// A source with one histogram of two values, in two native buckets.
    fn natively(into: &mut Families) {
        let native = NativeCounts { zero: 1, buckets: [(4, 1)].into() };
        let seen = Distribution { bounds: &[1.0], counts: &[1, 1], sum: 2.5, native: Some(&native) };
        into.histogram(Metric { name: "a_seconds", help: "A." }, &[("b", "1")], seen);
    }

    /// Counts of native buckets are summed before they are written as differences.
    #[test]
    fn native_samples_of_several_sources_make_one() {
        let twice = Gatherer::new([Arc::new(Fixed(natively)), Arc::new(Fixed(natively))]).gather(true);
        let native = NativeCounts { zero: 2, buckets: [(4, 2)].into() };
        let seen = Distribution { bounds: &[1.0], counts: &[2, 2], sum: 5.0, native: Some(&native) };
        let mut once = Families::new(true);
        once.histogram(Metric { name: "a_seconds", help: "A." }, &[("b", "1")], seen);
        assert_eq!(twice, once.into_messages());
    }

    #[test]
    fn samples_of_several_sources_make_one_family() {
        const COUNT: Metric = Metric { name: "a_total", help: "A." };
        const GAUGE: Metric = Metric { name: "a_gauge", help: "A." };
        const SPREAD: Metric = Metric { name: "a_seconds", help: "A \\ backslash." };
        let source = || -> Arc<dyn MetricSource> {
            Arc::new(Fixed(|into| {
                into.counter(COUNT, &[("b", "1"), ("a", "\"\n")], 2.0);
                into.gauge(GAUGE, &[], 1.5);
                let seen = Distribution { bounds: &[0.1, 1.0], counts: &[1, 0, 2], sum: 7.0, native: None };
                into.histogram(SPREAD, &[], seen);
            }))
        };
        let text = text([source(), source()]);
        assert_eq!(samples(&text, "a_total"), ["a_total{a=\"\\\"\\n\",b=\"1\"} 4"]);
        assert_eq!(samples(&text, "a_gauge"), ["a_gauge 1.5"]);
        assert_eq!(
            samples(&text, "a_seconds"),
            [
                "a_seconds_bucket{le=\"0.1\"} 2",
                "a_seconds_bucket{le=\"1\"} 2",
                "a_seconds_bucket{le=\"+Inf\"} 6",
                "a_seconds_sum 14",
                "a_seconds_count 6"
            ]
        );
        assert_eq!(samples(&text, "# HELP a_seconds"), ["# HELP a_seconds A \\\\ backslash."]);
        assert_eq!(samples(&text, "# TYPE a_").len(), 3);
    }
}
