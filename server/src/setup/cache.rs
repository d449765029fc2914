//! `cache`: what is kept of upstreams' answers, and for how long.

use std::time::Duration;

use ::cache::{Mode, Policy, Prefetch, Stale, Store};
use corefile::{Directive, Located, Word};
use wire::Name;

use super::SetupError;
use super::args::{Args, Result, bad, duration, flag, number, once, unknown_property, zones_or};

const PLUGIN: &str = "cache";
const PROPERTIES: &[&str] =
    &["denial", "disable", "keepttl", "prefetch", "serve_stale", "serve_stale_policy", "servfail", "success"];
const TTL: &str = "a TTL in seconds, above 0";

/// What one `cache` directive says.
pub type CacheSpec = Policy;

/// Reads the one `cache` of a server block.
pub(crate) fn parse(directives: &[&Directive], own_zones: &[Name]) -> Result<CacheSpec> {
    let directive = once(PLUGIN, directives)?;
    let mut policy = Policy::default();
    let mut words = directive.args.as_slice();
    if let [first, rest @ ..] = words
        && first.text.parse::<i64>().is_ok()
    {
        let max_ttl = number(PLUGIN, first, 1..=MAX_TTL, TTL)?;
        policy.success.max_ttl = max_ttl;
        policy.denial.max_ttl = max_ttl;
        words = rest;
    }
    refuse_duration(words)?;
    policy.zones = zones_or(words, own_zones)?;
    let mut policy_at = None;
    for property in directive.body.iter().flatten() {
        let mut args = Args::new(PLUGIN, property, expected(&property.name.text));
        match property.name.text.as_str() {
            "success" => store(&mut args, &mut policy.success)?,
            "denial" => store(&mut args, &mut policy.denial)?,
            "prefetch" => policy.prefetch = prefetch(&mut args)?,
            "serve_stale" => {
                let prefer_positive = policy.stale.is_some_and(|stale| stale.prefer_positive);
                policy.stale = Some(Stale { prefer_positive, ..serve_stale(&mut args)? });
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
                policy.servfail = duration(PLUGIN, word, SERVFAIL)?;
                if policy.servfail > Policy::MAX_SERVFAIL {
                    return Err(bad(PLUGIN, word, SERVFAIL));
                }
            }
            "disable" => {
                let word = args.required()?;
                let zones = zones_or(args.rest(), &[Name::ROOT])?;
                match word.text.as_str() {
                    "success" => policy.disabled_success.extend(zones),
                    "denial" => policy.disabled_denial.extend(zones),
                    _ => return Err(bad(PLUGIN, word, "`success` or `denial`")),
                }
            }
            "keepttl" => policy.keep_ttl = flag(PLUGIN, property)?,
            _ => return Err(unknown_property(PLUGIN, property, PROPERTIES)),
        }
        args.end()?;
    }
    if let Some(at) = policy_at {
        let rule = "`serve_stale_policy` requires `serve_stale`";
        let stale = policy
            .stale
            .as_mut()
            .ok_or_else(|| Located::new(at, SetupError::Order { plugin: PLUGIN, rule }))?;
        stale.prefer_positive = true;
    }
    Ok(policy)
}

/// `cache 3600s` reads as a zone in CoreDNS and so switches the cache off for everything else, in silence.
fn refuse_duration(words: &[Word]) -> Result<()> {
    match words.iter().find(|word| corefile::go::parse_duration(&word.text).is_ok()) {
        Some(word) => {
            Err(bad(PLUGIN, word, "a zone; the TTL is a bare number of seconds, such as `cache 3600`"))
        }
        None => Ok(()),
    }
}

fn store(args: &mut Args<'_>, store: &mut Store) -> Result<()> {
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

fn serve_stale(args: &mut Args<'_>) -> Result<Stale> {
    let mut stale = Stale::default();
    if let Some(word) = args.optional() {
        stale.window = duration(PLUGIN, word, "a duration such as 1h")?;
    }
    let Some(word) = args.optional() else { return Ok(stale) };
    if word.text.eq_ignore_ascii_case("verify") {
        let timeout =
            args.optional().map(|word| duration(PLUGIN, word, "a duration such as 100ms")).transpose()?;
        stale.mode = Mode::Verify { timeout: timeout.filter(|timeout| !timeout.is_zero()) };
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
