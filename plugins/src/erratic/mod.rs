//! `erratic`: fixed answers that are dropped, delayed or truncated, to test clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use corefile::Directive;
use metrics::counters::ThreadCounters;
use wire::{Class, Flags, Owner, Query, RType, Reply, Section};

use plugin::args::{Args, Result, bad, no_block, unknown_property};
use plugin::failure::{Failure, FailureKind};
use plugin::spec::{BuildContext, Explanation, ParseContext, Source, SourceSpec};
use plugin::{Delay, HostsGuard, Lookup, QueryContext};

/// The directive. Of queries numbered from 0, every AMOUNTth is affected; 0 affects none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErraticSpec {
    /// `drop`.
    drop: u64,
    /// `delay`.
    delay: u64,
    /// The duration of a delay.
    duration: Duration,
    /// `truncate`: queries are truncated whose number has none of the bits of this one, as in
    /// CoreDNS; 0 affects none.
    truncate: u64,
    /// `large`: answers to A have 30 records.
    large: bool,
}

/// Reads the `erratic` directives of a server block; properties of later ones replace earlier ones.
pub(crate) fn read(directives: &[&Directive], _: ParseContext<'_>) -> Result<Arc<dyn SourceSpec>> {
    let (mut drop, mut is_drop_written) = (DEFAULT_AMOUNT, false);
    let mut spec = ErraticSpec { drop, delay: 0, duration: Duration::ZERO, truncate: 0, large: false };
    for directive in directives {
        Args::new(PLUGIN, directive, "no argument").end()?;
        for property in directive.body.iter().flatten() {
            no_block(PLUGIN, property)?;
            let mut args = Args::new(PLUGIN, property, "an amount");
            match property.name.text.as_str() {
                "drop" => {
                    if let Some(written) = amount(&mut args)? {
                        (drop, is_drop_written) = (written, true);
                    }
                }
                "delay" => {
                    spec.delay = amount(&mut args)?.unwrap_or(DEFAULT_AMOUNT);
                    spec.duration = DEFAULT_DELAY;
                    if let Some(word) = args.optional() {
                        spec.duration = duration(word)?;
                    }
                }
                "truncate" => spec.truncate = amount(&mut args)?.unwrap_or(DEFAULT_AMOUNT),
                "large" => spec.large = true,
                _ => return Err(unknown_property(PLUGIN, property, PROPERTIES)),
            }
            args.end()?;
        }
    }
    let only_others = (spec.delay > 0 || spec.truncate > 0) && !is_drop_written;
    spec.drop = if only_others { 0 } else { drop };
    Ok(Arc::new(spec))
}

fn amount(args: &mut Args<'_>) -> Result<Option<u64>> {
    let Some(word) = args.optional() else { return Ok(None) };
    let amount = plugin::args::number(PLUGIN, word, 0..=i32::MAX as u64, "an amount, 0 to 2147483647")?;
    Ok(Some(amount))
}

fn duration(word: &corefile::Word) -> Result<Duration> {
    let duration = plugin::args::duration(PLUGIN, word, EXPECTED_DELAY)?;
    if duration > MOST_DELAY { Err(bad(PLUGIN, word, EXPECTED_DELAY)) } else { Ok(duration) }
}

impl SourceSpec for ErraticSpec {
    fn build(&self, _: &BuildContext<'_>) -> Result<Box<dyn Source>> {
        Ok(Box::new(Erratic { spec: self.clone(), queries: AtomicU64::new(0) }))
    }
}

/// The source of one server block.
#[derive(Debug)]
struct Erratic {
    spec: ErraticSpec,
    /// The number of the next query.
    queries: AtomicU64,
}

impl Source for Erratic {
    fn lookup<'h>(
        &'h self,
        _: &QueryContext<'_>,
        _: &mut HostsGuard<'h>,
        query: &Query<'_>,
        reply: &mut Reply<'_>,
        _: ThreadCounters<'_>,
    ) -> Lookup {
        let ErraticSpec { drop, delay, duration, truncate, large } = self.spec;
        let number = self.queries.fetch_add(1, Relaxed);
        let is_nth = |amount: u64| amount > 0 && number.is_multiple_of(amount);
        if is_nth(drop) {
            return Lookup::Fail(Failure::Dropped);
        }
        reply.flags = Flags::AA;
        if truncate > 0 && number & truncate == 0 {
            reply.flags |= Flags::TC;
        }
        let mut push = |rtype, data: &[u8]| {
            reply.push(Section::Answer, Owner::Question, rtype, Class::IN, 0, data);
        };
        let failure = match query.rtype {
            RType::A => {
                (0..if large { LARGE } else { 1 }).for_each(|_| push(RType::A, &ADDRESS));
                None
            }
            RType::AAAA => {
                push(RType::AAAA, &ADDRESS6);
                None
            }
            _ => Some(Failure::own(PLUGIN, FailureKind::NotMine, "it answers A and AAAA alone")),
        };
        match failure {
            failure if is_nth(delay) => Lookup::Delay(Box::new(Delay { duration, failure })),
            Some(failure) => Lookup::Fail(failure),
            None => Lookup::Answer,
        }
    }

    fn explain(&self, query: &Query<'_>) -> Explanation {
        Explanation::Ends(match query.rtype {
            RType::A | RType::AAAA => "it answers every name, or drops the query".to_owned(),
            _ => "SERVFAIL: it answers A and AAAA alone, or drops the query".to_owned(),
        })
    }
}

const PLUGIN: &str = "erratic";
const PROPERTIES: &[&str] = &["delay", "drop", "large", "truncate"];
const DEFAULT_AMOUNT: u64 = 2;
const DEFAULT_DELAY: Duration = Duration::from_millis(100);
const MOST_DELAY: Duration = Duration::from_secs(60);
const EXPECTED_DELAY: &str = "a duration such as 100ms, at most 1m";
/// 192.0.2.53 (RFC 5737).
const ADDRESS: [u8; 4] = [192, 0, 2, 53];
/// 2001:db8::53 (RFC 3849).
const ADDRESS6: [u8; 16] = [0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x53];
/// Records of a large answer.
const LARGE: usize = 30;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_corefile::tests::{parsed, refused, with};

    #[test]
    fn amounts_and_defaults() {
        for (properties, drop, delay, millis, truncate, large) in [
            ("", 2, 0, 0, 0, false),
            ("drop", 2, 0, 0, 0, false),
            ("drop 0", 0, 0, 0, 0, false),
            ("drop 3", 3, 0, 0, 0, false),
            ("delay", 0, 2, 100, 0, false),
            ("delay 3 5ms\ntruncate 5", 0, 3, 5, 5, false),
            ("drop 2\ntruncate", 2, 0, 0, 2, false),
            ("drop\ntruncate", 0, 0, 0, 2, false),
            ("delay 0", 2, 0, 100, 0, false),
            ("large", 2, 0, 0, 0, true),
            ("truncate 1\nlarge\ndelay 1 1m", 0, 1, 60_000, 1, true),
        ] {
            let duration = Duration::from_millis(millis);
            let expected = ErraticSpec { drop, delay, duration, truncate, large };
            assert_eq!(parsed(&with("erratic", properties)), Some(expected), "{properties}");
        }
    }

    #[test]
    fn unusable_amounts() {
        let not = "is not an amount, 0 to 2147483647";
        refused(&[
            ("erratic a", "2:9: plugin/erratic: unexpected argument \"a\"; `erratic` needs no argument"),
            (&with("erratic", "drop -1"), &format!("3:6: plugin/erratic: \"-1\" {not}")),
            (&with("erratic", "delay x"), &format!("3:7: plugin/erratic: \"x\" {not}")),
            (&with("erratic", "truncate 2147483648"), &format!("3:10: plugin/erratic: \"2147483648\" {not}")),
            (
                &with("erratic", "delay 2 61s"),
                "3:9: plugin/erratic: \"61s\" is not a duration such as 100ms, at most 1m",
            ),
            (
                &with("erratic", "dorp 1"),
                "3:1: plugin/erratic: unknown property \"dorp\"; did you mean `drop`?",
            ),
        ]);
    }
}
