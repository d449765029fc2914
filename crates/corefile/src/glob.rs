//! Finds the files that match the pattern of an `import`.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// Whether the path is a pattern.
pub(crate) fn is_pattern(path: &str) -> bool {
    path.contains(['*', '?', '['])
}

/// Whether the pattern can be searched in bounded time: at most one `*`, one `?`, no set.
pub(crate) fn is_bounded(pattern: &str) -> bool {
    pattern.matches('*').count() <= 1 && pattern.matches('?').count() <= 1 && !pattern.contains('[')
}

/// Returns the files and directories that match `pattern`, sorted within each directory. `*` stands
/// for any characters of one name, `?` for one. A directory that cannot be read holds no match, as
/// in Go.
pub(crate) fn expand(dir: &Path, pattern: &str) -> Vec<PathBuf> {
    let mut found = vec![dir.to_owned()];
    for component in Path::new(pattern).components() {
        let name = component.as_os_str().to_string_lossy();
        if matches!(component, Component::Normal(_)) && is_pattern(&name) {
            found = found.iter().flat_map(|dir| matching_entries(dir, &name)).collect();
        } else {
            found.iter_mut().for_each(|path| path.push(component));
        }
    }
    found.retain(|path| path.symlink_metadata().is_ok());
    found
}

fn matching_entries(dir: &Path, pattern: &str) -> Vec<PathBuf> {
    let pattern: Vec<char> = pattern.chars().collect();
    let list = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    let Ok(entries) = fs::read_dir(list) else { return Vec::new() };
    let mut names: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.file_name())).collect();
    names.retain(|name| matches(&pattern, &name.to_string_lossy().chars().collect::<Vec<_>>()));
    names.sort_unstable();
    names.iter().map(|name| dir.join(name)).collect()
}

fn matches(pattern: &[char], name: &[char]) -> bool {
    // The pattern has at most one `*`, which may match nothing: a pattern that is longer by two
    // characters cannot match. File names are short, which bounds the recursion.
    if pattern.len() > name.len() + 1 {
        return false;
    }
    match (pattern.split_first(), name.split_first()) {
        (None, _) => name.is_empty(),
        (Some(('*', rest)), _) => (0..=name.len()).any(|skipped| matches(rest, &name[skipped..])),
        (Some((wanted, rest)), Some((found, tail))) => {
            (*wanted == '?' || wanted == found) && matches(rest, tail)
        }
        (Some(_), None) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_patterns() {
        let chars = |text: &str| text.chars().collect::<Vec<_>>();
        for (pattern, name, expected) in [
            ("*", "", true),
            ("*", "..data", true),
            ("*.server", "a.server", true),
            ("*.server", ".server", true),
            ("*.server", "a.override", false),
            ("a*z", "az", true),
            ("a*z", "abcz", true),
            ("a*z", "abc", false),
            ("?.conf", "ä.conf", true),
            ("?.conf", ".conf", false),
            ("a?*", "a", false),
            ("a?*", "abc", true),
            ("abc", "ab", false),
        ] {
            assert_eq!(matches(&chars(pattern), &chars(name)), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn only_small_patterns_are_bounded() {
        for (pattern, expected) in [
            ("*.conf", true),
            ("a?*", true),
            ("*/*.conf", false),
            ("??", false),
            ("[a-z]", false),
            ("a]", true),
        ] {
            assert_eq!(is_bounded(pattern), expected, "{pattern}");
        }
    }
}
