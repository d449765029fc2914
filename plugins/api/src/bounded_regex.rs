//! Regular expressions of Go's syntax; the worst-case cost for a name is bounded before
//! compilation.

use regex::{Regex, RegexBuilder};
use regex_syntax::hir::{Class, Hir, HirKind};

/// Compiles a regular expression of bounded size and cost. The time to match a name grows with
/// both.
///
/// # Errors
/// The reason why the expression cannot be used.
pub fn bounded_regex(text: &str) -> Result<Regex, String> {
    if text.len() > LONGEST {
        return Err(format!("it has more than {LONGEST} bytes"));
    }
    // If this fails to parse, `build` below fails too, and its error is returned.
    if let Ok(hir) = regex_syntax::parse(text) {
        within_cost(&hir)?;
    }
    let built = RegexBuilder::new(text).dfa_size_limit(MOST_STATES).build();
    built.map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => "it repeats too much; repeat less, or fewer characters".to_owned(),
        error => {
            let text = error.to_string();
            text.lines().last().unwrap_or_default().trim().trim_start_matches("error: ").to_owned()
        }
    })
}

/// Checks the cost. If a pattern has too many states for a table, the engine simulates it: for each
/// byte of a name it visits every possible place in the pattern and copies the matches of all
/// groups.
fn within_cost(hir: &Hir) -> Result<(), String> {
    let cost = cost(hir);
    if cost <= MOST_COST {
        return Ok(());
    }
    let remedy = if groups(hir) > 1 { ", or write (?:...) for groups that nothing uses" } else { "" };
    Err(format!(
        "its length with each repeat written out, times its groups, is {cost}, and {MOST_COST} at most; repeat less{remedy}"
    ))
}

fn cost(hir: &Hir) -> u64 {
    places(hir).saturating_mul(groups(hir).max(1))
}

fn groups(hir: &Hir) -> u64 {
    wide(hir.properties().explicit_captures_len())
}

/// Returns the number of characters and assertions, with every counted repeat written out.
fn places(hir: &Hir) -> u64 {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) | HirKind::Class(Class::Bytes(_)) => 1,
        // Each byte of a character is a state.
        HirKind::Class(Class::Unicode(class)) => 1 + wide(class.ranges().len()) / RANGES,
        HirKind::Literal(literal) => wide(literal.0.len()),
        HirKind::Repetition(repeat) => {
            let times = repeat.max.unwrap_or(repeat.min).max(1);
            places(&repeat.sub).saturating_mul(times.into())
        }
        HirKind::Capture(group) => places(&group.sub).saturating_add(1),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => {
            parts.iter().map(places).fold(0, u64::saturating_add)
        }
    }
}

fn wide(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// Maximum length of a pattern in bytes, as in CoreDNS.
const LONGEST: usize = 10_000;
/// The cost of the longest pattern without counted repeats and with one group. The most expensive pattern
/// within it takes some 100 ms for a name of 255 octets; without a bound it would be seconds.
const MOST_COST: u64 = LONGEST as u64;
/// Number of ranges in a character class that count as one more place: `\w` counts as eight.
const RANGES: u64 = 100;
/// Bytes of states that a pattern caches in each worker, for each direction of reading. Clients
/// choose the states by their names: the engine's default of 2 MiB would allow 4 MiB per pattern
/// and worker.
const MOST_STATES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_is_length_times_groups() {
        for (text, expected) in [
            (".*", 1),
            ("abc", 3),
            ("^[a-z]+[.]$", 4),
            ("^(a|bc)d{3}", 1 + 4 + 3),
            ("(a{10})(b{10})", 2 * 22),
            (r"\w", 8),
            (r"^\S{1,63}[.]x[.]$", 2 + 63 + 3),
            ("(?:(?:ab){10}){100,}", 2_000),
            ("(?:(?:(?:a{1000}){1000}){1000}){1000}", 1_000_000_000_000),
            ("(?:(?:(?:(?:(?:(?:(?:a{1000}){1000}){1000}){1000}){1000}){1000}){1000}){1000}", u64::MAX),
        ] {
            assert_eq!(cost(&regex_syntax::parse(text).unwrap()), expected, "{text}");
        }
    }

    #[test]
    fn expensive_patterns_are_refused() {
        let names: String = (0..400).map(|n| format!("host-{n:04}[.]example[.]|")).collect();
        for text in [
            &format!("^({names}x)$"),
            &format!("^({})", "a".repeat(LONGEST - 3)),
            &format!("a{{{MOST_COST}}}"),
            r"^([^.]{1,63})[.]([^.]{1,63})[.]([^.]{1,63})[.]([^.]{1,63})[.]$",
            r"^(\w{1,63})[.](\w{1,63})[.](\w{1,63})[.]$",
            r"^(\d{1,3})[.](\d{1,3})[.](\d{1,3})[.](\d{1,3})[.]in-addr[.]arpa[.]$",
            r"(?i)^[a-z0-9-]{1,63}[.]x[.]$",
        ] {
            assert!(bounded_regex(text).is_ok(), "{text:.60}");
        }
        for (text, why) in [
            (format!("a{{{}}}", MOST_COST + 1), "is 10001, and 10000 at most; repeat less"),
            ("(5)?".repeat(999), "or write (?:...) for groups that nothing uses"),
            (format!("{}[a-z]{{2000}}", "(5)?".repeat(9)), "is 18162, and"),
            ("(?:(?:a{1000}){1000}){1000}".to_owned(), "10000 at most"),
            ("a".repeat(LONGEST + 1), "it has more than 10000 bytes"),
            ("(".to_owned(), "unclosed group"),
            (r"\w{1000}".to_owned(), "it repeats too much"),
        ] {
            let error = bounded_regex(&text).expect_err(why);
            assert!(error.contains(why), "{error}");
        }
    }
}
