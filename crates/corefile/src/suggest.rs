//! Suggests a known word for a mistyped one.

/// Returns the known word nearest to `word`, for "did you mean"; the first of equally near ones.
/// `None` if more than a third of the letters, or more than three, differ. Ignores letter case.
pub fn nearest<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let word: Vec<char> = lower(word)?;
    let mut best: Option<(usize, &str)> = None;
    for candidate in known {
        let Some(letters) = lower(candidate) else { continue };
        let cut_off = (word.len().max(letters.len()) / 3).clamp(1, MAX_DISTANCE);
        let distance = edit_distance(&word, &letters);
        if distance <= cut_off && best.is_none_or(|(nearest, _)| distance < nearest) {
            best = Some((distance, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

/// Returns the word's letters in lower case; `None` if the word is too long to be compared.
fn lower(word: &str) -> Option<Vec<char>> {
    (word.len() <= MAX_WORD_BYTES).then(|| word.chars().map(|c| c.to_ascii_lowercase()).collect())
}

/// Returns the restricted Damerau-Levenshtein distance: each inserted, missing or wrong letter and
/// each swap of neighbours counts one.
fn edit_distance(from: &[char], to: &[char]) -> usize {
    let mut before_last = Vec::new();
    let mut last: Vec<usize> = (0..=to.len()).collect();
    for (row, a) in from.iter().enumerate() {
        let mut current = vec![row + 1];
        for (column, b) in to.iter().enumerate() {
            let replaced = last[column] + usize::from(a != b);
            let mut distance = replaced.min(last[column + 1] + 1).min(current[column] + 1);
            if row > 0 && column > 0 && *a == to[column - 1] && from[row - 1] == *b {
                let swapped: usize = before_last[column - 1];
                distance = distance.min(swapped + 1);
            }
            current.push(distance);
        }
        before_last = std::mem::replace(&mut last, current);
    }
    last[to.len()]
}

const MAX_DISTANCE: usize = 3;
const MAX_WORD_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistyped_words() {
        let known = ["forward", "hosts", "cache", "health", "log", "loop", "max_concurrent", "reload"];
        for (word, expected) in [
            ("foward", Some("forward")),
            ("froward", Some("forward")),
            ("Forward", Some("forward")),
            ("host", Some("hosts")),
            ("cahce", Some("cache")),
            ("lop", Some("log")),
            ("maxconcurent", Some("max_concurrent")),
            ("relaod", Some("reload")),
            ("proxy", None),
            ("", None),
            ("xy", None),
            (&"f".repeat(1 << 20), None),
        ] {
            assert_eq!(nearest(word, known), expected, "{word:.20}");
        }
    }

    #[test]
    fn distance_counts_a_swap_once() {
        let letters = |word: &str| word.chars().collect::<Vec<_>>();
        for (from, to, expected) in
            [("", "", 0), ("", "abc", 3), ("ab", "ba", 1), ("ca", "abc", 3), ("kitten", "sitting", 3)]
        {
            assert_eq!(edit_distance(&letters(from), &letters(to)), expected, "{from} {to}");
        }
    }
}
