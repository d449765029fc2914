//! Environment variables inside a word.

use std::cell::Cell;

/// Returns the value of an environment variable, `None` if it is unset.
pub(crate) type Env<'e> = &'e dyn Fn(&str) -> Option<String>;

/// The error for a text that exceeds its bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooLong;

/// A word with its variables replaced.
pub(crate) struct Substituted {
    pub(crate) text: String,
    /// The first variable that is unset and has no default.
    pub(crate) unset: Option<String>,
    /// Whether the text contains a value of the environment.
    pub(crate) has_value: bool,
}

/// Replaces `{%NAME%}`, then `{$NAME}` and `{$NAME:default}`; `None` if the word has no reference.
///
/// References inside a variable's value are not replaced. CoreDNS replaces them, and hangs on a
/// value that references itself.
///
/// # Errors
/// The result exceeds `max_bytes`.
pub(crate) fn substitute(text: &str, env: Env<'_>, max_bytes: usize) -> Result<Option<Substituted>, TooLong> {
    if !text.contains("{$") && !text.contains("{%") {
        return Ok(None);
    }
    let has_value = Cell::new(false);
    let env = |name: &str| {
        let value = env(name);
        has_value.set(has_value.get() || value.as_ref().is_some_and(|value| !value.is_empty()));
        value
    };
    let mut unset = None;
    let mut wanted = |name: &str| {
        let value = env(name);
        if value.is_none() && unset.is_none() {
            unset = Some(name.to_owned());
        }
        value.unwrap_or_default()
    };
    let text = replace(text, "{%", "%}", max_bytes, &mut wanted)?;
    let text = replace(&text, "{$", "}", max_bytes, &mut |reference| match reference.split_once(':') {
        Some((name, default)) => env(name).unwrap_or_else(|| default.to_owned()),
        None => wanted(reference),
    })?;
    Ok(Some(Substituted { text, unset, has_value: has_value.get() }))
}

/// Replaces references between `open` and `close`. An empty or unterminated reference ends the
/// search: the rest of the word stays unchanged.
fn replace(
    text: &str,
    open: &str,
    close: &str,
    max_bytes: usize,
    value: &mut dyn FnMut(&str) -> String,
) -> Result<String, TooLong> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, reference, after)) = next_reference(rest, open, close) {
        out.push_str(before);
        out.push_str(&value(reference));
        if out.len() > max_bytes {
            return Err(TooLong);
        }
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

fn next_reference<'t>(text: &'t str, open: &str, close: &str) -> Option<(&'t str, &'t str, &'t str)> {
    let (before, rest) = text.split_once(open)?;
    let (reference, after) = rest.split_once(close)?;
    (!reference.is_empty()).then_some((before, reference, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(name: &str) -> Option<String> {
        match name {
            "A" => Some("1.1.1.1".to_owned()),
            "BLANKS" => Some("a b".to_owned()),
            "EMPTY" => Some(String::new()),
            "SELF" => Some("{$SELF}".to_owned()),
            _ => None,
        }
    }

    #[test]
    fn variable_references() {
        for (text, expected) in [
            ("plain", "plain"),
            ("{$A}", "1.1.1.1"),
            ("{%A%}", "1.1.1.1"),
            ("x{$A}:{%A%}y", "x1.1.1.1:1.1.1.1y"),
            ("{$BLANKS}", "a b"),
            ("{$UNSET}", ""),
            ("{$UNSET:9.9.9.9}", "9.9.9.9"),
            ("{$UNSET:a:b}", "a:b"),
            ("{$UNSET:}", ""),
            ("{$A:9.9.9.9}", "1.1.1.1"),
            ("{$EMPTY:9.9.9.9}", ""),
            ("{$}", "{$}"),
            ("{$}{$A}", "{$}{$A}"),
            ("{%}", "{%}"),
            ("{%A}", "{%A}"),
            ("{$A", "{$A"),
            ("{$A$}", ""),
            ("{{$x}}", "{}"),
            ("{{ .Name }} {$A}", "{{ .Name }} 1.1.1.1"),
            ("{$SELF}", "{$SELF}"),
        ] {
            let got = substitute(text, &env, 100).unwrap();
            assert_eq!(got.as_ref().map_or(text, |got| &got.text), expected, "{text}");
        }
    }

    #[test]
    fn first_unset_variable() {
        for (text, unset) in [
            ("{$A}", None),
            ("{$EMPTY}", None),
            ("{$UNSET:}", None),
            ("{$UNSET}", Some("UNSET")),
            ("{$A}{%ONE%}{$TWO}", Some("ONE")),
        ] {
            let got = substitute(text, &env, 100).unwrap().and_then(|got| got.unset);
            assert_eq!(got.as_deref(), unset, "{text}");
        }
    }

    #[test]
    fn environment_values_are_noticed() {
        for (text, has_value) in [
            ("{$A}", true),
            ("{%A%}", true),
            ("{$UNSET}{$A}", true),
            ("{$EMPTY}", false),
            ("{$UNSET:default}", false),
        ] {
            let got = substitute(text, &env, 100).unwrap().is_some_and(|got| got.has_value);
            assert_eq!(got, has_value, "{text}");
        }
    }

    #[test]
    fn growth_ends_at_the_bound() {
        assert!(substitute(&"{$A}".repeat(100), &env, 50).is_err());
    }
}
