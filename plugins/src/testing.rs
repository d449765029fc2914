//! One middleware and the answer below it, for tables of rows.

use std::collections::HashMap;
use std::sync::Arc;

use metrics::counters::PerThread;
use plugin::QueryContext;
use plugin::middleware::{EffectiveQuery, HookResult, Middleware, OnQuery, Subqueries, SubqueryResult};
use wire::{Class, HEADER, Message, Name, RType, Rr, Section, Verdict, accept};

/// Answers of subqueries by name and type; a missing one is pending. Then the subqueries issued,
/// and the number of bytes compared with patterns.
#[derive(Default)]
pub(crate) struct Others(
    pub(crate) HashMap<(Name, RType), SubqueryResult>,
    pub(crate) Vec<String>,
    pub(crate) usize,
);

impl Subqueries for Others {
    fn resolve(&mut self, name: &Name, rtype: RType, _class: Class) -> Option<SubqueryResult> {
        self.1.push(format!("{name} {rtype}"));
        self.0.get(&(*name, rtype)).cloned()
    }

    fn resolve_below(&mut self, effective: &EffectiveQuery<'_>, name: &Name) -> Option<SubqueryResult> {
        self.resolve(name, effective.rtype(), effective.class())
    }

    fn may_compare(&mut self, octets: usize) -> bool {
        self.2 += octets;
        self.2 < MOST_COMPARED
    }

    fn count_when_answered(&mut self, counter: &Arc<PerThread>) {
        counter.add(0);
    }
}

/// The limit for a client over TCP.
pub(crate) const MOST_COMPARED: usize = 1 << 20;

/// Parses the directives in these lines, of which the first is the Corefile's second, or returns
/// the error message.
pub(crate) fn read<T>(
    lines: &str,
    parse: impl FnOnce(&[&corefile::Directive]) -> plugin::args::Result<T>,
) -> Result<T, String> {
    let text = format!(". {{\n{lines}\n}}\n");
    let nowhere = std::path::Path::new("/nowhere");
    let corefile = corefile::read_text("Corefile", text.as_bytes(), nowhere, &|_| None).unwrap();
    let directives: Vec<_> = corefile.blocks[0].directives.iter().collect();
    parse(&directives).map_err(|error| format!("{error:#}"))
}

/// A query as dig sends it.
pub(crate) fn packet(name: &str, rtype: RType) -> Vec<u8> {
    let mut packet = vec![0; HEADER];
    packet[1] = 7;
    packet[2] = 1;
    packet[5] = 1;
    packet.extend_from_slice(Name::from_text(name).unwrap().as_wire());
    packet.extend_from_slice(&rtype.0.to_be_bytes());
    packet.extend_from_slice(&Class::IN.0.to_be_bytes());
    packet
}

/// Why a client gets no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoReply {
    /// A subquery is pending.
    Waits,
    /// The query has no answer.
    Fails,
    /// The query is dropped.
    Silence,
}

/// The result of `step` for a query from `client` with the answer of `below`: the effective query,
/// and the client's reply.
pub(crate) fn through(
    step: &dyn Middleware,
    client: &str,
    packet: &[u8],
    below: impl FnOnce(&EffectiveQuery<'_>) -> Message,
    others: &mut Others,
) -> (String, Result<Message, NoReply>) {
    let Verdict::Pass(query) = accept(packet) else { panic!("refused") };
    let client = std::net::SocketAddr::new(client.parse().unwrap(), 4321).into();
    let server = "127.0.0.1:53".parse().unwrap();
    let proto = wire::Proto::Udp;
    let context = QueryContext::new(clock::now(), &client, server, proto, 0);
    let mut effective = EffectiveQuery::new(&query, "dns://:53", true);
    let mut inward = step.on_query(&mut effective, &context);
    if let OnQuery::NeedsSubquery(needs) = inward {
        let Some(then) = needs.resume(&mut effective, &context, others) else {
            return (String::new(), Err(NoReply::Waits));
        };
        inward = then;
    }
    let what = format!("{} {}", effective.name(), effective.rtype());
    let response = match inward {
        OnQuery::Pass => Ok(below(&effective)),
        OnQuery::Answer(message) => Ok(*message),
        OnQuery::Hook(back) => {
            let mut response = below(&effective);
            match back.on_response(&effective, &context, &mut response, others) {
                HookResult::Done => Ok(response),
                HookResult::Waiting => Err(NoReply::Waits),
                HookResult::Failed(_) => Err(NoReply::Fails),
            }
        }
        OnQuery::Fail(_) => Err(NoReply::Fails),
        OnQuery::Drop => Err(NoReply::Silence),
        OnQuery::NeedsSubquery(_) => panic!("what others answer is needed a second time"),
    };
    (what, response)
}

/// An address record of the answer section.
pub(crate) fn a(name: &str, ttl: u32, address: [u8; 4]) -> Rr {
    Rr::new(Section::Answer, &Name::from_text(name).unwrap(), RType::A, ttl, &address)
}
