//! Plugins that act around the sources: on the query before them, and on the response after them.
//!
//! ```text
//! client query -> on_query -> on_query -> sources, cache, upstreams
//! response <- on_response <- on_response <-'
//! ```
//! Middleware of a block acts in plugin.cfg's order; most blocks have none. A query that needs
//! subqueries is evaluated again from the start each time a subquery is answered: middleware must
//! return the same result each time and keeps no state except counters.

use std::net::IpAddr;
use std::sync::Arc;

use metrics::counters::PerThread;
use wire::{
    Class, Flags, Message, Name, OPTION_CLIENT_SUBNET, OptionBytes, Query, RType, UpstreamOverrides, options,
    push_option,
};

use crate::QueryContext;
use crate::explain::Explanation;
use crate::failure::Failure;

/// A plugin that acts around the sources.
pub trait Middleware: std::fmt::Debug + Send + Sync {
    /// Changes the query, answers it, or lets it pass.
    fn on_query<'s>(&'s self, effective: &mut EffectiveQuery<'_>, context: &QueryContext<'_>) -> OnQuery<'s>;

    /// Whether the plugin answers queries of classes other than IN, so that the addresses of its
    /// block accept such queries.
    fn takes_other_classes(&self) -> bool {
        false
    }

    /// Returns the effect on a query, for `explain`. Without a `client`, a query ends here only if
    /// it does so for every client. `effective` is changed as in `on_query`.
    fn explain(&self, effective: &mut EffectiveQuery<'_>, client: Option<IpAddr>) -> Explanation;
}

/// The result of [`Middleware::on_query`].
#[derive(Debug)]
pub enum OnQuery<'s> {
    /// The query continues; the response is not changed.
    Pass,
    /// The query continues, and the hook receives its response.
    Hook(Box<dyn ResponseHook + 's>),
    /// The response; the hooks of middleware that ran before receive it.
    Answer(Box<Message>),
    /// The query fails, with the reason.
    Fail(Failure),
    /// The client gets no reply.
    Drop,
    /// The result depends on subqueries.
    NeedsSubquery(Box<dyn NeedsSubquery<'s> + 's>),
}

/// The rest of [`Middleware::on_query`], run when subqueries are answered.
pub trait NeedsSubquery<'s>: std::fmt::Debug {
    /// Returns the result; `None` while a subquery is unanswered: the whole query is evaluated
    /// again later.
    fn resume(
        &self,
        effective: &mut EffectiveQuery<'_>,
        context: &QueryContext<'_>,
        subqueries: &mut dyn Subqueries,
    ) -> Option<OnQuery<'s>>;
}

/// Changes a response.
pub trait ResponseHook: std::fmt::Debug {
    /// Whether the hook also receives failures, which are messages without records.
    fn sees_failures(&self) -> bool {
        false
    }

    /// Changes the response. Returns [`HookResult::Waiting`] while one of its `subqueries` is
    /// unanswered, as `rewrite/cname.rs` does. A hook that adds records, or changes more of a
    /// record than its TTL, clears AD.
    fn on_response(
        &self,
        effective: &EffectiveQuery<'_>,
        context: &QueryContext<'_>,
        response: &mut Message,
        subqueries: &mut dyn Subqueries,
    ) -> HookResult;
}

/// The result of [`ResponseHook::on_response`].
#[derive(Debug)]
pub enum HookResult {
    /// The response is complete for this hook.
    Done,
    /// A subquery is unanswered; the whole query is evaluated again when the answer arrives.
    Waiting,
    /// The query fails, with the reason, unless it has failed already.
    Failed(Failure),
}

/// Issues subqueries. A caller that needs several issues all of them before it waits, so that they
/// run at the same time.
pub trait Subqueries {
    /// Returns the server's answer to the client for `name`, `rtype` and `class`, routed to the
    /// name's server block and through all plugins of that block, `acl` included. `None` if an
    /// upstream must be queried first: the caller then returns [`HookResult::Waiting`].
    fn resolve(&mut self, name: &Name, rtype: RType, class: Class) -> Option<SubqueryResult>;

    /// Returns the answer of this block's plugins after the caller for a name tried in place of the
    /// query's name, with the type, options and flags of `effective`. The query is not routed
    /// again. A failure becomes the client's failure. The caller bounds the number of names.
    fn resolve_below(&mut self, effective: &EffectiveQuery<'_>, name: &Name) -> Option<SubqueryResult>;

    /// Whether this many more bytes of names may be compared with patterns. If not, the caller
    /// omits the remaining records.
    fn may_compare(&mut self, octets: usize) -> bool;

    /// Increments `counter` when the client's query is answered.
    fn count_when_answered(&mut self, counter: &Arc<PerThread>);
}

/// The result of a subquery. A failure is never an empty NOERROR.
#[derive(Debug, Clone)]
pub enum SubqueryResult {
    /// An answer of any rcode.
    Answer(Box<Message>),
    /// No answer, with the reason.
    Failed(Failure),
}

impl SubqueryResult {
    /// Adds the Extended DNS Errors of the subquery (RFC 8914) to the options of the response, so
    /// that the client gets the reason why the target of an alias fails.
    pub fn extend_ede(&self, response: &mut OptionBytes) {
        match self {
            Self::Answer(answer) => response.extend_ede(&answer.options),
            Self::Failed(failure) => {
                if let Some(ede) = failure.ede() {
                    response.add_ede(ede);
                }
            }
        }
    }
}

/// The query that sources, cache and upstreams get: the client's, changed by middleware.
///
/// The effective query is the key of cache entries and of queries in flight. The reply has the
/// client's question.
pub struct EffectiveQuery<'q> {
    client: &'q Query<'q>,
    /// The server address that received the query, as `dns://ADDRESS:PORT`.
    pub server: &'q str,
    /// Whether metrics count the query: a client's query, not a subquery, evaluated for the first
    /// time.
    pub counts: bool,
    /// Whether the name is the target of an alias or of a subquery. Such a name is complete: no
    /// client has appended a search domain.
    pub is_target: bool,
    /// Whether middleware made the name from the value of an environment variable; `explain` then
    /// does not print the name.
    pub hides_name: bool,
    /// The question as in [`Query::question`], if it differs from the client's.
    question: Option<Box<[u8]>>,
    name: Name,
    rtype: RType,
    class: Class,
    flags: Flags,
    /// Whether middleware cleared RD.
    clears_rd: bool,
    /// EDNS options for upstreams besides client subnets, as in an OPT record.
    options: Vec<u8>,
    /// Codes of the options in `options`; upstreams get no options of other codes.
    known: Vec<u16>,
    subnet: UpstreamSubnet,
    /// The encoded overrides for upstreams, as in [`UpstreamOverrides`].
    added: Vec<u8>,
}

/// The client subnet that upstreams get.
#[derive(Debug, PartialEq, Eq)]
enum UpstreamSubnet {
    /// The subnet that the client sent, if any.
    Own,
    None,
    Written(Vec<u8>),
}

impl<'q> EffectiveQuery<'q> {
    /// Starts with the client's query; a subquery keeps the changes that middleware has made.
    pub fn new(client: &'q Query<'q>, server: &'q str, counts: bool) -> Self {
        let Query { name, rtype, class, overrides, .. } = *client;
        let mut effective = Self {
            client,
            server,
            counts,
            is_target: false,
            hides_name: false,
            question: None,
            name,
            rtype,
            class,
            flags: own_flags(client),
            clears_rd: false,
            options: Vec::new(),
            known: Vec::new(),
            subnet: UpstreamSubnet::Own,
            added: Vec::new(),
        };
        if !overrides.is_empty() {
            effective.take_over(overrides);
        }
        effective
    }

    #[cold]
    fn take_over(&mut self, added: UpstreamOverrides<'_>) {
        self.flags.0 |= added.flags();
        self.clears_rd = added.clears_rd();
        self.added = added.octets().into();
        for (code, value) in added.options() {
            if code == OPTION_CLIENT_SUBNET {
                self.subnet = UpstreamSubnet::Written(value.into());
            } else {
                self.known.push(code);
                push_option(&mut self.options, code, value);
            }
        }
    }

    /// Returns the client's query.
    pub fn client_query(&self) -> &'q Query<'q> {
        self.client
    }

    /// Returns the name.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Returns the type.
    pub fn rtype(&self) -> RType {
        self.rtype
    }

    /// Returns the class.
    pub fn class(&self) -> Class {
        self.class
    }

    /// Returns the header flags for upstreams: RD, AA and RA; only RD is copied from the client.
    pub fn flags(&self) -> Flags {
        self.flags
    }

    /// Whether the effective query equals the client's query.
    pub fn is_unchanged(&self) -> bool {
        self.question.is_none()
            && self.flags == own_flags(self.client)
            && self.added.is_empty()
            && self.subnet == UpstreamSubnet::Own
    }

    /// Whether the question differs from the client's.
    pub fn has_other_question(&self) -> bool {
        self.question.is_some()
    }

    /// Changes the name.
    pub fn set_name(&mut self, name: Name) {
        self.name = name;
        self.spell();
    }

    /// Changes the type.
    pub fn set_rtype(&mut self, rtype: RType) {
        self.rtype = rtype;
        self.spell();
    }

    /// Changes the class.
    pub fn set_class(&mut self, class: Class) {
        self.class = class;
        self.spell();
    }

    /// Sets and clears the header flags RD, AA and RA for upstreams.
    pub fn change_flags(&mut self, set: u16, clear: u16) {
        self.flags.0 = (self.flags.0 | set) & !clear;
        self.clears_rd = (self.clears_rd || clear & Flags::RD != 0) && set & Flags::RD == 0;
        self.write();
    }

    /// Returns the name as text, in the client's case if the question is the client's.
    pub fn spelled(&self) -> String {
        let mut text = self.name.to_string().into_bytes();
        let question = self.question.as_deref().unwrap_or(self.client.question);
        let (mut at, mut label) = (0, 0);
        for octet in question.iter().take(self.name.as_wire().len().saturating_sub(1)) {
            let Some(place) = text.get_mut(at) else { break };
            match (label, *place) {
                (0, _) => {
                    label = *octet;
                    // Every label but the first has a dot before it.
                    at += usize::from(at > 0);
                    continue;
                }
                (_, b'\\') => at += if text.get(at + 1).is_some_and(u8::is_ascii_digit) { 4 } else { 2 },
                _ => {
                    *place = *octet;
                    at += 1;
                }
            }
            label -= 1;
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Returns the client subnet that upstreams get.
    pub fn subnet(&self) -> Option<&[u8]> {
        match &self.subnet {
            UpstreamSubnet::Own => self.client.edns.and_then(|edns| edns.client_subnet),
            UpstreamSubnet::None => None,
            UpstreamSubnet::Written(value) => Some(value),
        }
    }

    /// Sets the client subnet for upstreams; `None` for no subnet.
    pub fn set_subnet(&mut self, value: Option<Vec<u8>>) {
        self.subnet = value.map_or(UpstreamSubnet::None, UpstreamSubnet::Written);
        self.write();
    }

    /// Returns the first option with this code that upstreams get. The first call with a code
    /// copies the client's options of that code; the client's other options apply to one hop only.
    pub fn option(&mut self, code: u16) -> Option<&[u8]> {
        if !self.known.contains(&code) {
            self.known.push(code);
            let sent = self.client.edns.map_or(&[][..], |edns| edns.options);
            for (_, value) in options(sent).flatten().filter(|(other, _)| *other == code) {
                if self.options.len() + 4 + value.len() <= MOST_OPTIONS {
                    push_option(&mut self.options, code, value);
                }
            }
            self.write();
        }
        let mut all = options(&self.options).flatten();
        all.find(|(other, _)| *other == code).map(|(_, value)| value)
    }

    /// Replaces the first option with this code for upstreams, or adds one. Returns false and
    /// changes nothing if the options would be longer than `MOST_OPTIONS`.
    pub fn set_option(&mut self, code: u16, value: &[u8]) -> bool {
        self.option(code);
        let (mut with, mut there) = (Vec::new(), false);
        for (other, old) in options(&self.options).flatten() {
            let is_it = other == code && !there;
            push_option(&mut with, other, if is_it { value } else { old });
            there |= is_it;
        }
        if !there {
            push_option(&mut with, code, value);
        }
        let fits = with.len() <= MOST_OPTIONS;
        if fits {
            self.options = with;
            self.write();
        }
        fits
    }

    /// Removes all options with this code for upstreams.
    pub fn remove_options(&mut self, code: u16) {
        self.option(code);
        let mut rest = Vec::new();
        for (other, value) in options(&self.options).flatten().filter(|(other, _)| *other != code) {
            push_option(&mut rest, other, value);
        }
        self.options = rest;
        self.write();
    }

    /// Returns the options for upstreams, except a client subnet.
    pub fn options(&self) -> impl Iterator<Item = (u16, &[u8])> {
        options(&self.options).flatten()
    }

    /// Returns the query for sources, cache and upstreams.
    pub fn query(&self) -> Query<'_> {
        let mut query = *self.client;
        query.question = self.question.as_deref().unwrap_or(self.client.question);
        (query.name, query.rtype, query.class, query.flags) = (self.name, self.rtype, self.class, self.flags);
        query.overrides = UpstreamOverrides::new(&self.added);
        if self.subnet != UpstreamSubnet::Own {
            // A rule may add a subnet to the query of a client without EDNS.
            let plain = || wire::Edns {
                udp_size: 512,
                version: 0,
                dnssec_ok: false,
                nsid: false,
                client_subnet: None,
                options: &[],
            };
            query.edns.get_or_insert_with(plain).client_subnet = self.subnet();
        }
        query
    }

    fn write(&mut self) {
        let mut all = self.options.clone();
        if let UpstreamSubnet::Written(value) = &self.subnet {
            push_option(&mut all, OPTION_CLIENT_SUBNET, value);
        }
        let no_rd = if self.clears_rd { UpstreamOverrides::NO_RD } else { 0 };
        self.added = UpstreamOverrides::encode(self.flags.0 | no_rd, &all);
    }

    fn spell(&mut self) {
        let same =
            (self.name, self.rtype, self.class) == (self.client.name, self.client.rtype, self.client.class);
        self.question = (!same).then(|| question(&self.name, self.rtype, self.class).into());
    }
}

/// Encodes a question in wire form.
pub fn question(name: &Name, rtype: RType, class: Class) -> Vec<u8> {
    let mut question = name.as_wire().to_vec();
    question.extend_from_slice(&rtype.0.to_be_bytes());
    question.extend_from_slice(&class.0.to_be_bytes());
    question
}

/// Returns the client's header flags except AA and RA, which have no meaning in a query.
fn own_flags(client: &Query<'_>) -> Flags {
    Flags(client.flags.0 & !(Flags::AA | Flags::RA))
}

/// Maximum bytes of options in a query to upstreams.
const MOST_OPTIONS: usize = 4_096;
