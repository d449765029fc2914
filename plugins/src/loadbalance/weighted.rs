//! `loadbalance weighted FILE`: addresses with weights, by name.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use files::{FileRead, ReadError, ShownPath};
use rand::Rng;
use wire::{Name, Rr};

use super::address;
use logging::Logger;
use plugin::reload_state::Persistent;

/// The current weights of one file.
#[derive(Debug)]
pub(super) struct Weights {
    file: ShownPath,
    /// Interval between checks; zero if the file is read only once.
    reload: Duration,
    current: ArcSwap<Table>,
}

type Table = HashMap<Name, HashMap<IpAddr, u8>>;

/// All weight files of a server block.
#[derive(Debug, Default)]
pub(super) struct WeightFiles(Mutex<Vec<Followed>>);

#[derive(Debug)]
struct Followed {
    weights: Weak<Weights>,
    look: FileRead<Result<Vec<u8>, ReadError>>,
    text: Option<Vec<u8>>,
    /// The last logged problem of the file.
    failed: Option<String>,
    next: Option<Instant>,
}

impl Weights {
    /// Draws one of the addresses by weight and puts it first. An address that is not in the file
    /// has weight 1.
    pub(super) fn draw(&self, addresses: &mut [Rr], random: &mut impl Rng) {
        if addresses.len() < 2 {
            return;
        }
        let table = self.current.load();
        let weight = |rr: &Rr| {
            let of_name = table.get(&rr.name()).zip(address(rr));
            of_name.and_then(|(known, ip)| known.get(&ip)).map_or(1, |weight| u32::from(*weight))
        };
        let weights: Vec<u32> = addresses.iter().map(weight).collect();
        let sum = weights.iter().sum();
        let mut left = random.random_range(0..sum);
        let drawn = weights.iter().position(|weight| match left.checked_sub(*weight) {
            Some(rest) => {
                left = rest;
                false
            }
            None => true,
        });
        addresses.swap(0, drawn.unwrap_or(0));
    }
}

impl Weights {
    /// Logs why the file cannot be used, and which weights are used instead.
    fn log_error(&self, error: &str, logger: &Logger) {
        let instead = match self.current.load().is_empty() {
            true => "every address weighs 1",
            false => "the weights stay",
        };
        let file = self.file.display();
        logger.error(Some("loadbalance"), &format!("cannot use the weight file {file}: {error}; {instead}"));
    }
}

impl WeightFiles {
    /// Returns the weights of `file`, which is read at the next check.
    pub(super) fn follow(&self, file: &ShownPath, reload: Duration) -> Arc<Weights> {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |weights: &Arc<Weights>| weights.file == *file && weights.reload == reload;
        if let Some(weights) = files.iter().filter_map(|followed| followed.weights.upgrade()).find(same) {
            return weights;
        }
        // A file that is in use already shares its last valid weights.
        let of_file = |weights: &Arc<Weights>| weights.file == *file;
        let known = files.iter().filter_map(|followed| followed.weights.upgrade()).find(of_file);
        let current = known.map(|known| known.current.load_full()).unwrap_or_default();
        let weights = Arc::new(Weights { file: file.clone(), reload, current: ArcSwap::from(current) });
        let weak = Arc::downgrade(&weights);
        let next = Some(clock::now());
        files.push(Followed { weights: weak, look: FileRead::default(), text: None, failed: None, next });
        weights
    }
}

impl Persistent for WeightFiles {
    fn check(&self, logger: &Logger) {
        let files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for weights in files.iter().filter_map(|followed| followed.weights.upgrade()) {
            let read = files::read_with_timeout(&weights.file, LARGEST).map_err(|error| error.to_string());
            if let Err(error) = read.and_then(|text| parse(&String::from_utf8_lossy(&text))) {
                weights.log_error(&error, logger);
            }
        }
    }

    /// Checks files that are due. A file that cannot be read, or has a bad line, changes nothing;
    /// each cause is logged once.
    fn look(&self, now: Instant, logger: &Logger) -> Option<Instant> {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        files.retain(|followed| followed.weights.strong_count() > 0);
        for followed in files.iter_mut().filter(|followed| followed.next.is_some_and(|next| next <= now)) {
            let Some(weights) = followed.weights.upgrade() else { continue };
            let file = weights.file.clone();
            followed.look.start(&weights.file, now, move || files::read(&file, LARGEST));
            if let Some(outcome) = followed.look.poll(now, Duration::ZERO) {
                let read = outcome.and_then(|read| read).map_err(|error| error.to_string());
                followed.apply(read, &weights, logger);
            }
            followed.next = match followed.look.is_pending() {
                true => Some(followed.look.next_poll(now)),
                false => (!weights.reload.is_zero()).then(|| now + weights.reload.max(LEAST_RELOAD)),
            };
        }
        files.iter().filter_map(|followed| followed.next).min()
    }
}

impl Followed {
    fn apply(&mut self, read: Result<Vec<u8>, String>, weights: &Weights, logger: &Logger) {
        let file = weights.file.display();
        let outcome = match read {
            Ok(text) if self.text.as_ref() == Some(&text) => {
                self.failed = None;
                return;
            }
            Ok(text) => {
                let table = parse(&String::from_utf8_lossy(&text));
                self.text = Some(text);
                table
            }
            Err(error) => {
                // The next readable text is applied, even if it equals the last one.
                self.text = None;
                Err(error)
            }
        };
        match outcome {
            Ok(table) => {
                self.failed = None;
                weights.current.store(Arc::new(table));
                logger.info(Some("loadbalance"), &format!("Successfully reloaded weight file {file}"));
            }
            Err(error) if self.failed.as_ref() != Some(&error) => {
                weights.log_error(&error, logger);
                self.failed = Some(error);
            }
            Err(_) => {}
        }
    }
}

/// Parses lines `NAME`, each followed by lines `ADDRESS WEIGHT`, 1 to 255; `#` begins a comment
/// line. Errors quote no words of the file, which may not be a file of weights.
fn parse(text: &str) -> Result<Table, String> {
    let mut table = Table::default();
    let mut name = None;
    for (line, text) in (1..).zip(text.lines()) {
        let text = text.trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        match text.split_whitespace().collect::<Vec<_>>()[..] {
            [word] => {
                if word.parse::<IpAddr>().is_ok() {
                    return Err(format!("line {line}: an address has no weight; expected ADDRESS WEIGHT"));
                }
                let owner =
                    Name::from_text(word).map_err(|error| format!("line {line}: no name: {error}"))?;
                table.entry(owner).or_default();
                name = Some(owner);
            }
            [address, weight] => {
                let ip = address.parse().map_err(|_| format!("line {line}: expected ADDRESS WEIGHT"))?;
                let weight = weight.parse().ok().filter(|weight| *weight > 0);
                let weight = weight.ok_or_else(|| format!("line {line}: a weight is 1 to 255"))?;
                let owner = name.ok_or_else(|| format!("line {line}: no name stands before this address"))?;
                table.entry(owner).or_default().insert(ip, weight);
            }
            _ => return Err(format!("line {line}: expected NAME, or ADDRESS WEIGHT")),
        }
    }
    Ok(table)
}

/// Maximum size of a file, in bytes.
const LARGEST: u64 = 1 << 20;
/// Minimum interval of checks, regardless of `reload`.
const LEAST_RELOAD: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_file_or_bad_line() {
        let table = parse("# weights\nwww.example.org\n192.0.2.1 3\n 2001:db8::1\t1\n\nWWW.example.org.\n192.0.2.2 255\nb\n").unwrap();
        let www = &table[&Name::from_text("www.example.org").unwrap()];
        assert_eq!(www.len(), 3);
        assert_eq!(www[&"192.0.2.2".parse::<IpAddr>().unwrap()], 255);
        for (text, error) in [
            ("192.0.2.1 3\n", "line 1: no name stands before this address"),
            ("a\n192.0.2.1\n", "line 2: an address has no weight; expected ADDRESS WEIGHT"),
            ("a\n\n192.0.2.1 0\n", "line 3: a weight is 1 to 255"),
            ("a\n192.0.2.1 256\n", "line 2: a weight is 1 to 255"),
            ("a\n192.0.2 1\n", "line 2: expected ADDRESS WEIGHT"),
            ("a b c\n", "line 1: expected NAME, or ADDRESS WEIGHT"),
        ] {
            assert_eq!(parse(text), Err(error.to_owned()), "{text:?}");
        }
    }
}
