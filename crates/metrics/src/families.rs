//! Metric families: sources add their samples, `exposition` writes them as text or protobuf.

use std::collections::BTreeMap;

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

/// Samples by family and labels. A family without samples is not printed, as in Go.
#[derive(Debug, Default)]
pub struct Families {
    native: bool,
    pub(super) families: BTreeMap<&'static str, Family>,
}

#[derive(Debug)]
pub(super) struct Family {
    pub(super) help: &'static str,
    pub(super) kind: Kind,
    pub(super) samples: BTreeMap<Labels, Sample>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// Sorted by name.
pub(super) type Labels = Vec<(&'static str, String)>;

#[derive(Debug, Default)]
pub(super) struct Sample {
    /// Of a counter or gauge; the sum of a histogram.
    pub(super) value: f64,
    bounds: Vec<f64>,
    /// One more than bounds.
    pub(super) counts: Vec<u64>,
    pub(super) native: Option<NativeCounts>,
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

    /// Adds to a histogram: samples with equal labels and bounds are summed, those with other bounds are left out.
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
        if let Some(native) = seen.native {
            sample.native.get_or_insert_default().add(native);
        }
        for (total, count) in sample.counts.iter_mut().zip(seen.counts) {
            *total += count;
        }
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

    /// The sum of a family's samples that have all these labels; of histograms, that of their values.
    pub fn sum(&self, metric: Metric, labels: &[(&str, &str)]) -> f64 {
        let has = |of: &Labels| {
            labels.iter().all(|(name, value)| of.iter().any(|(own, is)| own == name && is == value))
        };
        let samples = self.families.get(metric.name).into_iter().flat_map(|family| &family.samples);
        samples.filter(|(of, _)| has(of)).map(|(_, sample)| sample.value).sum()
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
}

impl Kind {
    /// Its name in the text formats.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

impl Sample {
    /// Each bound with how many values are not above it.
    pub(super) fn cumulated(&self) -> impl Iterator<Item = (f64, u64)> {
        let totals = self.counts.iter().scan(0, |total, count| {
            *total += count;
            Some(*total)
        });
        self.bounds.iter().copied().zip(totals)
    }
}
