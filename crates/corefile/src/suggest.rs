//! Suggests a known word for a mistyped one.

/// Returns the known word nearest to `word`, for "did you mean"; the first of equally near ones.
///
/// The distance is the optimal string alignment distance: each inserted, missing or wrong letter
/// and each swap of neighbours counts one; letter case is ignored. `None` if the distance exceeds a
/// third of the longer word's bytes or three.
pub fn nearest<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let word = lower(word)?;
    known
        .into_iter()
        .filter_map(|candidate| {
            let letters = lower(candidate)?;
            let cut_off = (word.len().max(letters.len()) / 3).clamp(1, MAX_DISTANCE);
            let distance = strsim::osa_distance(&word, &letters);
            (distance <= cut_off).then_some((distance, candidate))
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Returns the word in lower case; `None` if it is too long to be compared: the cost is quadratic.
fn lower(word: &str) -> Option<String> {
    (word.len() <= MAX_WORD_BYTES).then(|| word.to_ascii_lowercase())
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
            ("aolg", None),
            ("proxy", None),
            ("", None),
            ("xy", None),
            (&"f".repeat(1 << 20), None),
        ] {
            assert_eq!(nearest(word, known), expected, "{word:.20}");
        }
    }
}
