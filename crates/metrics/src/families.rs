//! Metric families: sources add their samples, which become the messages that `prometheus` encodes.

use std::collections::BTreeMap;

use prometheus::proto::{self, Bucket, Histogram, LabelPair, MetricFamily, MetricType};
use protobuf::MessageField;

use super::native_fields;
use crate::histogram::{Durations, NativeCounts};

/// A source of metrics. Called for each page, on a thread that serves no query; must not block.
pub trait MetricSource: Send + Sync {
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

/// The counts of a histogram.
#[derive(Debug, Clone, Copy)]
pub struct Distribution<'d> {
    /// Upper bounds, ascending, without infinity.
    pub bounds: &'d [f64],
    /// The number of values in each bucket, the last above all bounds: one more than bounds.
    pub counts: &'d [u64],
    /// The sum of all values.
    pub sum: f64,
    /// The same values as a native histogram, where [`Families::are_native`].
    pub native: Option<&'d NativeCounts>,
}

/// Samples of all families. A family without samples is not printed, as in Go.
#[derive(Debug, Default)]
pub struct Families {
    native: bool,
    families: BTreeMap<&'static str, Family>,
}

#[derive(Debug)]
struct Family {
    /// The family without its samples.
    message: MetricFamily,
    /// In the order in which they were added; several may have equal labels.
    samples: Vec<Sample>,
}

#[derive(Debug)]
struct Sample {
    message: proto::Metric,
    native: Option<NativeCounts>,
}

impl Families {
    /// No samples; `native`: histograms have native buckets, too.
    pub fn new(native: bool) -> Self {
        Self { native, families: BTreeMap::new() }
    }

    /// Whether histograms have native buckets, too.
    pub fn are_native(&self) -> bool {
        self.native
    }

    /// Adds to a counter: samples with equal labels are summed.
    pub fn counter(&mut self, metric: Metric, labels: &[(&'static str, &str)], value: f64) {
        let mut sample = Sample::new(labels);
        sample.message.counter.mut_or_insert_default().set_value(value);
        self.add(metric, MetricType::COUNTER, sample);
    }

    /// Sets a gauge: of samples with equal labels the last one stays.
    pub fn gauge(&mut self, metric: Metric, labels: &[(&'static str, &str)], value: f64) {
        let mut sample = Sample::new(labels);
        sample.message.gauge.mut_or_insert_default().set_value(value);
        self.add(metric, MetricType::GAUGE, sample);
    }

    /// Adds to a histogram: samples with equal labels and bounds are summed, those with other bounds are left out.
    pub fn histogram(&mut self, metric: Metric, labels: &[(&'static str, &str)], seen: Distribution<'_>) {
        debug_assert_eq!(seen.bounds.len() + 1, seen.counts.len(), "{}", metric.name);
        let mut total = 0;
        let bucket = |(&bound, &count)| {
            total += count;
            Bucket { cumulative_count: Some(total), upper_bound: Some(bound), ..Bucket::default() }
        };
        let mut sample = Sample::new(labels);
        sample.message.histogram = MessageField::some(Histogram {
            bucket: seen.bounds.iter().zip(seen.counts).map(bucket).collect(),
            sample_count: Some(seen.counts.iter().sum()),
            sample_sum: Some(seen.sum),
            ..Histogram::default()
        });
        sample.native = seen.native.cloned();
        self.add(metric, MetricType::HISTOGRAM, sample);
    }

    /// Adds a histogram of durations in seconds.
    pub fn durations<const N: usize>(
        &mut self,
        metric: Metric,
        labels: &[(&'static str, &str)],
        durations: &Durations<N>,
    ) {
        let native = self.native.then(|| durations.native());
        let (bounds, counts) = (&durations.bounds(), &durations.counts());
        let seen = Distribution { bounds, counts, sum: durations.sum(), native: native.as_ref() };
        self.histogram(metric, labels, seen);
    }

    /// The families by name, with their samples by labels: names first, then values.
    pub fn into_messages(self) -> Vec<MetricFamily> {
        self.families.into_values().map(Family::into_message).collect()
    }

    /// Adds a sample, unless the family is of another kind.
    fn add(&mut self, metric: Metric, kind: MetricType, sample: Sample) {
        let family = self.families.entry(metric.name).or_insert_with(|| Family {
            message: MetricFamily {
                name: Some(metric.name.to_owned()),
                help: Some(metric.help.to_owned()),
                type_: kind.into(),
                ..MetricFamily::default()
            },
            samples: Vec::new(),
        });
        debug_assert_eq!(family.message.type_(), kind, "{}", metric.name);
        if family.message.type_() == kind {
            family.samples.push(sample);
        }
    }
}

impl Family {
    fn into_message(self) -> MetricFamily {
        let Self { mut message, mut samples } = self;
        samples.sort_by(|a, b| a.labels().cmp(b.labels()));
        samples.dedup_by(|later, first| {
            let equal = later.labels().eq(first.labels());
            if equal {
                first.merge(later);
            }
            equal
        });
        message.set_metric(samples.into_iter().map(Sample::into_message).collect());
        message
    }
}

impl Sample {
    /// With labels sorted by name, and without a value.
    fn new(labels: &[(&'static str, &str)]) -> Self {
        let pair = |&(name, value): &(&str, &str)| LabelPair {
            name: Some(name.to_owned()),
            value: Some(value.to_owned()),
            ..LabelPair::default()
        };
        let mut labels: Vec<_> = labels.iter().map(pair).collect();
        labels.sort_unstable();
        Self { message: proto::Metric::from_label(labels), native: None }
    }

    fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.message.get_label().iter().map(|label| (label.name(), label.value()))
    }

    /// Merges a later sample of the same family and labels.
    fn merge(&mut self, later: &mut Self) {
        let (ours, theirs) = (&mut self.message, &mut later.message);
        if let (Some(counter), Some(more)) = (ours.counter.as_mut(), theirs.counter.as_ref()) {
            counter.set_value(counter.value() + more.value());
        }
        if theirs.gauge.is_some() {
            ours.gauge = theirs.gauge.take().into();
        }
        let (Some(histogram), Some(more)) = (ours.histogram.as_mut(), theirs.histogram.as_ref()) else {
            return;
        };
        let bounds = histogram.bucket.iter().map(Bucket::upper_bound);
        if !bounds.eq(more.bucket.iter().map(Bucket::upper_bound)) {
            return;
        }
        for (bucket, more) in histogram.bucket.iter_mut().zip(&more.bucket) {
            bucket.set_cumulative_count(bucket.cumulative_count() + more.cumulative_count());
        }
        histogram.set_sample_count(histogram.sample_count() + more.sample_count());
        histogram.set_sample_sum(histogram.sample_sum() + more.sample_sum());
        if let Some(native) = &later.native {
            self.native.get_or_insert_default().add(native);
        }
    }

    fn into_message(mut self) -> proto::Metric {
        if let (Some(native), Some(histogram)) = (self.native, self.message.histogram.as_mut()) {
            native_fields::add(&native, histogram);
        }
        self.message
    }
}

/// The sum of a family's counters that have all these labels.
pub fn sum(families: &[MetricFamily], metric: Metric, labels: &[(&str, &str)]) -> f64 {
    let has = |of: &proto::Metric| {
        labels
            .iter()
            .all(|&(name, value)| of.get_label().iter().any(|own| (own.name(), own.value()) == (name, value)))
    };
    let samples =
        families.iter().filter(|family| family.name() == metric.name).flat_map(MetricFamily::get_metric);
    samples.filter(|sample| has(sample)).map(|sample| sample.counter.value()).sum()
}
