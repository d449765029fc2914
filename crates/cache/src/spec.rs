//! What a server block says of its cache: the `cache` directive as plain data.

use std::time::Duration;

use wire::Name;

/// What one `cache` directive says, one field for each property of CoreDNS's `cache`; [`CacheSpec::default`] is a bare `cache` line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheSpec {
    /// `cache .. [ZONES]`: names outside of all of these are neither kept nor looked up. Empty: every name.
    pub zones: Vec<Name>,
    /// `success CAPACITY [TTL] [MINTTL]`; maximum TTL 3600 s by default.
    pub success: StoreLimits,
    /// `denial CAPACITY [TTL] [MINTTL]`; maximum TTL 1800 s by default.
    pub denial: StoreLimits,
    /// `servfail DURATION`: how long SERVFAIL and NOTIMP are kept. Default 5 s, 0 for not at all; what is longer than
    /// [`CacheSpec::MAX_SERVFAIL`] counts as that.
    pub servfail: Duration,
    /// `prefetch`: popular answers are fetched anew before they expire.
    pub prefetch: Option<Prefetch>,
    /// `serve_stale`: expired answers are served for a while.
    pub stale: Option<ServeStale>,
    /// `keepttl`: records are handed out with the TTL they were kept with.
    pub keep_ttl: bool,
    /// `disable success [ZONES]`: positive answers to names below these are not kept; the root disables them all.
    pub disabled_success: Vec<Name>,
    /// `disable denial [ZONES]`: the same for denials, SERVFAIL and NOTIMP included.
    pub disabled_denial: Vec<Name>,
}

/// One of the two stores of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreLimits {
    /// How many answers are kept at most: honoured as written, to the entry. Default 9984, 0 for none.
    pub capacity: usize,
    /// Longest TTL of a record, in seconds. The maximum wins over a greater `min_ttl`.
    pub max_ttl: u32,
    /// Shortest TTL of a record, in seconds. Default 5.
    pub min_ttl: u32,
}

/// `prefetch AMOUNT [DURATION [PERCENTAGE%]]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefetch {
    /// An answer is popular once it was asked for this often; what is over 65,535 counts as that; 0 switches
    /// prefetching off.
    pub amount: u32,
    /// A pause of this length or more starts the count anew. Default 1 min.
    pub duration: Duration,
    /// It is fetched once this share of its lifetime or less remains, at the latest 1 s before the end. Default 10,
    /// min 10, max 90.
    pub percentage: u8,
}

/// `serve_stale [DURATION] [immediate|verify [VERIFY_TIMEOUT]] [RESPONSE_TTL] [FAILURE_RECHECK]` and
/// `serve_stale_policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServeStale {
    /// How long after its end an answer may still be served. Default 1 h.
    pub window: Duration,
    /// Whether the upstream is asked before or after the client is answered. Default [`StaleMode::Immediate`].
    pub mode: StaleMode,
    /// RESPONSE_TTL in seconds. `None`, the default: 0 while the upstream answers and [`STALE_TTL`] once it failed.
    pub ttl: Option<u32>,
    /// FAILURE_RECHECK, how long after a failed refresh nobody tries again for this answer; max 5 min. `None`, the
    /// default: 1 s, doubled by each further failure up to 30 s. 0 lets every query try.
    pub recheck: Option<Duration>,
    /// `serve_stale_policy prefer_positive`: only an answer displaces a positive answer while that may be served.
    pub prefer_positive: bool,
}

/// When an expired answer is refreshed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StaleMode {
    /// The client gets the expired answer at once, then the upstream is asked.
    Immediate,
    /// The upstream is asked first.
    Verify {
        /// How long the client waits for it. `None`, the default, is [`VERIFY_WAIT`].
        timeout: Option<Duration>,
    },
}

/// TTL, in seconds, of an expired answer once the upstream has failed (RFC 8767, section 4).
pub const STALE_TTL: u32 = 30;

/// How long a `verify` without VERIFY_TIMEOUT waits: the client response timer that RFC 8767, section 5, recommends.
pub const VERIFY_WAIT: Duration = Duration::from_millis(1800);

/// Entries of a store whose CAPACITY is not written, as many as CoreDNS has.
pub const DEFAULT_CAPACITY: usize = 9984;

impl CacheSpec {
    /// RFC 2308, section 7.1: a server failure must not be kept for longer.
    pub const MAX_SERVFAIL: Duration = Duration::from_secs(300);

    /// Whether the block's cache is for `name` at all.
    #[inline]
    pub fn covers(&self, name: &Name) -> bool {
        self.zones.is_empty() || self.zones.iter().any(|zone| name.is_within(zone))
    }

    /// The store of that kind.
    #[inline]
    pub fn store(&self, kind: AnswerKind) -> &StoreLimits {
        match kind {
            AnswerKind::Success => &self.success,
            AnswerKind::Denial => &self.denial,
        }
    }

    /// Whether answers of that kind are wanted for `name`.
    #[inline]
    pub(crate) fn keeps(&self, kind: AnswerKind, name: &Name) -> bool {
        let disabled = match kind {
            AnswerKind::Success => &self.disabled_success,
            AnswerKind::Denial => &self.disabled_denial,
        };
        !disabled.iter().any(|zone| name.is_within(zone))
    }
}

impl Default for CacheSpec {
    fn default() -> Self {
        Self {
            zones: Vec::new(),
            success: StoreLimits { capacity: DEFAULT_CAPACITY, max_ttl: 3600, min_ttl: 5 },
            denial: StoreLimits { capacity: DEFAULT_CAPACITY, max_ttl: 1800, min_ttl: 5 },
            servfail: Duration::from_secs(5),
            prefetch: None,
            stale: None,
            keep_ttl: false,
            disabled_success: Vec::new(),
            disabled_denial: Vec::new(),
        }
    }
}

impl Default for Prefetch {
    fn default() -> Self {
        Self { amount: 1, duration: Duration::from_secs(60), percentage: 10 }
    }
}

impl Default for ServeStale {
    fn default() -> Self {
        Self {
            window: Duration::from_secs(3600),
            mode: StaleMode::Immediate,
            ttl: None,
            recheck: None,
            prefer_positive: false,
        }
    }
}

/// The two kinds of answers, and the `type` label of CoreDNS's cache metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AnswerKind {
    /// The records asked for.
    Success,
    /// NXDOMAIN or NODATA; SERVFAIL and NOTIMP count here too.
    Denial,
}

impl AnswerKind {
    /// Both, in the order of their numbers.
    pub const ALL: [Self; 2] = [Self::Success, Self::Denial];

    /// `success` or `denial`.
    pub fn label(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Denial => "denial",
        }
    }
}
