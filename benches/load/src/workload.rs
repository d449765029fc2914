//! Queries to send: generated names or those of a file, mixed by weight, and the expected replies.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use wire::{Flags, Name, RType, Rcode};

use crate::judge::Expect;
use crate::names::{Pattern, address_of};
use crate::random::{Random, zipf};

/// One kind of query with its share: `KIND[=WEIGHT]`. The names of each kind, and which server data
/// must contain them, are at the constants of this module.
///
/// | kind | names | must be answered |
/// |---|---|---|
/// | `hosts:N` | N, each as often | the address of the name |
/// | `cached:N` | N, each as often | the address of the name |
/// | `zipf:N:S` | N, rank r in proportion to 1/r^S | the address of the name |
/// | `miss` | each only once | the address of the name |
/// | `nxdomain:N` | N, each as often | NXDOMAIN |
/// | `zones:N` | one in each of N zones | NXDOMAIN |
/// | `whoami` | one | NOERROR |
/// | `file:PATH` | `name [type [rcode [address]]]` a line, in order, again and again | the line's rcode and address |
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// Kind of query.
    pub kind: Kind,
    /// The weight, relative to the sum of all weights. Default 1, min 1, max 1,000,000.
    pub weight: u32,
}

/// See [`Ask`].
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// `hosts:N`.
    Hosts(u32),
    /// `cached:N`.
    Cached(u32),
    /// `zipf:N:S`.
    Zipf(u32, f64),
    /// `miss`.
    Miss,
    /// `nxdomain:N`.
    Absent(u32),
    /// `zones:N`.
    Zones(u32),
    /// `whoami`.
    Whoami,
    /// `file:PATH`.
    File(PathBuf),
}

impl Kind {
    /// Returns the number of different names; `NAMES_MAX` for a file and for `miss`.
    pub fn count(&self) -> u32 {
        match self {
            Self::Hosts(count) | Self::Cached(count) | Self::Zipf(count, _) => *count,
            Self::Absent(count) | Self::Zones(count) => *count,
            Self::Whoami => 1,
            Self::Miss | Self::File(_) => NAMES_MAX,
        }
    }
}

impl FromStr for Ask {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (kind, weight) = match text.rsplit_once('=') {
            Some((kind, weight)) => {
                (kind, weight.parse().ok().filter(|weight| (1..=1_000_000).contains(weight)))
            }
            None => (text, Some(1)),
        };
        let weight = weight.with_context(|| format!("{text:?}: a weight is a number from 1 to 1000000"))?;
        let (word, rest) = kind.split_once(':').unwrap_or((kind, ""));
        let count = |digits: &str| {
            let count = digits.parse().ok().filter(|count| (1..=NAMES_MAX).contains(count));
            count.with_context(|| format!("{text:?}: a count of names is a number from 1 to {NAMES_MAX}"))
        };
        let kind = match word {
            "hosts" => Kind::Hosts(count(rest)?),
            "cached" => Kind::Cached(count(rest)?),
            "nxdomain" => Kind::Absent(count(rest)?),
            "zones" => Kind::Zones(count(rest)?),
            "zipf" => {
                let (names, exponent) = rest.split_once(':').unwrap_or((rest, "1"));
                let exponent = exponent.parse().ok().filter(|exponent| (0.0..=10.0).contains(exponent));
                Kind::Zipf(
                    count(names)?,
                    exponent.with_context(|| format!("{text:?}: S is a number from 0 to 10"))?,
                )
            }
            "file" => Kind::File(rest.into()),
            "miss" if rest.is_empty() => Kind::Miss,
            "whoami" if rest.is_empty() => Kind::Whoami,
            _ => bail!("{text:?}: unknown kind of question"),
        };
        Ok(Self { kind, weight })
    }
}

/// A question drawn from a workload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Asked {
    part: u32,
    number: u32,
}

/// A source of questions. Clones draw the same questions; [`Workload::share`] makes them differ.
#[derive(Clone, Debug)]
pub struct Workload {
    parts: Vec<Part>,
    weights: u32,
    random: Random,
}

#[derive(Clone, Debug)]
struct Part {
    weight: u32,
    names: Names,
    draw: Draw,
    promise: Promise,
}

#[derive(Clone, Debug)]
enum Names {
    Pattern(Pattern),
    Lines(Arc<[Line]>),
}

#[derive(Clone, Debug)]
enum Draw {
    Uniform(u32),
    /// Ranks, and the position of the next one. They are drawn in advance, since drawing one costs
    /// more than a query.
    Ranks(Arc<[u32]>, usize),
    /// Every number once, from the first value to below the second; then again from 0.
    Next(u32, u32),
}

/// The kind of reply that a part of a workload expects.
#[derive(Clone, Copy, Debug)]
enum Promise {
    Rcode(Rcode),
    AddressOfName,
    /// The rcode and address in the file's line.
    OfLine,
    Nothing,
}

#[derive(Clone, Debug)]
struct Line {
    question: Box<[u8]>,
    expect: Expect,
}

impl Workload {
    /// Creates a workload from kinds and weights. `seed` decides the questions and their order; for
    /// `miss` also the first name.
    ///
    /// # Errors
    /// When there is no kind, too many kinds, or an unreadable file.
    pub fn new(asks: &[Ask], seed: u64) -> Result<Self> {
        ensure!((1..=1000).contains(&asks.len()), "one to a thousand kinds of questions are needed");
        let mut random = Random::new(seed);
        let parts = asks.iter().map(|ask| Part::new(ask, &mut random)).collect::<Result<Vec<_>>>()?;
        Ok(Self { weights: parts.iter().map(|part| part.weight).sum(), parts, random })
    }

    /// Creates a workload that draws each name of one kind in order, repeatedly, to fill a cache.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn in_order(kind: &Kind) -> Result<Self> {
        let mut all = Self::new(&[Ask { kind: kind.clone(), weight: 1 }], 0)?;
        if let Draw::Uniform(count) = all.parts[0].draw {
            all.parts[0].draw = Draw::Next(0, count);
        }
        Ok(all)
    }

    /// Makes the workload accept any reply, for servers without names.
    pub fn unjudged(mut self) -> Self {
        for part in &mut self.parts {
            part.promise = Promise::Nothing;
        }
        self
    }

    /// Returns the part of the workload for one of several loads that run one after the other, with
    /// `threads` threads each. Parts differ in order, and in names where no name may repeat.
    pub fn slice(&self, number: usize, slices: usize, threads: usize) -> Self {
        self.share(number, slices * threads.max(1))
    }

    /// Returns the share of one of several threads. Shares differ in order, and in names where no
    /// name may repeat.
    pub fn share(&self, thread: usize, threads: usize) -> Self {
        let mut share = self.clone();
        let (thread, threads) = (thread as u64, threads.max(1) as u64);
        share.random = Random::new(Random::new(thread).draw() ^ share.random.draw());
        for part in &mut share.parts {
            let apart = |bound: usize| (bound as u64 * thread / threads) as usize;
            match &mut part.draw {
                Draw::Uniform(_) => {}
                Draw::Ranks(ranks, at) => *at = apart(ranks.len()),
                Draw::Next(next, end) => *next = (next.wrapping_add(apart(*end as usize) as u32)) % *end,
            }
        }
        share
    }

    /// Draws the next question.
    #[inline]
    pub fn draw(&mut self) -> Asked {
        let mut at = 0;
        if self.parts.len() > 1 {
            let mut ticket = self.random.below(self.weights);
            while let Some(left) = ticket.checked_sub(self.parts[at].weight) {
                ticket = left;
                at += 1;
            }
        }
        let number = match &mut self.parts[at].draw {
            Draw::Uniform(count) => self.random.below(*count),
            Draw::Ranks(ranks, at) => {
                let rank = ranks[*at];
                *at = if *at + 1 == ranks.len() { 0 } else { *at + 1 };
                rank
            }
            Draw::Next(next, end) => {
                let number = *next;
                *next = if number + 1 >= *end { 0 } else { number + 1 };
                number
            }
        };
        Asked { part: at as u32, number }
    }

    /// Appends a query: header with RD set, and the question.
    #[inline]
    pub fn write_query(&self, asked: Asked, id: u16, out: &mut Vec<u8>) {
        out.extend_from_slice(&id.to_be_bytes());
        out.extend_from_slice(&Flags::RD.to_be_bytes());
        out.extend_from_slice(&[0, 1, 0, 0, 0, 0, 0, 0]);
        self.write_question(asked, out);
    }

    /// Appends a question: name, type, class.
    #[inline]
    pub fn write_question(&self, asked: Asked, out: &mut Vec<u8>) {
        match &self.parts[asked.part as usize].names {
            Names::Pattern(pattern) => {
                pattern.write(asked.number, out);
                out.extend_from_slice(A_IN);
            }
            Names::Lines(lines) => out.extend_from_slice(&lines[asked.number as usize].question),
        }
    }

    /// Returns the expected reply to a question written by [`Workload::write_question`].
    #[inline]
    pub fn expect(&self, asked: Asked, question: &[u8]) -> Expect {
        let part = &self.parts[asked.part as usize];
        match (part.promise, &part.names) {
            (Promise::Rcode(rcode), _) => Expect::Rcode(rcode),
            (Promise::AddressOfName, _) => {
                Expect::Address(address_of(&question[..question.len() - A_IN.len()]))
            }
            (Promise::OfLine, Names::Lines(lines)) => lines[asked.number as usize].expect,
            (Promise::OfLine, Names::Pattern(_)) | (Promise::Nothing, _) => Expect::Reply,
        }
    }
}

impl Part {
    fn new(ask: &Ask, random: &mut Random) -> Result<Self> {
        let generated = |pattern, draw, promise| -> Result<Self> {
            Ok(Self { weight: ask.weight, names: Names::Pattern(Pattern::new(pattern)?), draw, promise })
        };
        let absent = Promise::Rcode(Rcode::NXDOMAIN);
        match &ask.kind {
            Kind::Hosts(count) => generated(HOSTS, Draw::Uniform(*count), Promise::AddressOfName),
            Kind::Cached(count) => generated(CACHED, Draw::Uniform(*count), Promise::AddressOfName),
            Kind::Zipf(count, exponent) => {
                let ranks = zipf(*count, *exponent, RANKS, random);
                generated(ZIPF, Draw::Ranks(ranks.into(), 0), Promise::AddressOfName)
            }
            Kind::Miss => {
                generated(MISS, Draw::Next(random.below(NAMES_MAX), NAMES_MAX), Promise::AddressOfName)
            }
            Kind::Absent(count) => generated(ABSENT, Draw::Uniform(*count), absent),
            Kind::Zones(count) => generated(ZONES, Draw::Uniform(*count), absent),
            Kind::Whoami => generated(WHOAMI, Draw::Uniform(1), Promise::Rcode(Rcode::NOERROR)),
            Kind::File(path) => {
                let lines = read_file(path)?;
                let draw = Draw::Next(0, lines.len() as u32);
                Ok(Self {
                    weight: ask.weight,
                    names: Names::Lines(lines.into()),
                    draw,
                    promise: Promise::OfLine,
                })
            }
        }
    }
}

fn read_file(path: &Path) -> Result<Vec<Line>> {
    let size = std::fs::metadata(path).with_context(|| path.display().to_string())?.len();
    ensure!(size <= FILE_BYTES_MAX, "{}: more than {FILE_BYTES_MAX} bytes", path.display());
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    read_lines(&text).with_context(|| path.display().to_string())
}

fn read_lines(text: &str) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    for (number, text) in (1..).zip(text.lines()) {
        let text = text.trim();
        if text.is_empty() || text.starts_with(['#', ';']) {
            continue;
        }
        lines.push(read_line(text).with_context(|| format!("line {number}"))?);
    }
    ensure!(!lines.is_empty(), "no question in it");
    Ok(lines)
}

fn read_line(text: &str) -> Result<Line> {
    let mut words = text.split_whitespace();
    let name = words.next().unwrap_or_default();
    let name = Name::from_text(name).ok().with_context(|| format!("{name:?} is not a name"))?;
    let rtype: RType = match words.next() {
        Some(word) => word.parse().ok().with_context(|| format!("{word:?} is not a type"))?,
        None => RType::A,
    };
    let rcode: Option<Rcode> = match words.next() {
        Some(word) => Some(word.parse().ok().with_context(|| format!("{word:?} is not an rcode"))?),
        None => None,
    };
    let address: Option<Ipv4Addr> = match words.next() {
        Some(word) => Some(word.parse().ok().with_context(|| format!("{word:?} is not an IPv4 address"))?),
        None => None,
    };
    ensure!(words.next().is_none(), "more than name, type, rcode and address");
    let expect = match (rcode, address) {
        (Some(Rcode::NOERROR), Some(address)) => Expect::Address(address),
        (Some(_), Some(_)) => bail!("an address comes with NOERROR only"),
        (Some(rcode), None) => Expect::Rcode(rcode),
        (None, _) => Expect::Reply,
    };
    let question = [name.as_wire(), &rtype.0.to_be_bytes(), &[0, 1]].concat();
    Ok(Line { question: question.into(), expect })
}

/// Names of `hosts:N`; hosts files and zones have them.
pub const HOSTS: &str = "h########.hosts.bench.";
/// Names of `cached:N`; the upstream has them.
pub const CACHED: &str = "c########.cached.bench.";
/// Names of `zipf:N:S`; the upstream has them.
pub const ZIPF: &str = "z########.zipf.bench.";
/// Names of `miss`; the upstream has them.
pub const MISS: &str = "m########.miss.bench.";
/// Names of `nxdomain:N`; no server has them.
pub const ABSENT: &str = "x########.absent.bench.";
/// Names of `zones:N`; no server has them, but the parent of each is a zone.
pub const ZONES: &str = "www.z########.zones.bench.";
/// The name of `whoami`.
pub const WHOAMI: &str = "w#.whoami.bench.";

/// Type A, class IN.
const A_IN: &[u8] = &[0, 1, 0, 1];
/// The number of eight-digit numbers.
const NAMES_MAX: u32 = 100_000_000;
/// Number of ranks drawn in advance (4 MiB), then repeated.
const RANKS: usize = 1 << 20;
const FILE_BYTES_MAX: u64 = 256 << 20;

#[cfg(test)]
mod tests;
