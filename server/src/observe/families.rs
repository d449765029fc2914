//! Metric families as they are gathered: whoever counts something adds its samples here, the collector prints them.

use std::collections::BTreeMap;

use prometheus::{TextEncoder, proto};

/// Who has metrics to add. Called for every scrape, from the thread that serves it: quick, and no waiting.
pub trait Source: Send + Sync {
    /// Adds the samples as they are now.
    fn collect(&self, into: &mut Families);
}

/// Name and help text of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// Such as `coredns_dns_requests_total`.
    pub name: &'static str,
    /// One sentence.
    pub help: &'static str,
}

/// What a histogram counted.
#[derive(Debug, Clone, Copy)]
pub struct Distribution<'d> {
    /// Upper bounds, ascending, without infinity.
    pub bounds: &'d [f64],
    /// How many values fell under each bound and above the one before, and last those above all: one more than bounds.
    pub counts: &'d [u64],
    /// The sum of all values.
    pub sum: f64,
}

/// Samples by family and labels. A family without samples is not printed, as in Go.
#[derive(Debug, Default)]
pub struct Families {
    families: BTreeMap<&'static str, Family>,
}

#[derive(Debug)]
struct Family {
    help: &'static str,
    kind: Kind,
    samples: BTreeMap<Labels, Sample>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// Sorted by name.
type Labels = Vec<(&'static str, String)>;

#[derive(Debug, Default)]
struct Sample {
    /// Of a counter or gauge; the sum of a histogram.
    value: f64,
    bounds: Vec<f64>,
    counts: Vec<u64>,
}

impl Families {
    /// Adds to a counter: samples with equal labels are summed.
    pub fn counter(&mut self, metric: Metric, labels: &[(&'static str, &str)], value: f64) {
        if let Some(sample) = self.sample(metric, Kind::Counter, labels) {
            sample.value += value;
        }
    }

    /// Sets a gauge: of samples with equal labels the last one stays.
    pub fn gauge(&mut self, metric: Metric, labels: &[(&'static str, &str)], value: f64) {
        if let Some(sample) = self.sample(metric, Kind::Gauge, labels) {
            sample.value = value;
        }
    }

    /// Adds to a histogram: samples with equal labels and bounds are summed, those with other bounds left out.
    pub fn histogram(&mut self, metric: Metric, labels: &[(&'static str, &str)], seen: Distribution<'_>) {
        debug_assert_eq!(seen.bounds.len() + 1, seen.counts.len(), "{}", metric.name);
        let Some(sample) = self.sample(metric, Kind::Histogram, labels) else { return };
        if sample.counts.is_empty() {
            sample.bounds = seen.bounds.to_vec();
            sample.counts = vec![0; seen.counts.len()];
        } else if sample.bounds != seen.bounds {
            return;
        }
        sample.value += seen.sum;
        for (total, count) in sample.counts.iter_mut().zip(seen.counts) {
            *total += count;
        }
    }

    /// The sample with these labels; `None` if the family is of another kind.
    fn sample(&mut self, metric: Metric, kind: Kind, labels: &[(&'static str, &str)]) -> Option<&mut Sample> {
        let family = self.families.entry(metric.name).or_insert_with(|| Family {
            help: metric.help,
            kind,
            samples: BTreeMap::new(),
        });
        debug_assert_eq!(family.kind, kind, "{}", metric.name);
        let mut labels: Labels = labels.iter().map(|&(name, value)| (name, value.to_owned())).collect();
        labels.sort_unstable();
        (family.kind == kind).then(|| family.samples.entry(labels).or_default())
    }

    /// Everything in the text format, version 0.0.4.
    pub fn into_text(self) -> String {
        // It fails on a family without name or samples; there is none.
        TextEncoder::new().encode_to_string(&self.into_proto()).unwrap_or_default()
    }

    /// As the text encoder wants it, sorted by name and labels.
    fn into_proto(self) -> Vec<proto::MetricFamily> {
        self.families.into_iter().map(|(name, family)| family.into_proto(name)).collect()
    }
}

impl Family {
    fn into_proto(self, name: &str) -> proto::MetricFamily {
        let mut family = proto::MetricFamily::default();
        family.set_name(name.to_owned());
        family.set_help(self.help.to_owned());
        family.set_field_type(match self.kind {
            Kind::Counter => proto::MetricType::COUNTER,
            Kind::Gauge => proto::MetricType::GAUGE,
            Kind::Histogram => proto::MetricType::HISTOGRAM,
        });
        let metric = |(labels, sample): (Labels, Sample)| sample.into_proto(self.kind, labels);
        family.set_metric(self.samples.into_iter().map(metric).collect());
        family
    }
}

impl Sample {
    fn into_proto(self, kind: Kind, labels: Labels) -> proto::Metric {
        let label = |(name, value): (&str, String)| {
            let mut label = proto::LabelPair::default();
            label.set_name(name.to_owned());
            label.set_value(value);
            label
        };
        let mut metric = proto::Metric::from_label(labels.into_iter().map(label).collect());
        match kind {
            Kind::Counter => {
                let mut counter = proto::Counter::default();
                counter.set_value(self.value);
                metric.set_counter(counter);
            }
            Kind::Gauge => {
                let mut gauge = proto::Gauge::default();
                gauge.set_value(self.value);
                metric.set_gauge(gauge);
            }
            Kind::Histogram => metric.set_histogram(self.into_histogram()),
        }
        metric
    }

    fn into_histogram(self) -> proto::Histogram {
        let mut total = 0;
        let mut buckets = Vec::with_capacity(self.bounds.len());
        for (bound, count) in self.bounds.into_iter().zip(&self.counts) {
            total += count;
            let mut bucket = proto::Bucket::default();
            bucket.set_upper_bound(bound);
            bucket.set_cumulative_count(total);
            buckets.push(bucket);
        }
        let mut histogram = proto::Histogram::default();
        histogram.set_bucket(buckets);
        histogram.set_sample_sum(self.value);
        histogram.set_sample_count(self.counts.iter().sum());
        histogram
    }
}
