//! Refreshed names: host names, or names of lists (`@LIST`).

use thiserror::Error;
use wire::Name;

/// Why a word is no name or list.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NameError {
    /// Not a host name.
    #[error("{0:?} is not a host name: letters, digits, `-` and `_` in labels of 1 to 63")]
    Host(String),
    /// `@` with an unknown list.
    #[error("there is no list {0:?}; there are {lists}", lists = lists())]
    List(String),
    /// Too many names.
    #[error("more than {MAX_NAMES} names")]
    Many,
}

/// Adds the names of `word`, a host name or `@LIST`, to `names`, each once.
///
/// # Errors
/// [`NameError`].
pub fn add(names: &mut Vec<Name>, word: &str) -> Result<(), NameError> {
    match word.strip_prefix('@') {
        Some(list) => {
            let mut lines = lines().skip_while(|line| line.strip_prefix('@') != Some(list));
            lines.next().ok_or_else(|| NameError::List(word.to_owned()))?;
            lines.take_while(|line| !line.starts_with('@')).try_for_each(|name| push(names, name))
        }
        None => push(names, word),
    }
}

fn push(names: &mut Vec<Name>, word: &str) -> Result<(), NameError> {
    let label =
        |label: &[u8]| label.iter().all(|&byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    let name = Name::from_text(word)
        .ok()
        .filter(|name| *name != Name::ROOT && name.labels().all(label))
        // An IPv4 address is a syntactically valid name.
        .filter(|_| word.parse::<std::net::IpAddr>().is_err())
        .ok_or_else(|| NameError::Host(word.to_owned()))?;
    if names.contains(&name) {
        return Ok(());
    }
    if names.len() == MAX_NAMES {
        return Err(NameError::Many);
    }
    names.push(name);
    Ok(())
}

fn lists() -> String {
    lines().filter(|line| line.starts_with('@')).collect::<Vec<_>>().join(", ")
}

fn lines() -> impl Iterator<Item = &'static str> {
    LISTS.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// Maximum number of names of one hosts file.
pub const MAX_NAMES: usize = 10_000;

/// The lists: each a line `@LIST`, followed by its names.
const LISTS: &str = include_str!("../data/clouds");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_lists() {
        let names = |words: &[&str]| {
            let mut names = Vec::new();
            words.iter().try_for_each(|word| add(&mut names, word)).map(|()| names.len())
        };
        assert_eq!(names(&["a.example", "A.Example.", "b"]), Ok(2));
        assert_eq!(names(&["@azure-public", "mcr.microsoft.com"]), Ok(7));
        assert_eq!(names(&["@azure-usgov", "@azure-china"]), Ok(10));
        for word in ["", ".", "a..b", "a b", "a/b", "*.a", "192.0.2.1", "::1", "a\\.b", "a#b", "ä.example"] {
            assert_eq!(names(&[word]), Err(NameError::Host(word.to_owned())));
        }
        for list in lines().filter(|line| line.starts_with('@')) {
            assert!(names(&[list]).is_ok_and(|count| count > 0), "every line of {list} is a host name");
        }
        assert_eq!(names(&["@"]), Err(NameError::List("@".to_owned())));
        let error = names(&["@azure"]).unwrap_err().to_string();
        assert_eq!(error, "there is no list \"@azure\"; there are @azure-public, @azure-usgov, @azure-china");
    }
}
