//! The directive `cache` as plain data.

use std::time::Duration;

use wire::Name;

/// One `cache` directive, one field for each property of CoreDNS's `cache`; [`CacheSpec::default`]
/// is a bare `cache` line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheSpec {
    /// `cache .. [ZONES]`: names outside of all of these are neither stored nor looked up. Empty:
    /// every name.
    pub zones: Vec<Name>,
    /// The zones as text, for metrics and status, if one of them has the value of an environment
    /// variable.
    pub shown_zones: Option<String>,
    /// `success CAPACITY [TTL] [MINTTL]`; maximum TTL 3600 s by default.
    pub success: StoreLimits,
    /// `denial CAPACITY [TTL] [MINTTL]`; maximum TTL 1800 s by default.
    pub denial: StoreLimits,
    /// `servfail DURATION`: how long SERVFAIL and NOTIMP are stored. Default 5 s, max
    /// [`CacheSpec::MAX_SERVFAIL`], 0 disables.
    pub servfail: Duration,
    /// `prefetch`: popular answers are refreshed before they expire.
    pub prefetch: Option<Prefetch>,
    /// `serve_stale`: expired answers are served.
    pub stale: Option<ServeStale>,
    /// `keepttl`: records are sent with the TTL they were stored with.
    pub keep_ttl: bool,
    /// `disable success [ZONES]`: positive answers to names below these are not stored; the root
    /// disables them all.
    pub disabled_success: Vec<Name>,
    /// `disable denial [ZONES]`: the same for denials, including SERVFAIL and NOTIMP.
    pub disabled_denial: Vec<Name>,
}

/// Limits for one kind of answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreLimits {
    /// Maximum number of answers, exact. Default 9984, 0 for none.
    pub capacity: usize,
    /// Maximum TTL of a record in seconds. Wins over a greater `min_ttl`.
    pub max_ttl: u32,
    /// Minimum TTL of a record in seconds. Default 5.
    pub min_ttl: u32,
}

/// `prefetch AMOUNT [DURATION [PERCENTAGE%]]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefetch {
    /// Lookups that make an answer popular; at most 65,535; 0 disables prefetching.
    pub amount: u32,
    /// A pause of this length resets the count. Default 1 min.
    pub duration: Duration,
    /// The answer is refreshed when this percentage of its life remains, at the latest 1 s before
    /// expiry. Default 10, min 10, max 90.
    pub percentage: u8,
}

/// `serve_stale [DURATION] [immediate|verify [VERIFY_TIMEOUT]] [RESPONSE_TTL] [FAILURE_RECHECK]` and
/// `serve_stale_policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServeStale {
    /// How long after expiry an answer may be served. Default 1 h.
    pub window: Duration,
    /// Whether the client is answered before or after the upstream is queried. Default
    /// [`StaleMode::Immediate`].
    pub mode: StaleMode,
    /// RESPONSE_TTL in seconds. `None`, the default: 0 while the upstream answers, [`STALE_TTL`]
    /// after it failed.
    pub ttl: Option<u32>,
    /// FAILURE_RECHECK: pause after a failed refresh of this answer; max 5 min. `None`, the
    /// default: 1 s, doubled with each failure up to 30 s. 0: every query tries.
    pub recheck: Option<Duration>,
    /// `serve_stale_policy prefer_positive`: a positive answer that may be served is replaced by
    /// positive answers only.
    pub prefer_positive: bool,
}

/// When an expired answer is refreshed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StaleMode {
    /// The client gets the expired answer, then the upstream is queried.
    Immediate,
    /// The upstream is queried first.
    Verify {
        /// How long the client waits. `None`, the default, is [`VERIFY_WAIT`].
        timeout: Option<Duration>,
    },
}

/// TTL in seconds of an expired answer after the upstream has failed (RFC 8767, section 4).
pub const STALE_TTL: u32 = 30;

/// Wait of `verify` without VERIFY_TIMEOUT: the client response timer that RFC 8767, section 5,
/// recommends.
pub const VERIFY_WAIT: Duration = Duration::from_millis(1800);

/// CAPACITY if it is not given; CoreDNS's default.
pub const DEFAULT_CAPACITY: usize = 9984;

impl CacheSpec {
    /// The longest `servfail`: a server failure must not be cached for longer (RFC 2308, section
    /// 7.1).
    pub const MAX_SERVFAIL: Duration = Duration::from_secs(300);

    /// Whether the block caches answers to `name`.
    #[inline]
    pub fn covers(&self, name: &Name) -> bool {
        self.zones.is_empty() || self.zones.iter().any(|zone| name.is_within(zone))
    }

    /// Returns the limits for this kind.
    #[inline]
    pub fn store(&self, kind: AnswerKind) -> &StoreLimits {
        match kind {
            AnswerKind::Success => &self.success,
            AnswerKind::Denial => &self.denial,
        }
    }

    /// Whether answers of this kind to `name` may be stored.
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
            shown_zones: None,
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

/// Success or denial: the label `type` of CoreDNS's cache metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AnswerKind {
    /// The queried records.
    Success,
    /// NXDOMAIN or NODATA; also SERVFAIL and NOTIMP.
    Denial,
}

impl AnswerKind {
    /// Both kinds, by discriminant.
    pub const ALL: [Self; 2] = [Self::Success, Self::Denial];

    /// Returns `success` or `denial`.
    pub fn label(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Denial => "denial",
        }
    }
}
