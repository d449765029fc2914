//! Plans the writes that turn one text into another in the same file, so that after each write,
//! even a partial one, no line is incomplete. (A single read that lasts over several steps may
//! combine them.) Pure: opens no file.
//!
//! ```text
//! old -> old, new -> comment, new -> new, new -> new
//! ```
//!
//! A line is hidden and shown by its first byte, which is `#` while the rest is written. Every
//! longer write consists of comments, over comments or past the end, so that it does not matter how
//! much of it a reader sees or a crash cuts off. A spare copy of the new lines past the end stays
//! until they are in place, so that none is missing in between.

/// One step of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// Write bytes at an offset, over existing ones or past the end.
    Write { at: usize, bytes: Vec<u8> },
    /// Sync before the next step.
    Sync,
    /// Truncate the file.
    Truncate { length: usize },
}

/// Returns the steps from `old` to `new`. Without a `spare` copy, for which the disk may lack
/// space, lines are missing for a short time.
pub(super) fn plan(old: &[u8], new: &[u8], spare: bool) -> Vec<Change> {
    let same = old.iter().zip(new).take_while(|(old, new)| old == new).count();
    let from = new[..same].iter().rposition(|&byte| byte == b'\n').map_or(0, |newline| newline + 1);
    let (was, is) = (&old[from..], &new[from..]);
    let both = !was.is_empty() && !is.is_empty();
    let spare = (spare && both).then_some(old.len().max(new.len()) + 1);
    let mut plan = Vec::new();
    if let Some(spare) = spare {
        plan.push(Change::Write { at: old.len(), bytes: vec![b'\n'; spare - old.len()] });
        show(&mut plan, spare, is);
        plan.push(Change::Sync);
    }
    hide(&mut plan, from, was);
    if both {
        // Writes one comment over all old lines, which are hidden by now.
        let end = spare.unwrap_or(old.len());
        let mut comment = vec![b'#'; end - from];
        // A comment that ends within the new lines has no newline, since no other line may begin
        // there.
        if end >= new.len() {
            comment.pop();
            comment.push(b'\n');
        }
        plan.push(Change::Write { at: from, bytes: comment });
    }
    show(&mut plan, from, is);
    plan.push(Change::Sync);
    if let Some(spare) = spare {
        hide(&mut plan, spare, is);
    }
    if spare.is_some() || new.len() < old.len() {
        plan.extend([Change::Truncate { length: new.len() }, Change::Sync]);
    }
    plan
}

/// Returns the maximum length of the file during the plan.
pub(super) fn max_length(plan: &[Change]) -> usize {
    let end = |change: &Change| match change {
        Change::Write { at, bytes } => at + bytes.len(),
        Change::Sync | Change::Truncate { .. } => 0,
    };
    plan.iter().map(end).max().unwrap_or_default()
}

/// Writes lines as comments, then the first byte of each.
fn show(plan: &mut Vec<Change>, at: usize, text: &[u8]) {
    if text.is_empty() {
        return;
    }
    let mut comments = text.to_vec();
    line_starts(text).for_each(|start| comments[start] = b'#');
    plan.push(Change::Write { at, bytes: comments });
    let shown = line_starts(text).filter(|start| text[*start] != b'#');
    plan.extend(shown.map(|start| Change::Write { at: at + start, bytes: vec![text[start]] }));
}

/// Turns existing lines into comments.
fn hide(plan: &mut Vec<Change>, at: usize, text: &[u8]) {
    let hidden = line_starts(text).filter(|start| text[*start] != b'#');
    plan.extend(hidden.map(|start| Change::Write { at: at + start, bytes: vec![b'#'] }));
}

/// Returns the offsets of line starts.
fn line_starts(text: &[u8]) -> impl Iterator<Item = usize> {
    text.split_inclusive(|&byte| byte == b'\n').scan(0, |next, line| {
        let start = *next;
        *next += line.len();
        Some(start)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::Index;

    fn text() -> impl Strategy<Value = Vec<u8>> {
        let line = prop_oneof![
            Just("127.0.0.1 localhost"),
            Just(""),
            Just("\r"),
            Just("# comment"),
            Just("10.96.0.1 a.n.svc a.n.svc.x # ours"),
            Just("10.96.0.22 a.n.svc a.n.svc.x # ours"),
            Just("fd00::1 b.n.svc b.n.svc.x # ours"),
            Just("x"),
        ];
        (vec(line, 0..7), any::<bool>()).prop_map(|(lines, ended)| {
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            let end = if ended || text.is_empty() { text.len() } else { text.len() - 1 };
            text.as_bytes()[..end].to_vec()
        })
    }

    fn lines(text: &[u8]) -> Vec<&[u8]> {
        text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).collect()
    }

    /// Whether every line is a line of one of the two texts, or a comment; a comment may directly
    /// follow a last line without newline.
    fn is_whole(found: &[u8], texts: [&[u8]; 2]) -> bool {
        let known: Vec<&[u8]> = texts.into_iter().flat_map(lines).collect();
        let rests: Vec<&[u8]> =
            texts.into_iter().filter_map(|text| text.rsplit(|&byte| byte == b'\n').next()).collect();
        lines(found).into_iter().all(|line| {
            let is_rest = |rest: &&[u8]| line.strip_prefix(*rest).is_some_and(|tail| tail.starts_with(b"#"));
            line.starts_with(b"#") || known.contains(&line) || rests.iter().any(is_rest)
        })
    }

    proptest! {
        #[test]
        fn lines_are_complete_after_each_write(
            old in text(),
            new in text(),
            spare in any::<bool>(),
            written in vec(any::<bool>(), 64),
            end in any::<Index>(),
        ) {
            let mut now = old.clone();
            let plan = plan(&old, &new, spare);
            for change in &plan {
                let before = now.clone();
                match change {
                    Change::Write { at, bytes } => {
                        prop_assert!(*at <= now.len(), "no hole");
                        // A partial write: any subset of the bytes over existing ones, and any
                        // number past the end.
                        let over = bytes.len().min(now.len() - at);
                        let grown = over + end.index(bytes.len() - over + 1);
                        for (index, byte) in bytes[..grown].iter().enumerate() {
                            if index >= over {
                                now.push(*byte);
                            } else if written[index % written.len()] {
                                now[at + index] = *byte;
                            }
                        }
                        prop_assert!(is_whole(&now, [&old, &new]), "{:?}", String::from_utf8_lossy(&now));
                        now = before;
                        now.resize(now.len().max(at + bytes.len()), 0);
                        now[*at..at + bytes.len()].copy_from_slice(bytes);
                    }
                    Change::Sync => {}
                    Change::Truncate { length } => now.truncate(*length),
                }
                prop_assert!(now.len() <= max_length(&plan).max(old.len()));
                prop_assert!(is_whole(&now, [&old, &new]), "{:?}", String::from_utf8_lossy(&now));
                let there = lines(&now);
                let stays = |line: &&[u8]| {
                    !lines(&new).contains(line) || there.iter().any(|found| found.starts_with(line))
                };
                prop_assert!(!spare || lines(&old).iter().all(stays), "{:?}", String::from_utf8_lossy(&now));
            }
            prop_assert_eq!(now, new);
        }
    }
}
