//! Plugins that act around the sources: on the way in on what is sought, on the way back on what is told.
//!
//! ```text
//! asked -> step -> step -> sources, cache, upstreams
//!    told <- back <- back <-'
//! ```
//! A block has them in plugin.cfg's order, and most blocks have none. What a step does for one query it does again, from
//! the start, each time more is known: it must come to the same, and keeps nothing but counters.

use std::net::IpAddr;
use std::sync::Arc;

use metrics::counters::PerThread;
use wire::{
    Class, Flags, Message, Name, OPTION_CLIENT_SUBNET, OptionBytes, Query, RType, UpstreamOverrides, options,
    push_option,
};

use crate::QueryContext;
use crate::explained::Explained;
use crate::failure::Failure;

/// A plugin that acts around the sources.
pub trait Step: std::fmt::Debug + Send + Sync {
    /// On the way in: changes what is sought, ends the query, or lets it pass.
    fn inward<'s>(&'s self, sought: &mut Sought<'_>, context: &QueryContext<'_>) -> Inward<'s>;

    /// Whether it answers queries of other classes than IN, so that the address of its block takes
    /// them.
    fn takes_other_classes(&self) -> bool {
        false
    }

    /// What the step does with such a query, for `explain`: it ends only where it does so whoever the `client` is that is not
    /// known. It changes what is sought as it would for a client.
    fn explain(&self, sought: &mut Sought<'_>, client: Option<IpAddr>) -> Explained;
}

/// What became of a query on its way in.
#[derive(Debug)]
pub enum Inward<'s> {
    /// It goes on; on the way back nothing is to be done.
    Pass,
    /// It goes on, and its answer comes by again.
    Back(Box<dyn Back + 's>),
    /// It is answered here; steps above see the answer on the way back.
    Answer(Box<Message>),
    /// It has no answer, and why.
    Fail(Failure),
    /// Nobody is answered.
    Silence,
    /// That depends on what others would answer.
    Needs(Box<dyn Needs<'s> + 's>),
}

/// What a step does on the way in once it knows what others would answer.
pub trait Needs<'s>: std::fmt::Debug {
    /// Goes on; `None` where a wish is not known yet: the whole query comes again when it is.
    fn go_on(
        &self,
        sought: &mut Sought<'_>,
        context: &QueryContext<'_>,
        wishes: &mut dyn Wishes,
    ) -> Option<Inward<'s>>;
}

/// What a step does with an answer on the way back.
pub trait Back: std::fmt::Debug {
    /// Whether it acts on failures, too, which are messages without records.
    fn sees_failures(&self) -> bool {
        false
    }

    /// Changes the answer; what others would answer comes from `wishes`, and where that is still to come it says
    /// [`Outward::Waits`], as `rewrite/cname.rs` does. Whoever adds records, or changes more of one than its TTL, clears AD.
    fn back(
        &self,
        sought: &Sought<'_>,
        context: &QueryContext<'_>,
        told: &mut Message,
        wishes: &mut dyn Wishes,
    ) -> Outward;
}

/// What became of an answer on its way back through a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outward {
    /// It goes on.
    Done,
    /// A wish is not known yet: the whole query comes again when it is.
    Waits,
}

/// Answers that an answer needs. Who needs several wishes for all of them before it waits: they are asked for at once.
pub trait Wishes {
    /// What the server answers to the client for `name`, `rtype` and `class`: routed, and through the whole way of the
    /// block that it leads to. What is forbidden to the client is forbidden to its wishes. `None` where an upstream must
    /// be asked first: then say [`Outward::Waits`].
    fn wish(&mut self, name: &Name, rtype: RType, class: Class) -> Option<Wish>;

    /// What this block has for a name that is tried in place of the one sought, below the step that wishes: not routed
    /// again, with the type, options and flags of `sought`. It is no other name, and why it fails is why the client has no
    /// answer. Whoever tries names bounds how many.
    fn candidate(&mut self, sought: &Sought<'_>, name: &Name) -> Option<Wish>;

    /// Whether so many more octets of names may be compared with patterns. Who may not leaves out the records that are left.
    fn may_compare(&mut self, octets: usize) -> bool;

    /// Counts one once the client is told what comes of this.
    fn count_when_told(&mut self, counter: &Arc<PerThread>);
}

/// What a wish came to. One that failed is never an empty NOERROR.
#[derive(Debug, Clone)]
pub enum Wish {
    /// An answer of whatever rcode.
    Answer(Box<Message>),
    /// None, and why.
    Failed(Failure),
}

impl Wish {
    /// Adds to the options of an answer the Extended DNS Errors of what was wished for (RFC 8914): a client that an alias leads
    /// to a name is told why that name fails as if it had asked for it itself.
    pub fn tell_why(&self, told: &mut OptionBytes) {
        match self {
            Self::Answer(answer) => told.extend_ede(&answer.options),
            Self::Failed(failure) => {
                if let Some(ede) = failure.ede() {
                    told.add_ede(ede);
                }
            }
        }
    }
}

/// What is sought for a client's query: at first what the client asked.
///
/// Sources answer it, cache and flights are keyed by it, and upstreams are sent it. What the client asked is echoed to it.
pub struct Sought<'q> {
    asked: &'q Query<'q>,
    /// The server that was asked, as `dns://ADDRESS:PORT`.
    pub server: &'q str,
    /// Whether it is a client's query, seen for the first time: what comes again, or is an answer's need, is not counted.
    pub counts: bool,
    /// Whether an alias or a wish led to it. Such a name is whole: no client has made it by adding a search domain to another.
    pub is_target: bool,
    /// As [`Query::question`], where it is another than the client's.
    question: Option<Box<[u8]>>,
    name: Name,
    rtype: RType,
    class: Class,
    flags: Flags,
    /// Whether RD was cleared here.
    clears_rd: bool,
    /// EDNS options for upstreams besides client subnets, as in an OPT record.
    options: Vec<u8>,
    /// Codes of which `options` has what upstreams get; of others they get nothing.
    known: Vec<u16>,
    subnet: UpstreamSubnet,
    /// All that is for upstreams alone, as [`UpstreamOverrides`] has it.
    added: Vec<u8>,
}

/// Which client subnet upstreams get.
#[derive(Debug, PartialEq, Eq)]
enum UpstreamSubnet {
    /// The client's own, if it sent one.
    Own,
    None,
    Written(Vec<u8>),
}

impl<'q> Sought<'q> {
    /// What was asked, as it came; with what was added to it, where it comes from a step above.
    pub fn new(asked: &'q Query<'q>, server: &'q str, counts: bool) -> Self {
        let Query { name, rtype, class, overrides, .. } = *asked;
        let mut sought = Self {
            asked,
            server,
            counts,
            is_target: false,
            question: None,
            name,
            rtype,
            class,
            flags: own_flags(asked),
            clears_rd: false,
            options: Vec::new(),
            known: Vec::new(),
            subnet: UpstreamSubnet::Own,
            added: Vec::new(),
        };
        if !overrides.is_empty() {
            sought.take_over(overrides);
        }
        sought
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

    /// What the client asked.
    pub fn asked(&self) -> &'q Query<'q> {
        self.asked
    }

    /// The name sought.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The type sought.
    pub fn rtype(&self) -> RType {
        self.rtype
    }

    /// The class sought.
    pub fn class(&self) -> Class {
        self.class
    }

    /// The header flags that an upstream gets: RD, AA and RA count. Of the client's own it is RD alone.
    pub fn flags(&self) -> Flags {
        self.flags
    }

    /// Whether it is what the client asked.
    pub fn is_as_asked(&self) -> bool {
        self.question.is_none()
            && self.flags == own_flags(self.asked)
            && self.added.is_empty()
            && self.subnet == UpstreamSubnet::Own
    }

    /// Whether another question than the client's is sought.
    pub fn is_another_question(&self) -> bool {
        self.question.is_some()
    }

    /// Seeks another name.
    pub fn set_name(&mut self, name: Name) {
        self.name = name;
        self.spell();
    }

    /// Seeks another type.
    pub fn set_rtype(&mut self, rtype: RType) {
        self.rtype = rtype;
        self.spell();
    }

    /// Seeks another class.
    pub fn set_class(&mut self, class: Class) {
        self.class = class;
        self.spell();
    }

    /// Gives the upstream other header flags: some of RD, AA and RA set, others cleared.
    pub fn change_flags(&mut self, set: u16, clear: u16) {
        self.flags.0 = (self.flags.0 | set) & !clear;
        self.clears_rd = (self.clears_rd || clear & Flags::RD != 0) && set & Flags::RD == 0;
        self.write();
    }

    /// The name sought as text, in the client's spelling where it is what the client asked.
    pub fn spelled(&self) -> String {
        let mut text = self.name.to_string().into_bytes();
        let question = self.question.as_deref().unwrap_or(self.asked.question);
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

    /// The client subnet that upstreams get.
    pub fn subnet(&self) -> Option<&[u8]> {
        match &self.subnet {
            UpstreamSubnet::Own => self.asked.edns.and_then(|edns| edns.client_subnet),
            UpstreamSubnet::None => None,
            UpstreamSubnet::Written(value) => Some(value),
        }
    }

    /// Gives upstreams another client subnet, or none.
    pub fn set_subnet(&mut self, value: Option<Vec<u8>>) {
        self.subnet = value.map_or(UpstreamSubnet::None, UpstreamSubnet::Written);
        self.write();
    }

    /// The first option of that code that upstreams get. From the first question after a code on they get the client's own
    /// option of it; all others of the client concern one hop only.
    pub fn option(&mut self, code: u16) -> Option<&[u8]> {
        if !self.known.contains(&code) {
            self.known.push(code);
            let sent = self.asked.edns.map_or(&[][..], |edns| edns.options);
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

    /// Gives upstreams an option in place of the first of its code, or one more; false, and nothing changed, where there
    /// is no room for it.
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

    /// Gives upstreams no option of that code.
    pub fn remove_options(&mut self, code: u16) {
        self.option(code);
        let mut rest = Vec::new();
        for (other, value) in options(&self.options).flatten().filter(|(other, _)| *other != code) {
            push_option(&mut rest, other, value);
        }
        self.options = rest;
        self.write();
    }

    /// The options that upstreams get besides a client subnet.
    pub fn options(&self) -> impl Iterator<Item = (u16, &[u8])> {
        options(&self.options).flatten()
    }

    /// The query as sources, cache and upstreams see it.
    pub fn query(&self) -> Query<'_> {
        let mut query = *self.asked;
        query.question = self.question.as_deref().unwrap_or(self.asked.question);
        (query.name, query.rtype, query.class, query.flags) = (self.name, self.rtype, self.class, self.flags);
        query.overrides = UpstreamOverrides::new(&self.added);
        if self.subnet != UpstreamSubnet::Own {
            // A client without EDNS may have a subnet written for it.
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
            (self.name, self.rtype, self.class) == (self.asked.name, self.asked.rtype, self.asked.class);
        self.question = (!same).then(|| question(&self.name, self.rtype, self.class).into());
    }
}

/// A question as it is sent.
pub fn question(name: &Name, rtype: RType, class: Class) -> Vec<u8> {
    let mut question = name.as_wire().to_vec();
    question.extend_from_slice(&rtype.0.to_be_bytes());
    question.extend_from_slice(&class.0.to_be_bytes());
    question
}

/// The client's header flags but for AA and RA, which mean nothing in a query.
fn own_flags(asked: &Query<'_>) -> Flags {
    Flags(asked.flags.0 & !(Flags::AA | Flags::RA))
}

/// Octets of options that are written into one query for upstreams.
const MOST_OPTIONS: usize = 4_096;
