//! `cache`: which answers of upstreams are cached, and for how long.

mod handler;
pub mod metrics;

use std::sync::Arc;
use std::time::Duration;

use ::cache::{Prefetch, ServeStale, StaleMode, StoreLimits};
use corefile::{Directive, Located, Word};
use wire::Name;

pub use ::cache::CacheSpec;
pub use handler::{CacheSource, of_block};
use plugin::args::{Args, Result, bad, duration, flag, number, once, unknown_property, zones_or};
use plugin::spec::{ParseContext, PluginSpec};
use plugin::{HiddenZones, SetupError};

/// The name of the directive.
pub const PLUGIN: &str = "cache";
const PROPERTIES: &[&str] =
    &["denial", "disable", "keepttl", "prefetch", "serve_stale", "serve_stale_policy", "servfail", "success"];
const TTL: &str = "a TTL in seconds, above 0";

/// Reads the one `cache` of a server block.
pub(crate) fn read(directives: &[&Directive], written: ParseContext<'_>) -> Result<Arc<dyn PluginSpec>> {
    let directive = once(PLUGIN, directives)?;
    let mut spec = CacheSpec::default();
    let mut words = directive.args.as_slice();
    if let [first, rest @ ..] = words
        && first.text.parse::<i64>().is_ok()
    {
        let max_ttl = number(PLUGIN, first, 1..=MAX_TTL, TTL)?;
        spec.success.max_ttl = max_ttl;
        spec.denial.max_ttl = max_ttl;
        words = rest;
    }
    refuse_duration(words)?;
    spec.zones = zones_or(words, written.zones)?;
    let hidden = HiddenZones::of(words);
    if !hidden.is_empty() {
        spec.shown_zones =
            Some(spec.zones.iter().map(|zone| hidden.text(zone)).collect::<Vec<_>>().join(","));
    }
    let mut policy_at = None;
    for property in directive.body.iter().flatten() {
        let mut args = Args::new(PLUGIN, property, expected(&property.name.text));
        match property.name.text.as_str() {
            "success" => store(&mut args, &mut spec.success)?,
            "denial" => store(&mut args, &mut spec.denial)?,
            "prefetch" => spec.prefetch = prefetch(&mut args)?,
            "serve_stale" => {
                let prefer_positive = spec.stale.is_some_and(|stale| stale.prefer_positive);
                spec.stale = Some(ServeStale { prefer_positive, ..serve_stale(&mut args)? });
            }
            "serve_stale_policy" => {
                let word = args.required()?;
                if !word.text.eq_ignore_ascii_case("prefer_positive") {
                    return Err(bad(PLUGIN, word, "`prefer_positive`, the only policy"));
                }
                policy_at = Some(&property.name.at);
            }
            "servfail" => {
                let word = args.required()?;
                spec.servfail = duration(PLUGIN, word, SERVFAIL)?;
                if spec.servfail > CacheSpec::MAX_SERVFAIL {
                    return Err(bad(PLUGIN, word, SERVFAIL));
                }
            }
            "disable" => {
                let word = args.required()?;
                let zones = zones_or(args.rest(), &[Name::ROOT])?;
                match word.text.as_str() {
                    "success" => spec.disabled_success.extend(zones),
                    "denial" => spec.disabled_denial.extend(zones),
                    _ => return Err(bad(PLUGIN, word, "`success` or `denial`")),
                }
            }
            "keepttl" => spec.keep_ttl = flag(PLUGIN, property)?,
            _ => return Err(unknown_property(PLUGIN, property, PROPERTIES)),
        }
        args.end()?;
    }
    if let Some(at) = policy_at {
        let rule = "`serve_stale_policy` requires `serve_stale`";
        let stale = spec
            .stale
            .as_mut()
            .ok_or_else(|| Located::new(at, SetupError::Order { plugin: PLUGIN, rule }))?;
        stale.prefer_positive = true;
    }
    Ok(Arc::new(spec))
}

/// Refuses a duration as first argument: CoreDNS reads `cache 3600s` as a zone, which disables the
/// cache for all other names without a message.
fn refuse_duration(words: &[Word]) -> Result<()> {
    match words.iter().find(|word| corefile::go_values::parse_duration(&word.text).is_ok()) {
        Some(word) => {
            Err(bad(PLUGIN, word, "a zone; the TTL is a bare number of seconds, such as `cache 3600`"))
        }
        None => Ok(()),
    }
}

fn store(args: &mut Args<'_>, store: &mut StoreLimits) -> Result<()> {
    store.capacity = args.number(0..=MAX_CAPACITY, "a number of answers")?;
    if let Some(word) = args.optional() {
        store.max_ttl = number(PLUGIN, word, 1..=MAX_TTL, TTL)?;
    }
    if let Some(word) = args.optional() {
        store.min_ttl = number(PLUGIN, word, 0..=MAX_TTL, "a TTL in seconds")?;
    }
    Ok(())
}

fn prefetch(args: &mut Args<'_>) -> Result<Option<Prefetch>> {
    let amount = args.number(0..=u32::MAX, "a number of queries")?;
    let mut prefetch = Prefetch { amount, ..Prefetch::default() };
    if let Some(word) = args.optional() {
        prefetch.duration = duration(PLUGIN, word, "a duration such as 1m")?;
    }
    if let Some(word) = args.optional() {
        let percentage = word.text.strip_suffix('%').and_then(|digits| digits.parse().ok());
        prefetch.percentage = percentage
            .filter(|percentage| (10..=90).contains(percentage))
            .ok_or_else(|| bad(PLUGIN, word, "a percentage of 10% to 90%, with its sign"))?;
    }
    Ok((amount > 0).then_some(prefetch))
}

fn serve_stale(args: &mut Args<'_>) -> Result<ServeStale> {
    let mut stale = ServeStale::default();
    if let Some(word) = args.optional() {
        stale.window = duration(PLUGIN, word, "a duration such as 1h")?;
    }
    let Some(word) = args.optional() else { return Ok(stale) };
    if word.text.eq_ignore_ascii_case("verify") {
        let timeout =
            args.optional().map(|word| duration(PLUGIN, word, "a duration such as 100ms")).transpose()?;
        stale.mode = StaleMode::Verify { timeout: timeout.filter(|timeout| !timeout.is_zero()) };
    } else if !word.text.eq_ignore_ascii_case("immediate") {
        return Err(bad(PLUGIN, word, "`immediate` or `verify`"));
    }
    if let Some(word) = args.optional() {
        let ttl = duration(PLUGIN, word, RESPONSE_TTL)?;
        let seconds = u32::try_from(ttl.as_secs()).ok().filter(|_| ttl.subsec_nanos() == 0);
        stale.ttl = Some(seconds.ok_or_else(|| bad(PLUGIN, word, RESPONSE_TTL))?);
    }
    if let Some(word) = args.optional() {
        let recheck = duration(PLUGIN, word, RECHECK)?;
        if recheck > Duration::from_secs(300) {
            return Err(bad(PLUGIN, word, RECHECK));
        }
        stale.recheck = Some(recheck);
    }
    Ok(stale)
}

fn expected(property: &str) -> &'static str {
    match property {
        "success" | "denial" => "CAPACITY [TTL] [MINTTL]",
        "prefetch" => "AMOUNT [DURATION [PERCENTAGE%]]",
        "serve_stale" => {
            "[DURATION] [immediate [RESPONSE_TTL [FAILURE_RECHECK]] | verify [VERIFY_TIMEOUT [RESPONSE_TTL [FAILURE_RECHECK]]]]"
        }
        "serve_stale_policy" => "prefer_positive",
        "servfail" => "DURATION",
        "disable" => "success|denial [ZONES...]",
        _ => "no argument",
    }
}

const MAX_TTL: u32 = i32::MAX as u32;
const MAX_CAPACITY: usize = 1 << 30;
const SERVFAIL: &str = "a duration of at most 5m (RFC 2308, section 7.1), 0 for never";
const RESPONSE_TTL: &str = "a TTL in whole seconds, such as 30s";
const RECHECK: &str = "a duration of at most 5m";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_corefile::tests::{parsed, refused, refused_properties, with};

    /// Differences of a row from the bare directive.
    type Change = fn(&mut CacheSpec);

    fn name(text: &str) -> Name {
        Name::from_text(text).unwrap()
    }

    fn stale(spec: &mut CacheSpec) -> &mut ServeStale {
        spec.stale.get_or_insert_default()
    }

    #[test]
    fn arguments_and_properties() {
        let properties = |text: &str| with("cache", text);
        let rows: &[(String, Change)] = &[
            ("cache".into(), |_| {}),
            ("cache 60".into(), |p| (p.success.max_ttl, p.denial.max_ttl) = (60, 60)),
            ("cache example.org".into(), |p| p.zones = vec![name("example.org")]),
            ("cache 60 b.org 10.0.0.0/24".into(), |p| {
                (p.success.max_ttl, p.denial.max_ttl) = (60, 60);
                p.zones = vec![name("b.org"), name("0.0.10.in-addr.arpa")];
            }),
            (properties("success 100"), |p| p.success.capacity = 100),
            (properties("success 0"), |p| p.success.capacity = 0),
            (properties("success 100 60"), |p| (p.success.capacity, p.success.max_ttl) = (100, 60)),
            (properties("success 100 60 0"), |p| {
                p.success = StoreLimits { capacity: 100, max_ttl: 60, min_ttl: 0 };
            }),
            (properties("denial 100 60 30"), |p| {
                p.denial = StoreLimits { capacity: 100, max_ttl: 60, min_ttl: 30 };
            }),
            (with("cache 60", "denial 100"), |p| {
                (p.success.max_ttl, p.denial.max_ttl, p.denial.capacity) = (60, 60, 100);
            }),
            (properties("prefetch 10"), |p| {
                p.prefetch = Some(Prefetch { amount: 10, ..Prefetch::default() })
            }),
            (properties("prefetch 10 2m 20%"), |p| {
                p.prefetch =
                    Some(Prefetch { amount: 10, duration: Duration::from_secs(120), percentage: 20 });
            }),
            (properties("prefetch 0"), |_| {}),
            (properties("serve_stale"), |p| *stale(p) = ServeStale::default()),
            (properties("serve_stale 20h"), |p| stale(p).window = Duration::from_secs(72_000)),
            (properties("serve_stale 1h immediate"), |p| stale(p).mode = StaleMode::Immediate),
            (properties("serve_stale 1h immediate 10s 5s"), |p| {
                stale(p).ttl = Some(10);
                stale(p).recheck = Some(Duration::from_secs(5));
            }),
            (properties("serve_stale 1h VERIFY"), |p| stale(p).mode = StaleMode::Verify { timeout: None }),
            (properties("serve_stale 1h verify 0"), |p| stale(p).mode = StaleMode::Verify { timeout: None }),
            (properties("serve_stale 1h verify 100ms 0s 0s"), |p| {
                stale(p).mode = StaleMode::Verify { timeout: Some(Duration::from_millis(100)) };
                stale(p).ttl = Some(0);
                stale(p).recheck = Some(Duration::ZERO);
            }),
            (properties("serve_stale\nserve_stale_policy prefer_positive"), |p| {
                stale(p).prefer_positive = true
            }),
            (properties("serve_stale_policy Prefer_Positive\nserve_stale"), |p| {
                stale(p).prefer_positive = true
            }),
            (properties("servfail 0"), |p| p.servfail = Duration::ZERO),
            (properties("servfail 5m"), |p| p.servfail = Duration::from_secs(300)),
            (properties("disable success"), |p| p.disabled_success = vec![Name::ROOT]),
            (properties("disable denial a.org b.org"), |p| {
                p.disabled_denial = vec![name("a.org"), name("b.org")];
            }),
            (properties("keepttl"), |p| p.keep_ttl = true),
        ];
        for (lines, change) in rows {
            let mut expected = CacheSpec { zones: vec![Name::ROOT], ..CacheSpec::default() };
            change(&mut expected);
            assert_eq!(parsed(lines), Some(expected), "{lines}");
        }
    }

    #[test]
    fn errors_have_their_place() {
        refused(&[
            ("cache 0", "2:7: plugin/cache: \"0\" is not a TTL in seconds, above 0"),
            ("cache -1", "2:7: plugin/cache: \"-1\" is not a TTL in seconds, above 0"),
            ("cache 9999999999", "2:7: plugin/cache: \"9999999999\" is not a TTL in seconds, above 0"),
            (
                "cache 3600s",
                "2:7: plugin/cache: \"3600s\" is not a zone; the TTL is a bare number of seconds, such as `cache 3600`",
            ),
            ("cache 60 a..b", "2:10: the zone `a..b` has an empty label"),
        ]);
        const STORE: &str = "CAPACITY [TTL] [MINTTL]";
        let rows = [
            ("success", format!("1: plugin/cache: `success` needs {STORE}")),
            ("success x", "9: plugin/cache: \"x\" is not a number of answers".into()),
            ("success -1", "9: plugin/cache: \"-1\" is not a number of answers".into()),
            ("success 1 0", "11: plugin/cache: \"0\" is not a TTL in seconds, above 0".into()),
            ("success 1 1m", "11: plugin/cache: \"1m\" is not a TTL in seconds, above 0".into()),
            ("success 1 2 -1", "13: plugin/cache: \"-1\" is not a TTL in seconds".into()),
            (
                "denial 1 2 3 4",
                format!("14: plugin/cache: unexpected argument \"4\"; `denial` needs {STORE}"),
            ),
            ("prefetch", "1: plugin/cache: `prefetch` needs AMOUNT [DURATION [PERCENTAGE%]]".into()),
            ("prefetch few", "10: plugin/cache: \"few\" is not a number of queries".into()),
            ("prefetch 1 60", "12: plugin/cache: \"60\" is not a duration such as 1m".into()),
            (
                "prefetch 1 1m 10",
                "15: plugin/cache: \"10\" is not a percentage of 10% to 90%, with its sign".into(),
            ),
            (
                "prefetch 1 1m 9%",
                "15: plugin/cache: \"9%\" is not a percentage of 10% to 90%, with its sign".into(),
            ),
            (
                "prefetch 1 1m 91%",
                "15: plugin/cache: \"91%\" is not a percentage of 10% to 90%, with its sign".into(),
            ),
            ("serve_stale 3600", "13: plugin/cache: \"3600\" is not a duration such as 1h".into()),
            ("serve_stale 1h later", "16: plugin/cache: \"later\" is not `immediate` or `verify`".into()),
            (
                "serve_stale 1h verify x",
                "23: plugin/cache: \"x\" is not a duration such as 100ms".into(),
            ),
            (
                "serve_stale 1h immediate 1500ms",
                "26: plugin/cache: \"1500ms\" is not a TTL in whole seconds, such as 30s".into(),
            ),
            (
                "serve_stale 1h immediate 30s 301s",
                "30: plugin/cache: \"301s\" is not a duration of at most 5m".into(),
            ),
            (
                "serve_stale 1h immediate 30s 5s 5s",
                format!(
                    "33: plugin/cache: unexpected argument \"5s\"; `serve_stale` needs {}",
                    expected("serve_stale")
                ),
            ),
            (
                "serve_stale_policy prefer_positive",
                "1: plugin/cache: `serve_stale_policy` requires `serve_stale`".into(),
            ),
            (
                "serve_stale_policy newest",
                "20: plugin/cache: \"newest\" is not `prefer_positive`, the only policy".into(),
            ),
            ("servfail", "1: plugin/cache: `servfail` needs DURATION".into()),
            (
                "servfail 301s",
                "10: plugin/cache: \"301s\" is not a duration of at most 5m (RFC 2308, section 7.1), 0 for never".into(),
            ),
            ("disable", "1: plugin/cache: `disable` needs success|denial [ZONES...]".into()),
            ("disable all", "9: plugin/cache: \"all\" is not `success` or `denial`".into()),
            ("disable success a..b", "17: the zone `a..b` has an empty label".into()),
            ("keepttl 5", "9: plugin/cache: unexpected argument \"5\"; `keepttl` needs no argument".into()),
            ("keep_ttl", "1: plugin/cache: unknown property \"keep_ttl\"; did you mean `keepttl`?".into()),
            (
                "nothinglikeit",
                format!(
                    "1: plugin/cache: unknown property \"nothinglikeit\"; expected {}",
                    PROPERTIES.join(", ")
                ),
            ),
        ];
        for (property, error) in &rows {
            refused_properties("cache", &[(property, error)]);
        }
    }
}
