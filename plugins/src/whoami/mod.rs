//! `whoami`: answers every query with the client's address.

use std::net::IpAddr;
use std::sync::Arc;

use corefile::Directive;
use wire::{Class, Flags, Proto, Query, RType, Reply};

use metrics::counters::ThreadCounters;
use plugin::args::{Result, bare};
use plugin::spec::{BuildContext, Explanation, ParseContext, Source, SourceSpec};
use plugin::{HostsGuard, Lookup, QueryContext};

/// The directive and its source; it has no settings.
#[derive(Debug, Clone, Copy)]
pub struct Whoami;

/// Reads the one `whoami` of a server block.
pub(crate) fn read(directives: &[&Directive], _: ParseContext<'_>) -> Result<Arc<dyn SourceSpec>> {
    bare("whoami", directives)?;
    Ok(Arc::new(Whoami))
}

impl SourceSpec for Whoami {
    fn build(&self, _: &BuildContext<'_>) -> Result<Box<dyn Source>> {
        Ok(Box::new(*self))
    }
}

impl Source for Whoami {
    #[inline]
    fn lookup<'h>(
        &'h self,
        context: &QueryContext<'_>,
        _: &mut HostsGuard<'h>,
        query: &Query<'_>,
        reply: &mut Reply<'_>,
        _: ThreadCounters<'_>,
    ) -> Lookup {
        answer(context, query, reply);
        Lookup::Answer
    }

    fn explain(&self, _: &Query<'_>) -> Explanation {
        Explanation::Ends("it answers every name".to_owned())
    }
}

/// Answers any name and type: NOERROR without an answer; the additional section has the client's
/// address and, as an SRV record of `_udp` or `_tcp` below the name, its port, with TTL 0.
#[inline]
fn answer(context: &QueryContext<'_>, query: &Query<'_>, reply: &mut Reply<'_>) {
    reply.flags = Flags::AA;
    let client = context.client();
    match client.ip() {
        IpAddr::V4(address) => {
            let mut record = [0; HEAD + 4];
            write(&mut record, RType::A, query.class, &address.octets());
            reply.push_ready(&record, [0, 0, 1]);
        }
        IpAddr::V6(address) => {
            let mut record = [0; HEAD + 16];
            write(&mut record, RType::AAAA, query.class, &address.octets());
            reply.push_ready(&record, [0, 0, 1]);
        }
    }
    let label = match context.proto {
        Proto::Udp | Proto::Quic => b"\x04_udp",
        Proto::Tcp => b"\x04_tcp",
    };
    // A name too long for one more label has no SRV owner.
    if label.len() + query.name.as_wire().len() <= wire::MAX_NAME {
        let [high, low] = client.port().to_be_bytes();
        let mut record = [0; LABEL + HEAD + 7];
        let (owner, rest) = record.split_at_mut(LABEL);
        owner.copy_from_slice(label);
        // Priority and weight 0, the root as target.
        write(rest, RType::SRV, query.class, &[0, 0, 0, 0, high, low, 0]);
        reply.push_ready(&record, [0, 0, 1]);
    }
}

/// Writes a record with TTL 0 and the question's name as its owner. Inlined, so that the compiler
/// knows its lengths.
#[inline(always)]
fn write(record: &mut [u8], rtype: RType, class: Class, data: &[u8]) {
    let (head, rest) = record.split_at_mut(HEAD);
    head[..2].copy_from_slice(&[0xc0, wire::HEADER as u8]);
    head[2..4].copy_from_slice(&rtype.0.to_be_bytes());
    head[4..6].copy_from_slice(&class.0.to_be_bytes());
    head[10..].copy_from_slice(&(data.len() as u16).to_be_bytes());
    rest.copy_from_slice(data);
}

/// Bytes before a record's data: a pointer to the question, type, class, TTL and length.
const HEAD: usize = 12;
/// Bytes of `_udp` or `_tcp` with its length.
const LABEL: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;
    use wire::{Verdict, accept};

    #[test]
    fn the_client_sees_itself() {
        let packet = b"\0\x01\x01\0\0\x01\0\0\0\0\0\0\x07eXample\x03org\0\0\x01\0\x01";
        let Verdict::Pass(query) = accept(packet) else { panic!("refused") };
        for (client, expected) in [
            ("192.0.2.7:4321", &b"\xc0\x0c\0\x01\0\x01\0\0\0\0\0\x04\xc0\0\x02\x07"[..]),
            (
                "[2001:db8::7]:4321",
                b"\xc0\x0c\0\x1c\0\x01\0\0\0\0\0\x10\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x07",
            ),
        ] {
            let client = client.parse::<std::net::SocketAddr>().unwrap().into();
            let server = "127.0.0.1:53".parse().unwrap();
            let context = QueryContext::new(clock::now(), &client, server, Proto::Udp, 0);
            let mut out = Vec::new();
            let mut reply = Reply::start(&mut out, &query);
            answer(&context, &query, &mut reply);
            assert_eq!(reply.counts(), [0, 0, 2]);
            let body = reply.body_mut();
            assert_eq!(&body[..expected.len()], expected);
            assert_eq!(
                &body[expected.len()..],
                b"\x04_udp\xc0\x0c\0\x21\0\x01\0\0\0\0\0\x07\0\0\0\0\x10\xe1\0"
            );
        }
    }
}
