//! In which steps one text becomes another in the same file, so that no line ever stands there in part, wherever it ends.
//! (A single read that lasts over several steps combines them.) Pure: opens no file.
//!
//! ```text
//! old -> old, new -> comment, new -> new, new -> new
//! ```
//!
//! A line comes and goes by its first byte, which is `#` as long as the rest is written; every write but those of single bytes
//! is of comments, over comments or behind the end. How much of one step a reader sees, and where a crash cuts it, does not
//! matter then. The new lines stand behind the old ones until they have come to their place, so that none is missing meanwhile.

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// Bytes over those that are there, or behind them.
    Write { at: usize, bytes: Vec<u8> },
    /// To the disk, before what follows.
    Sync,
    /// What stands behind goes.
    Cut { length: usize },
}

/// The steps from `old` to `new`. Without a `spare` copy, for which there may be no room, lines are missing for a moment.
pub(super) fn plan(old: &[u8], new: &[u8], spare: bool) -> Vec<Change> {
    let same = old.iter().zip(new).take_while(|(old, new)| old == new).count();
    let from = new[..same].iter().rposition(|&byte| byte == b'\n').map_or(0, |newline| newline + 1);
    let (was, is) = (&old[from..], &new[from..]);
    let both = !was.is_empty() && !is.is_empty();
    let spare = (spare && both).then_some(old.len().max(new.len()) + 1);
    let mut plan = Vec::new();
    if let Some(spare) = spare {
        plan.push(Change::Write { at: old.len(), bytes: vec![b'\n'; spare - old.len()] });
        reveal(&mut plan, spare, is);
        plan.push(Change::Sync);
    }
    hide(&mut plan, from, was);
    if both {
        // One comment of all that was there.
        let end = spare.unwrap_or(old.len());
        let mut comment = vec![b'#'; end - from];
        // Within the new lines no line may begin but theirs.
        if end >= new.len() {
            comment.pop();
            comment.push(b'\n');
        }
        plan.push(Change::Write { at: from, bytes: comment });
    }
    reveal(&mut plan, from, is);
    plan.push(Change::Sync);
    if let Some(spare) = spare {
        hide(&mut plan, spare, is);
    }
    if spare.is_some() || new.len() < old.len() {
        plan.extend([Change::Cut { length: new.len() }, Change::Sync]);
    }
    plan
}

/// How long the file is at most meanwhile.
pub(super) fn most(plan: &[Change]) -> usize {
    let end = |change: &Change| match change {
        Change::Write { at, bytes } => at + bytes.len(),
        Change::Sync | Change::Cut { .. } => 0,
    };
    plan.iter().map(end).max().unwrap_or_default()
}

/// Lines that come as comments, and then the first byte of each.
fn reveal(plan: &mut Vec<Change>, at: usize, text: &[u8]) {
    if text.is_empty() {
        return;
    }
    let mut comments = text.to_vec();
    starts(text).for_each(|start| comments[start] = b'#');
    plan.push(Change::Write { at, bytes: comments });
    let shown = starts(text).filter(|start| text[*start] != b'#');
    plan.extend(shown.map(|start| Change::Write { at: at + start, bytes: vec![text[start]] }));
}

/// Comments of the lines that stand there.
fn hide(plan: &mut Vec<Change>, at: usize, text: &[u8]) {
    let hidden = starts(text).filter(|start| text[*start] != b'#');
    plan.extend(hidden.map(|start| Change::Write { at: at + start, bytes: vec![b'#'] }));
}

/// Where lines begin.
fn starts(text: &[u8]) -> impl Iterator<Item = usize> {
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

    /// Whether every line is one of the texts', or a comment; a last line without end may have a comment behind it.
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
        fn wherever_it_is_cut_every_line_is_whole_and_none_is_missing(
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
                        // Some bytes have come and some have not, and the file has grown by some of them.
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
                    Change::Cut { length } => now.truncate(*length),
                }
                prop_assert!(now.len() <= most(&plan).max(old.len()));
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
